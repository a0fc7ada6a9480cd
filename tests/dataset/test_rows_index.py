"""The row index: built from records, stored, mapped, looked up."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.dataset.index import IndexBuilder, RowIndex
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.knee.description import KNEE
from reasonknee_hf.knee.moaks import QUESTIONS


def content_of(values: list[dict[str, Any]]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")


def index_of(content: bytes) -> RowIndex:
    builder = IndexBuilder(KNEE.question_of)
    for record in iter_records([content], name="train.json"):
        builder.add(record)
    return builder.finish(identity="data/train.json@abc", size=len(content))


def published(scans: int, questions: int = 62) -> list[dict[str, Any]]:
    return [
        {"image": f"/data/images/{scan}.nii.gz", "prompt": f'Answer: {{"{QUESTIONS[number].prompt_key}": 0}}'}
        for scan in range(scans)
        for number in range(1, questions + 1)
    ]


_NAMES = st.one_of(st.none(), st.integers(0, 2), st.sampled_from(["/a", "/b\n", "/\ud800", "", "/ä"]))
_PROMPTS = st.sampled_from(['{"ACL": 0}', '{"PCL": 0}', "unknown", None])
_VALUES = st.lists(st.builds(lambda i, p: {"image": i, "prompt": p}, _NAMES, _PROMPTS), max_size=12)


@settings(deadline=None)
@given(_VALUES)
def test_agrees_with_the_records_and_survives_storage(values: list[dict[str, Any]]) -> None:
    content = content_of(values)
    index = RowIndex.from_buffer(index_of(content).to_bytes())
    assert len(index) == len(values)
    assert (index.identity, index.size) == ("data/train.json@abc", len(content))
    names = [value["image"] if isinstance(value["image"], str) else "" for value in values]
    assert list(index.images) == list(dict.fromkeys(names))
    for row, value in enumerate(values):
        start, stop = index.span(row)
        assert json.loads(content[start:stop].decode("utf-8", "surrogatepass")) == value
        assert index.images[index.image_numbers[row]] == names[row]
        expected = {'{"ACL": 0}': 60, '{"PCL": 0}': 61}.get(value["prompt"], 0)
        assert index.question_ids[row] == expected
    rows = [index.rows_of(number).tolist() for number in range(len(index.images))]
    assert rows == [[k for k, name in enumerate(names) if name == image] for image in index.images]
    assert index.counts.tolist() == [len(some) for some in rows]
    assert index.grouped == ([k for some in rows for k in some] == list(range(len(values))))


def test_published_layout() -> None:
    index = index_of(content_of(published(scans=3)))
    assert len(index) == 186
    assert index.counts.tolist() == [62, 62, 62]
    assert index.rows_of(1).tolist() == list(range(62, 124))
    assert index.question_ids[:62].tolist() == list(range(1, 63))
    assert index.grouped
    assert repr(index) == "RowIndex(186 rows, 3 images, 'data/train.json@abc')"


def test_is_compact_and_used_where_it_lies(tmp_path: Path) -> None:
    index = index_of(content_of(published(scans=200)))
    stored = index.to_bytes()
    assert len(stored) < 20 * len(index)
    (tmp_path / "index").write_bytes(stored)
    with (tmp_path / "index").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    again = RowIndex.from_buffer(mapped)
    place = np.frombuffer(mapped, np.uint8)
    for column in ("offsets", "lengths", "image_numbers", "question_ids"):
        values = getattr(again, column)
        assert np.shares_memory(values, place)
        assert values.ctypes.data % 2 == 0
        assert not values.flags.writeable
        assert (values == getattr(index, column)).all()
    assert pickle.loads(pickle.dumps(index)).to_bytes() == stored == again.to_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "not a row index"),
        (lambda data: b"PAR1" + data[4:], "not a row index"),
        (lambda data: data[:20], "the row index is damaged"),
        (lambda data: data[:30] + b"?" + data[31:], "the row index is damaged"),
        (lambda data: data[:-1], "the row index is damaged"),
        (lambda data: data + b"x", "the row index is damaged"),
    ],
)
def test_what_is_no_index_is_refused(damage: Any, message: str) -> None:
    stored = index_of(content_of(published(scans=1))).to_bytes()
    with pytest.raises(AnnotationError, match=f"train.idx: .*{message}.*Delete it"):
        RowIndex.from_buffer(damage(stored), name="train.idx")


def test_another_version_is_refused() -> None:
    stored = index_of(content_of(published(scans=1))).to_bytes()
    header = b'{"version": 99}'
    rest = len(header).to_bytes(4, "little") + header
    with pytest.raises(AnnotationError, match="has version 99, not 2"):
        RowIndex.from_buffer(stored[:8] + zlib.crc32(rest).to_bytes(4, "little") + rest)


def test_records_must_come_in_order() -> None:
    first, second = iter_records([content_of(published(1, questions=2))], name="a")
    builder = IndexBuilder(KNEE.question_of)
    with pytest.raises(ValueError, match="record 1 after 0 records"):
        builder.add(second)
    builder.add(first)
    builder.add(second)
    assert len(builder) == 2


def test_a_slice_seeks_straight_to_its_bytes(tmp_path: Path) -> None:
    content = content_of(published(scans=100))
    (tmp_path / "train.json").write_bytes(content)
    index = index_of(content)
    start, _ = index.span(5_000)
    with (tmp_path / "train.json").open("rb") as file:
        file.seek(start)
        records = iter_records(
            iter(lambda: os.read(file.fileno(), 4096), b""), name="t", start=start, index=5_000
        )
        record = next(records)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) - start <= 8192
    assert (record.index, record.value) == (5_000, json.loads(content)[5_000])
