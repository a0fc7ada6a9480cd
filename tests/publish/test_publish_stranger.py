"""A stranger's repository: whatever we push and delete there, in whatever order, what is theirs stays to the letter."""

from __future__ import annotations

import contextlib
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub.server import Origin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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


COMMANDS = st.fixed_dictionaries(
    {
        "config": st.sampled_from(["bench", "full", "records", "scans"]),
        "name": st.sampled_from(["a", "b", "bench", "mine", "bench_volumes", "a_volumes"]),
        "volumes": st.sampled_from(["none", "none", "embed", "files"]),
        "limit": st.sampled_from([1, 2]),
        "delete_configs": st.sets(st.sampled_from(["a", "b", "bench_volumes", "a_volumes"]), max_size=3).map(
            sorted
        ),
        "dry_run": st.sampled_from([False, False, False, True]),
    }
)


def test_what_is_theirs_stays(sample_dir):
    _sequences(15, sample_dir)


@pytest.mark.slow
def test_what_is_theirs_stays_in_many_sequences(sample_dir):
    _sequences(200, sample_dir)


def _sequences(count, sample_dir):
    """That many random sequences of our commands, the same ones each time."""

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(COMMANDS, min_size=2, max_size=5))
    def run(commands):
        kept.append(_run(commands, sample_dir))

    kept = []
    run()
    assert sum(kept) > count / 2  # most sequences wrote something


def _run(commands, sample_dir) -> bool:
    theirs = their_files()
    written: set[str] = set()
    with Origin() as origin:
        origin.put_tree(REPO, theirs)
        before = configs_of(files_of(origin)["README.md"])
        for wanted in commands:
            gone = [name for name in wanted["delete_configs"] if name in written]
            one = wanted | {"delete_configs": gone}
            with contextlib.suppress(PublishError, OptionError):
                push_bench(origin, sample_dir, splits="test", **one)
                if not one["dry_run"]:
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
    return bool(written)
