"""A stranger's repository: whatever we push and delete there, in whatever order, what is theirs stays to the letter."""

from __future__ import annotations

import contextlib
import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub.server import Origin
from publishing import REPO, configs_of, files_of, push_bench

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.publish.card import default_config
from reasonknee_hf.publish.rules import card_problems, front_matter
from reasonknee_hf.publish.standing import matches, patterns

THEIRS = ("bench_volumes", "full_crops", "mine", "full", "a_volumes_bytes")
"""Names that ours could be taken for: beside a config, under another one, of a card entry."""

WORDS = "\n# Theirs\n\nWords.\n\n## Attribution and licence\n\nAll mine.\n\n## Config `mine`\n\nMore words.\n"


def table(number: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [number]}), sink)
    return sink.getvalue()


def their_files() -> dict[str, bytes | str]:
    configs = [
        {"config_name": name, "data_files": [{"split": "test", "path": f"{name}/*.parquet"}]}
        for name in THEIRS
    ]
    infos = [{"config_name": "mine", "splits": [{"name": "test", "num_bytes": 1, "num_examples": 1}]}]
    card = yaml.safe_dump({"license": "mit", "odd": {"k": [1]}, "configs": configs, "dataset_info": infos})
    files: dict[str, bytes | str] = {f"{name}/test-0.parquet": table(n) for n, name in enumerate(THEIRS)}
    files |= {
        "bench/notes.txt": "theirs",
        "grades-bench.png": b"theirs",
        "a_volumes/images/x.nii.gz": b"theirs",
    }
    files["full/test-00000-of-00001-0123abcd-000.parquet"] = table(9)  # of the very form of ours
    described = {"name": "theirs", "distribution": [], "recordSet": [{"@id": "mine", "name": "mine"}]}
    return files | {"README.md": f"---\n{card}---\n{WORDS}", "croissant.json": json.dumps(described)}


def command(lot: random.Random, written: set[str]) -> dict:
    """One of our commands."""
    name = lot.choice(["bench", "mine", "a", "bench_volumes", "a_volumes", "b", "b", "c"])
    gone = [one for one in sorted(written) if one != name and lot.random() < 0.3]
    return {
        "config": lot.choice(["bench", "full", "records"]),
        "name": name,
        "volumes": lot.choice(["none", "none", "none", "embed", "files"]),
        "limit": lot.choice([1, 2]),
        "delete_configs": gone,
    }


@pytest.mark.parametrize("seed", range(3))
def test_what_is_theirs_stays(sample_dir, seed):
    lot = random.Random(seed)
    theirs = their_files()
    written: set[str] = set()
    with Origin() as origin:
        origin.put_tree(REPO, theirs)
        before = configs_of(files_of(origin)["README.md"])
        for _ in range(6):
            one = command(lot, written)
            with contextlib.suppress(PublishError, OptionError):
                push_bench(origin, sample_dir, splits="test", **one)
                written = {*written, one["name"]} - set(one["delete_configs"])
            found = files_of(origin)
            for name, content in theirs.items():
                if name not in ("README.md", "croissant.json"):
                    assert found[name] == (content if isinstance(content, bytes) else content.encode()), name
            card = found["README.md"].decode()
            assert {name: configs_of(found["README.md"])[name] for name in before} == before
            assert all(line in card for line in WORDS.splitlines())
            assert yaml.safe_load(front_matter(card)[0])["odd"] == {"k": [1]}
            assert json.loads(found["croissant.json"])["name"] == "theirs"
            assert {"@id": "mine", "name": "mine"} in json.loads(found["croissant.json"])["recordSet"]
            assert default_config(front_matter(card)[0]) is None
            assert card_problems(card) == []
            # Of ours nothing is left over, and nothing that the card names is lost.
            globs = [glob for listed in patterns(card).values() for glob in listed]
            assert all(any(matches(name, glob) for name in found) for glob in globs)
            loose = [
                n for n in found if n.endswith(".parquet") and not any(matches(n, glob) for glob in globs)
            ]
            assert loose == []
    assert written
