"""Rows of DeepTumorVQA 2.0: every form of its files, its defects, its second repository."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node
from hub import faults as f

import reasonknee_hf as rk
from reasonknee_hf.dataset import files_release
from reasonknee_hf.dataset.contract import Records, described
from reasonknee_hf.dataset.record_forms import JsonForm
from reasonknee_hf.errors import (
    GridMismatchError,
    ReasonKneeError,
    RecordError,
    ReleaseError,
    VolumeMissingError,
)
from reasonknee_hf.tumor.tumor_rows import read_options
from reasonknee_hf.tumor.tumor_sample import tumor_sample_folder, write_tumor_sample
from reasonknee_hf.verify import verify

pytestmark = pytest.mark.floor


def stream(config="benchmark", split="test", **options):
    options = {"source": "sample", "on_error": "null", **options}
    return rk.load_dataset(f"deeptumorvqa/{config}", split=split, streaming=True, **options)


@pytest.fixture
def release(tmp_path) -> Path:
    return write_tumor_sample(tmp_path / "own")


def published(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "release/benchmark/test_qa.jsonl").read_text().splitlines()]


def test_rows_of_the_benchmark_are_its_records():
    told = published(tumor_sample_folder())
    rows = list(stream())
    assert [row["id"] for row in rows] == [record["qid"] for record in told]
    for row, record in zip(rows, told, strict=True):
        assert row["record"] == json.dumps(record, ensure_ascii=False)
        assert (row["question"], row["answer"]) == (record["question"], record["answer"])
        right = {option["letter"]: option["text"] for option in row["options"]}[row["correct_option"]]
        assert right == record["answer"]
        assert row["spacing"] == [0.83, 0.83, 5.0]
        assert row["scanner"] is None  # NaN
        assert row["lesion"] == str(record["lesion"])
        assert row["about_lesion"] == {"True": True, "False": False}.get(str(record["lesion"]))
    assert {len(row["options"]) for row in rows} == {2, 3, 4}
    assert rows[-1]["image"] is None
    shipped = rows[0]
    assert Path(shipped["picture"]["path"]).read_bytes().startswith(b"\x89PNG")
    assert Path(shipped["organ_picture"]["path"]).parent.name == "organ"
    assert shipped["image"].axcodes[0] == "S"
    assert shipped["image"].array().shape == (12, 24, 20)


def test_tables_of_training_take_volumes_from_the_second_repository(release):
    rows = list(stream("train", "train", source=str(release / "release"), images=str(release / "volumes")))
    with (release / "release/train/train_qa.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [row["scan_id"] for row in rows] == [line["Image ID"] for line in told]
    assert [row["answer"] for row in rows] == [line["Answer"] for line in told]
    assert all(row["image"].array().any() for row in rows)
    assert all(row["id"].startswith("train_") for row in rows)


def test_turns_of_agents_come_as_they_are():
    row = next(iter(stream("agent_sft", "train")))
    assert [turn["from"] for turn in row["conversations"]] == [
        "system",
        "human",
        "function_call",
        "observation",
        "gpt",
    ]
    assert row["tools"][0]["name"] == "segment_organ"
    assert json.loads(row["tools"][0]["parameters"])["target"] == {"type": "string"}
    cache = described("deeptumorvqa").open(source="sample").tool_cache("benchmark_oracle")
    assert cache["BDMAP_00001500"]["segment"]["liver"] == {"found": True}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"question_subtype": "colour of the liver"}, "none of the 42 subtypes"),
        ({"question_type": "guessing"}, "none of the stages"),
        ({"question_type": "measurement"}, "is of the stage 'recognition'"),
        ({"correct_option": "E"}, "none of the 2 options"),
        ({"mc_question": "no options here"}, "does not end in options"),
        ({"spacing": "0.83 by 5"}, "not three numbers"),
    ],
)
def test_a_record_that_does_not_fit_is_a_fault_of_its_row(release, edit, said):
    path, told = release / "release/benchmark/test_qa.jsonl", published(release)
    told[0] |= edit
    path.write_text("".join(json.dumps(record) + "\n" for record in told))
    options = {"source": str(release / "release"), "images": str(release / "volumes")}
    with pytest.raises(RecordError, match=rf"bench_00000 .*test_qa.jsonl.*{said}"):
        next(iter(stream(on_error="raise", **options)))
    skipped = stream(on_error="skip", **options)
    assert next(iter(skipped))["id"] == "bench_00001"
    assert len(list(stream(**options))) == len(told)


def test_the_array_form_gives_the_same_rows(release):
    """`test_qa.json` is one object around the array."""
    data = (release / "release/benchmark/test_qa.json").read_bytes()
    form = JsonForm("test_qa.json", Records(image="image_id", prompt="question"))
    found = [value for some in form.all([data]) for value in some.values]
    assert [record["qid"] for record in found] == [record["qid"] for record in published(release)]


def test_a_volume_that_is_another_than_its_record_says_is_refused(release):
    ct = release / "release/benchmark/ct"
    scans = sorted(ct.iterdir())
    told = published(release)
    told[0]["shape"] = "(512, 512, 116)"
    (release / "release/benchmark/test_qa.jsonl").write_text("".join(json.dumps(r) + "\n" for r in told))
    row = next(iter(stream(source=str(release / "release"))))
    with pytest.raises(GridMismatchError, match=r"bench_00000.*512, 512, 116"):
        row["image"].array()
    shutil.rmtree(scans[1])
    told[0]["shape"] = "(24, 20, 12)"
    (release / "release/benchmark/test_qa.jsonl").write_text("".join(json.dumps(r) + "\n" for r in told))
    with pytest.raises(VolumeMissingError):
        [row["image"].shape for row in stream(source=str(release / "release"), on_error="raise")]


def test_a_large_table_is_read_where_it_is_needed(tmp_path):
    root = tmp_path / "release"
    (root / "train").mkdir(parents=True)
    line = (
        'q{0},BDMAP_{1:08},"What of {0}, ""here""?\nA: yes B: no",Yes,recognition,PDAC existence'
        + ","
        + "x" * 300
        + "\n"
    )
    with (root / "train/train_qa.csv").open("w") as file:
        file.write("QID,Image ID,Question,Answer,Question Type,Question Subtype,Note\n")
        for number in range(20_000):
            file.write(line.format(number, number // 50))
    size = (root / "train/train_qa.csv").stat().st_size
    assert size > 7_000_000
    next(iter(stream()))  # imports are not counted
    tracemalloc.start()
    rows = [
        row["question"] for row in islice(stream("train", "train", source=str(root), on_error="raise"), 3)
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[1] == 'What of 1, "here"?\nA: yes B: no'
    assert peak < 4_000_000
    ds = stream("train", "train", source=str(root), on_error="raise")
    assert sum(1 for _ in ds) == 20_000
    ordered = [
        row["id"]
        for row in islice(stream("train", "train", source=str(root), start=12_345, on_error="raise"), 2)
    ]
    assert ordered == ["q12345", "q12346"]


def test_a_second_repository_without_access_is_one_error(release, origin):
    files = (path for path in (release / "release").rglob("*") if path.is_file())
    tree = {path.relative_to(release / "release").as_posix(): path.read_bytes() for path in files}
    origin.put_tree("tumor-vqa/DeepTumorVQA_2.0", tree)
    origin.faults(f.status(403), match="AbdomenAtlas")
    options = {"source": "tumor-vqa/DeepTumorVQA_2.0", "endpoint": origin.url, "on_error": "raise"}
    row = next(iter(stream("train", "train", **options)))
    assert origin.requests("AbdomenAtlas") == []  # nothing is asked of it before a volume is touched
    with pytest.raises(ReasonKneeError) as error:
        row["image"].array()
    assert "AbdomenAtlas/AbdomenAtlas3.0Mini" in str(error.value)
    assert "pass token=" in str(error.value)
    told = next(iter(stream("benchmark", "test", **options)))
    assert told["image"].array().any()


def test_what_is_no_release_is_one_error(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ReleaseError, match=r"is not a release of DeepTumorVQA 2\.0"):
        stream(source=str(tmp_path))


def test_options_at_the_end_of_a_question():
    assert read_options("How large? A: 1 B: 2 C: 3 (large)")["C"] == "3 (large)"
    assert read_options("Vitamin A: is it? A: yes B: no") == {"A": "yes", "B": "no"}
    for text in ("none", "A: one", "A: one C: two"):
        with pytest.raises(ValueError, match="does not end in options"):
            read_options(text)


def test_verify_tells_the_known_defects(release):
    report = verify(described("deeptumorvqa").open(source=str(release / "release")), deep=True)
    counts = {(f.kind, f.part): f.count for f in report.findings}
    asked = len(published(release))
    assert counts["volume-missing", ""] == 1
    assert counts["path-absent", "slice_path"] == asked
    assert counts["types-mixed", "lesion"] == 1
    assert counts["shared-with-pool", "question"] == 4
    assert counts["count-differs", "subtype"] == 42
    assert ("checksum-differs", "") not in counts
    assert ("volume-broken", "") not in counts
    ct = next((release / "release/benchmark/ct").rglob("ct.nii.gz"))
    ct.write_bytes(ct.read_bytes()[:-40])
    again = verify(described("deeptumorvqa").open(source=str(release / "release")), deep=True)
    counts = {(f.kind, f.part): f.count for f in again.findings}
    assert counts["volume-broken", ""] == counts["checksum-differs", ""] == 1


def test_a_version_of_it_reads_back(tmp_path):
    from datasets import load_dataset

    told = rk.convert(tmp_path / "out", "deeptumorvqa/benchmark", source="sample", on_error="null")
    assert told.configs[0].rows == len(list(stream()))
    rows, ours = load_dataset(str(tmp_path / "out"), "benchmark", split="test"), list(stream())
    assert rows["id"][:3] == [row["id"] for row in ours[:3]]
    assert rows[0]["options"] == ours[0]["options"]
    assert "CC BY 4.0" in (tmp_path / "out/README.md").read_text()
    assert np.isclose(rows[0]["spacing"][2], 5)


def test_the_first_row_of_a_large_table_reads_its_beginning(origin, monkeypatch):
    """No file beside it names the volumes: counting them would take reading all of it."""
    monkeypatch.setattr(files_release, "_READ_TO_COUNT", 100_000)
    with open(tumor_sample_folder() / "release/train/train_qa.csv", newline="") as file:
        head, *lines = csv.reader(file)
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(head)
    for number in range(24_000):
        fields = dict(zip(head, lines[number % len(lines)], strict=True))
        table.writerow((fields | {"QID": f"q_{number}", "Image ID": f"BDMAP_{number // 10:08d}"}).values())
    data = text.getvalue().encode()
    origin.put_tree("me/tumors", {"train/train_qa.csv": data})

    def rows_of_it(**options):
        return stream("train", "train", source="me/tumors", endpoint=origin.url, on_error="raise", **options)

    rows = rows_of_it()
    shards = rows.num_shards
    assert shards == 24
    assert next(iter(rows))["id"] == "q_0"
    assert origin.sent("train_qa.csv") < 2 << 20 < len(data) / 3
    assert rows.num_rows is None
    whole = rows_of_it()
    ids, states = [], []
    for number, row in enumerate(whole):
        ids.append(row["id"])
        if number in (0, 11_111, 23_998):
            states.append((number, whole.state_dict()))
    assert ids == [f"q_{number}" for number in range(24_000)]
    known = rows_of_it()
    assert (known.num_rows, known.num_shards) == (24_000, shards)  # the index is known now
    parts = [[row["id"] for row in split_dataset_by_node(known, rank, 3)] for rank in range(3)]
    assert sorted(one for part in parts for one in part) == sorted(ids)
    for number, state in states:
        rest = rows_of_it()
        rest.load_state_dict(state)
        assert next(iter(rest))["id"] == ids[number + 1]
    mixed = [row["id"] for row in rows_of_it(shuffle=1)]
    assert sorted(mixed) == sorted(ids) != mixed
