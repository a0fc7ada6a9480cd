"""Tables are cut by real bytes, come out the same each time, and are whole or absent."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, Image, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from support import in_fresh_process

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish import parquet
from reasonknee_hf.publish.parquet import Limits, write_parts
from reasonknee_hf.publish.schema import question_features, volume_features

TEXT = Features({"id": Value("string"), "text": Value("string")})
VOLUMES = volume_features("embed", masks=False)


def text_rows(count: int, length: int, seed: int = 0) -> list[dict]:
    lot = random.Random(seed)
    return [{"id": str(n), "text": lot.randbytes(length // 2).hex()} for n in range(count)]


def volume_row(number: int, content: bytes) -> dict:
    row = dict.fromkeys(VOLUMES, "x") | {"scan_id": str(number), "knee_side": "left"}
    return row | {"image": {"bytes": content, "path": "a.nii.gz"}}


def groups(path: Path) -> list[pq.RowGroupMetaData]:
    metadata = pq.ParquetFile(path).metadata
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def test_rows_come_back(tmp_path):
    features = question_features("full", previews=True)
    grades = [{"lesion": "ACL", "attribute": "repair", "grade": 1}]
    row = dict.fromkeys(features, None) | {
        "id": "a_1", "scan_id": "a", "category": "Meniscus", "knee_side": "left", "bbox": [1, 2, 3, 4, 5, 6],
        "grades": grades, "preview": {"bytes": b"png", "path": "a.png"}, "question_id": 7,
    }  # fmt: skip
    empty = dict.fromkeys(features, None) | {"grades": []}
    (path,) = write_parts([row, empty], features, tmp_path / "c" / "test-0", Limits(), {"sha": None})
    found = pq.read_table(path).to_pylist()
    assert found == [row | {"category": 3, "knee_side": 1}, empty]
    metadata = pq.read_schema(path).metadata
    assert json.loads(metadata[b"reasonknee"]) == {"sha": None}
    declared = Features.from_dict(json.loads(metadata[b"huggingface"])["info"]["features"])
    assert declared["category"] == ClassLabel(names=features["category"].names)
    assert declared["preview"] == Image()
    assert pa.types.is_list(pq.read_schema(path).field("grades").type)


def test_page_index_and_dictionaries(tmp_path):
    rows = [{"id": str(n), "text": "the same text " * 50} for n in range(5000)]
    (path,) = write_parts(rows, TEXT, tmp_path / "t", Limits(), {})
    for group in groups(path):
        for number in range(group.num_columns):
            column = group.column(number)
            assert column.has_offset_index
            # The least and greatest of long texts would be a tenth of a file.
            assert column.has_column_index == (column.path_in_schema == "id")
            repeats = column.path_in_schema == "text"  # each id comes once, so a dictionary would only cost
            assert ("RLE_DICTIONARY" in column.encodings) == repeats
            assert column.compression == "ZSTD"
    assert path.stat().st_size < 60_000


def test_volumes_are_stored_as_they_are(tmp_path):
    content = random.Random(1).randbytes(6_000_000)
    (path,) = write_parts(
        [volume_row(0, content), volume_row(1, b"small")], VOLUMES, tmp_path / "v", Limits(), {}
    )
    assert pq.read_table(path)["image"].to_pylist() == [
        {"bytes": content, "path": "a.nii.gz"},
        {"bytes": b"small", "path": "a.nii.gz"},
    ]
    assert path.stat().st_size < 1.01 * len(content)
    names = {groups(path)[0].column(n).path_in_schema: groups(path)[0].column(n) for n in range(8)}
    assert names["image.bytes"].compression == "UNCOMPRESSED"


def test_row_groups_and_files_are_cut_by_bytes(tmp_path):
    rows = [volume_row(n, random.Random(n).randbytes(100_000)) for n in range(20)]
    parts = write_parts(rows, VOLUMES, tmp_path / "v", Limits(row_group=250_000, shard=620_000), {})
    assert [path.name for path in parts] == [f"v-{n:03d}.parquet" for n in range(4)]
    assert all(path.stat().st_size <= 1.3 * 620_000 for path in parts)
    assert all(group.total_byte_size <= 1.1 * 250_000 for path in parts for group in groups(path))
    assert pa.concat_tables(pq.read_table(path) for path in parts)["image"].to_pylist() == [
        r["image"] for r in rows
    ]


def test_a_row_above_the_limits_gets_a_group_and_a_file_of_its_own(tmp_path):
    sizes = [1000, 90_000, 1000, 1000]
    rows = [volume_row(n, random.Random(n).randbytes(size)) for n, size in enumerate(sizes)]
    parts = write_parts(rows, VOLUMES, tmp_path / "v", Limits(row_group=10_000, shard=20_000), {})
    assert [pq.ParquetFile(path).metadata.num_rows for path in parts] == [1, 1, 2]


def test_compressed_text_counts_by_what_it_takes_on_disk(tmp_path):
    rows = [{"id": str(n), "text": "0123456789" * 100} for n in range(20_000)]
    parts = write_parts(rows, TEXT, tmp_path / "t", Limits(row_group=1_000_000, shard=3_000_000), {})
    assert len(parts) <= 2  # 20 MB of text that compress to a few kB


@given(st.lists(st.integers(0, 4000), max_size=40), st.integers(1, 6000))
@settings(max_examples=60, deadline=None)
def test_groups_keep_all_rows_and_the_bound(tmp_path_factory, lengths, most):
    lot = random.Random(0)
    rows = [{"id": str(n), "text": lot.randbytes(size).hex()} for n, size in enumerate(lengths)]
    schema = parquet.arrow_schema(TEXT, {})
    found = list(parquet._groups(parquet._batches(rows, TEXT, schema, most), most))
    assert [row for table in found for row in table.to_pylist()] == rows
    assert all(table.nbytes <= most or table.num_rows == 1 for table in found)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = text_rows(3000, 400)
    once, again = (write_parts(rows, TEXT, tmp_path / name, Limits(), {"a": 1}) for name in ("one", "two"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


def test_no_rows_make_an_empty_file(tmp_path):
    (path,) = write_parts([], TEXT, tmp_path / "t", Limits(), {})
    assert pq.read_table(path).to_pylist() == []
    assert pq.read_table(path).column_names == ["id", "text"]


def test_fewer_parts_than_before_leave_none_of_the_old(tmp_path):
    limits = Limits(row_group=20_000, shard=40_000)
    assert len(write_parts(text_rows(300, 1000), TEXT, tmp_path / "t", limits, {})) > 2
    (path,) = write_parts(text_rows(3, 100), TEXT, tmp_path / "t", limits, {})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    def open_full(path, *args, **kwargs):
        return writer("/dev/full", *args, **kwargs)

    writer = pq.ParquetWriter
    monkeypatch.setattr(pq, "ParquetWriter", open_full)
    with pytest.raises(PublishError, match=r"disk .* is full"):
        write_parts(text_rows(2000, 1000), TEXT, tmp_path / "t", Limits(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_comes_back_otherwise_is_refused(tmp_path, monkeypatch):
    close = pq.ParquetWriter.close
    content = random.Random(1).randbytes(50_000)

    def close_and_spoil(writer):
        close(writer)
        path = Path(str(writer.where))
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(content[1000:1100], bytes(100)))

    monkeypatch.setattr(pq.ParquetWriter, "close", close_and_spoil)
    with pytest.raises(PublishError, match="came back with other values in image"):
        write_parts([volume_row(0, content)], VOLUMES, tmp_path / "v", Limits(), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 300_000_001])
def test_row_groups_that_the_viewer_cannot_read_are_refused(size):
    with pytest.raises(PublishError, match="300,000,000"):
        Limits(row_group=size)


MEMORY = """
import os, sys
from pathlib import Path
from reasonknee_hf.publish.parquet import Limits, write_parts
from reasonknee_hf.publish.schema import volume_features

features = volume_features("embed", masks=False)
count, size, shard = (int(word) for word in sys.argv[1:])

def rows():
    for number in range(count):
        row = dict.fromkeys(features, "x") | {"knee_side": "left"}
        yield row | {"image": {"bytes": os.urandom(size), "path": "a.nii.gz"}}

parts = write_parts(rows(), features, Path("v"), Limits(shard=shard), {})
for part in parts:
    print(part.stat().st_size)
# ru_maxrss survives exec: it would show the peak of the process that started this one.
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024)
"""


@pytest.mark.parametrize("count", [6, 18])
def test_memory_does_not_grow_with_the_number_of_scans(tmp_path, count):
    *sizes, peak = map(int, in_fresh_process(MEMORY, tmp_path, str(count), "22000000", "200000000").split())
    assert max(sizes) <= 1.01 * 200_000_000
    assert peak < 500


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path):
    *sizes, peak = map(int, in_fresh_process(MEMORY, tmp_path, "40", "60000000", "200000000").split())
    assert sum(sizes) > 2**31
    assert max(sizes) <= 1.3 * 200_000_000
    assert peak < 1000


def test_numpy_values_are_written_as_numbers(tmp_path):
    features = Features({"bbox": [Value("int32")], "grade": Value("int8")})
    rows = [{"bbox": list(np.arange(6)), "grade": np.int8(2)}]
    (path,) = write_parts(rows, features, tmp_path / "n", Limits(), {})
    assert pq.read_table(path).to_pylist() == [{"bbox": [0, 1, 2, 3, 4, 5], "grade": 2}]


@pytest.mark.skipif(not parquet._CHUNKED, reason="this pyarrow does not cut pages by content")
@pytest.mark.parametrize(("scans", "part"), [(200, 5), pytest.param(1600, 20, marks=pytest.mark.slow)])
def test_what_did_not_change_is_not_sent_again(scans, part, tmp_path):
    """Pages end where the content says so: one scan less changes few bytes, wherever it was."""
    from support import text_release

    from reasonknee_hf.publish.convert import convert

    release = text_release(tmp_path / "release", scans=scans)
    patients = [str(9000001 + number) for number in range(scans)]
    options = {"source": str(release), "on_error": "null", "volumes": "none"}
    contents = []
    for chosen in (patients, patients[:9] + patients[10:]):
        done = convert(tmp_path / str(len(chosen)), "full", patients=chosen, **options)
        paths = [tmp_path / str(len(chosen)) / name for name in done.files]
        for path in paths:
            told = pq.read_metadata(path).metadata
            assert json.loads(told[b"content_defined_chunking"])["min_chunk_size"] == 1 << 18
        contents.append(b"".join(path.read_bytes() for path in paths))
    old, new = contents
    known = {old[at : at + 256] for at in range(0, len(old), 256)}
    at = anew = 0
    while at < len(new):
        same = new[at : at + 256] in known
        at, anew = (at + 256, anew) if same else (at + 1, anew + 1)
    assert len(new) > 1_000_000
    assert anew < len(new) / part
