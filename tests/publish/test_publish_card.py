"""The card: plain metadata, nothing of others touched, attribution always there, and what the viewer would refuse."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Array3D, ClassLabel, Features, Value
from datasets.data_files import resolve_pattern
from huggingface_hub import DatasetCard
from hypothesis import given, settings
from hypothesis import strategies as st
from support import published_object

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.knee_card import KNEE_CARD
from reasonknee_hf.publish import card as cards
from reasonknee_hf.publish import viewer
from reasonknee_hf.publish.cardtext import attribution, defect_lines, grade_picture, require_attribution
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion, SplitFacts
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.job import Job, ReleaseSpec
from reasonknee_hf.publish.rules import card_problems, front_matter, size_category
from reasonknee_hf.publish.schema import question_features
from reasonknee_hf.publish.standing import matches
from reasonknee_hf.publish.viewer import check_card, check_viewer
from reasonknee_hf.verify import verify

HAS_PILLOW = find_spec("PIL") is not None
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="the picture is drawn by matplotlib"
)


def conversion(name: str = "full", rows: int = 500, features: Features | None = None) -> Conversion:
    job = Job(
        ReleaseSpec("x"),
        "rajpurkarlab/3DReasonKnee",
        "7a6" * 13,
        "id",
        "full",
        name,
        Path("out"),
        volumes="none",
    )
    facts = SplitFacts(f"{name}/train-*.parquet", (f"{name}/train-0.parquet",), rows, 1000, 100)
    config = ConfigFacts(name, features or question_features("full"), {"train": facts}, {"BML": {0: 3, 2: 1}})
    return Conversion(job, (config,), {})


def metadata(card: str) -> dict:
    return yaml.safe_load(front_matter(card)[0])


def test_a_new_card_is_complete():
    card, pictures = cards.merged_card(
        "", conversion(), place="me/knee", defects=["3 boxes that leave the volume"]
    )
    assert card_problems(card) == []
    for words in (
        *KNEE_CARD.creators,
        "arXiv:2510.20967",
        "creativecommons.org/licenses/by/4.0",
        "nda.nih.gov/oai",
        "3 boxes that",
    ):
        assert words in card
    assert "7a6" * 13 in card
    assert 'load_dataset("me/knee", "full", split="train", streaming=True)' in card
    assert "| BML | 3 |  | 1 | 4 |" in card
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())
    assert DatasetCard(card).data.license == "cc-by-4.0"
    assert metadata(card)["size_categories"] == ["n<1K"]
    assert len(card.encode()) < 1_000_000


def test_the_card_comes_out_the_same():
    once, again = (cards.merged_card("", conversion(), place="me/knee") for _ in range(2))
    assert once == again
    assert cards.merged_card(once[0], conversion(), place="me/knee")[0] == once[0]


def test_features_survive_the_card():
    features = Features(
        {
            "label": ClassLabel(names=[str(name) for name in np.array(["a", "b"])], num_classes=np.int64(2)),
            "box": Array3D(shape=(1, 2, 3), dtype="int8"),
            "nested": [{"inner": [{"x": Value("int8"), "y": [Value("string")]}]}],
        }
    )
    made = conversion(features=features)
    text = cards.merged_metadata("", made)
    assert "!!" not in text
    assert Features._from_yaml_list(
        yaml.safe_load(text)["dataset_info"][0]["features"]
    ) == Features.from_dict(features.to_dict())


def test_numpy_and_tuples_become_plain():
    value = {"a": np.int64(3), "b": (1, np.float32(0.5)), "c": [np.str_("x")], "d": {"e": np.bool_(True)}}
    assert cards._plain(value) == {"a": 3, "b": [1, 0.5], "c": ["x"], "d": {"e": True}}
    assert "!!" not in cards._dump(cards._plain(value))


_WORDS = st.text("abc:#-'\"[]{}é \n", max_size=12)
_VALUES = st.recursive(_WORDS | st.integers() | st.booleans() | st.none(), lambda x: st.lists(x, max_size=3) | st.dictionaries(_WORDS, x, max_size=3), max_leaves=6)  # fmt: skip  # noqa: E501


@given(st.dictionaries(st.text("abcxyz_ -:", min_size=1, max_size=8), _VALUES, max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_unknown_keys_always_survive(theirs, flow):
    old = yaml.safe_dump(theirs, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    merged = yaml.safe_load(cards.merged_metadata(old, conversion()))
    assert {key: merged[key] for key in theirs} == theirs


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_any_order_of_writing_keeps_all_configs(names):
    card = ""
    for name in names:
        card, _ = cards.merged_card(card, conversion(name), place="me/knee")
    written = list(dict.fromkeys(names))
    assert [one["config_name"] for one in metadata(card)["configs"]] == written
    assert [one.get("default", False) for one in metadata(card)["configs"]] == [True] + [False] * (
        len(written) - 1
    )
    assert card.count("## Config `") == len(written)
    assert card.count("## Attribution and licence") == 1


def test_line_ends_and_byte_order_marks():
    old = "\ufeff---\r\nmine: 1\r\n---\r\nhello\r\n"
    card, _ = cards.merged_card(old, conversion(), place="x")
    assert metadata(card)["mine"] == 1
    assert "hello" in card


def test_broken_metadata_are_named():
    with pytest.raises(PublishError, match="not YAML"):
        cards.merged_card("---\na: [\n---\n", conversion(), place="x")


def test_attribution_cannot_be_left_out(monkeypatch):
    require_attribution(attribution())
    for name in KNEE_CARD.creators:
        with pytest.raises(PublishError, match=name):
            require_attribution(attribution().replace(name, ""))
    monkeypatch.setattr(cards, "attribution", lambda *_: "")
    with pytest.raises(PublishError, match=r"CC BY 4\.0 asks"):
        cards.merged_card("", conversion(), place="x")


@pytest.mark.parametrize(
    ("yaml_text", "problem"),
    [
        ("license: cc-by-5.0", "license"),
        ("size_categories: [366K]", "size_categories"),
        ("task_categories: [knees]", "task_categories"),
        ("language: english please", "language"),
        ("configs: {a: b}", "configs"),
        ("configs: [{config_name: a}, {config_name: a}]", "2 times"),
        ("configs: [{config_name: a, default: true}, {config_name: b, default: true}]", "more than one"),
        ("configs: [{config_name: a, data_files: [{split: 'a b', path: x}]}]", "no name for a split"),
        ("dataset_info: {features: [{name: a, dtype: nope}]}", "cannot be read"),
        ("dataset_info: {splits: [{name: a, num_examples: many}]}", "whole number"),
        ("a: !!python/tuple [1, 2]", "plain YAML"),
        ("pretty_name: [a]", "pretty_name"),
    ],
)
def test_problems_are_found(yaml_text, problem):
    assert any(problem in found for found in card_problems(f"---\n{yaml_text}\n---\n"))


def test_all_problems_at_once():
    assert len(card_problems("---\nlicense: x\nsize_categories: [y]\ntags: [1]\n---\n")) == 3
    assert card_problems("hello") != []
    assert "bytes" in card_problems("---\na: 1\n---\n" + "x" * 1_000_001)[0]


SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
    (10_000_000_000, "1B<n<10B"),
    (100_000_000_000, "10B<n<100B"),
    (1_000_000_000_000, "100B<n<1T"),
)


@given(
    st.one_of(
        st.integers(0, 10**13),
        st.integers(2, 13).map(lambda n: 10**n),
        st.integers(2, 13).map(lambda n: 10**n - 1),
    )
)
def test_size_categories(rows):
    name = size_category(rows)
    limits = [limit for limit, _ in SIZES]
    assert name == "n>1T" or rows < {n: x for x, n in SIZES}[name]
    assert name == "n<1K" or rows >= ([0, *limits])[[*(n for _, n in SIZES), "n>1T"].index(name)]


def test_defects_come_from_verify(sample_dir):
    release = open_release(str(sample_dir))
    lines = defect_lines(True, release)
    assert lines == defect_lines(verify(release), release)
    assert lines
    assert not any(str(sample_dir) in line for line in lines)
    assert defect_lines(False, release) is None
    with pytest.raises(OptionError, match="another"):
        defect_lines(replace(verify(release), release="another"), release)


@needs_matplotlib
def test_the_picture_is_deterministic():
    counts = {"BML": {0: 3, 3: 1}, "Meniscus": {0: 1, 8: 1}}
    assert grade_picture(counts) == grade_picture(counts)
    card, pictures = cards.merged_card("", conversion(), place="me/knee")
    assert list(pictures) == ["grades-full.png"]
    assert "(grades-full.png)" in card


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("a/t-0.parquet", "a/*.parquet", True),
        ("a/b/t-0.parquet", "a/*.parquet", False),
        ("a/b/t-0.parquet", "a/**", True),
        ("ab/t.parquet", "a/**", False),
        ("data/t.csv", "./data/t.csv", True),
        ("data/a/t.csv", "./data/*.csv", False),
        ("data/x-1.parquet", "data/**/x-*", True),
        ("data/a/b/x-1.parquet", "data/**/x-*", True),
        ("data/a/x/y-1.parquet", "data/**/x-*", False),
        ("data/a/x-1/y.parquet", "data/**/x-*", False),
        ("a/b/c/t.csv", "**/*.csv", True),
        ("t.csv", "**/*.csv", True),
        ("data/[1].csv", "data/[1].csv", False),
        ("data/1.csv", "data/[!2].csv", True),
    ],
)
def test_patterns(name, pattern, fits, tmp_path):
    assert matches(name, pattern) is fits
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    found = []
    with suppress(FileNotFoundError):
        found = resolve_pattern(pattern, str(tmp_path))
    assert [os.path.normpath(one) for one in found] == [str(tmp_path / name)] * fits


def test_a_pattern_that_datasets_cannot_read_is_refused():
    with pytest.raises(PublishError, match=r"'data/\*\*\.csv', which nothing can read"):
        matches("data/t.csv", "data/**.csv")


# --- check-card and the viewer ------------------------------------------------------------------------------------


def blocking(findings) -> list[str]:
    return [str(one) for one in findings if one.blocking]


def test_what_is_written_passes(sample_dir, tmp_path):
    convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", limit=40, previews=HAS_PILLOW)
    findings = check_card(tmp_path / "o")
    assert blocking(findings) == []
    assert {one.config for one in findings} == {"bench_volumes", "bench_volumes_bytes"}
    command = [sys.executable, "-m", "reasonknee_hf", "check-card", str(tmp_path / "o")]
    assert subprocess.run(command, check=False).returncode == 0
    (tmp_path / "o" / "README.md").write_text("---\nlicense: nope\n---\n")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "license" in done.stdout
    assert "CC BY 4.0" in done.stdout


class Memory:
    """Tables in memory as a place for finished files."""

    def __init__(self, **tables: pa.Table) -> None:
        self.files = {}
        for name, table in tables.items():
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, row_group_size=len(table))
            self.files[f"{name}/test-0.parquet"] = sink.getvalue()

    def names(self):
        return set(self.files)

    def open(self, name):
        return pa.BufferReader(self.files[name])

    def size(self, name):
        return self.files[name].size


def findings_of(table: pa.Table) -> list[str]:
    card = "---\nconfigs: [{config_name: c, data_files: [{split: test, path: 'c/test-*.parquet'}]}]\n---\n"
    return blocking(check_viewer(Memory(c=table), card))


def test_long_text_is_cut_and_fits():
    assert findings_of(pa.table({"text": ["x" * 300_000] * 10})) == []


def test_too_many_cells_do_not_fit():
    lists = pa.table({"numbers": [list(range(10_000))] * 10})
    assert any("200,000 fit" in found for found in findings_of(lists))


def test_large_row_groups_are_found(monkeypatch):
    monkeypatch.setattr(viewer, "ROW_GROUP_BYTES", 1_000_000)
    lot = random.Random(0)
    table = pa.table({"data": [lot.randbytes(100_000) for _ in range(11)]})
    assert any("row group has 1," in found for found in findings_of(table))
    assert findings_of(table.slice(0, 9)) == []


def test_volumes_and_bytes_are_named_but_pictures_are_not(sample_dir, tmp_path):
    convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", limit=2, previews=HAS_PILLOW)
    told = "\n".join(map(str, check_card(tmp_path / "o")))
    assert "column image" in told
    assert "preview" not in told


def test_files_that_are_not_there_are_found():
    card = "---\nconfigs: [{config_name: c, data_files: [{split: test, path: 'd/*.parquet'}]}]\n---\n"
    assert blocking(check_viewer(Memory(), card)) == ["c: no file fits d/*.parquet"]


# --- dictionaries with different keys ------------------------------------------------------------------------------


def test_grades_never_become_one_wide_struct(sample_dir, tmp_path):
    convert(tmp_path / "o", "full", source=str(sample_dir), on_error="null", volumes="none")
    for split, name in (("train", "train"), ("test", "test")):
        (path,) = (tmp_path / "o" / "full").glob(f"{split}-*.parquet")
        table = pq.read_table(path)
        assert table.schema.field("grades").type.value_type.names == ["lesion", "attribute", "grade"]
        published = json.loads((sample_dir / "data/generate_data" / f"{name}.json").read_text("utf-8"))
        for row, record in zip(table.to_pylist(), published, strict=True):
            assert published_object(row) == record.get("final_diagnosis")
