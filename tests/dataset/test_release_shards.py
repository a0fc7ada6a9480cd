"""Shares of an annotation file moved to the borders of scans: every record belongs to exactly one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasonknee_hf.dataset import shards
from reasonknee_hf.dataset.json_record import Parsed
from reasonknee_hf.dataset.shards import read_records, read_values
from reasonknee_hf.hub.trees.folder_tree import FsspecTree

_TEXT = st.text(st.sampled_from('{}[]",: \\aé'), max_size=40)
_RECORDS = st.fixed_dictionaries(
    {"image": st.sampled_from(["a", "b", "c", None]), "prompt": _TEXT},
    optional={"cot": _TEXT, "final_diagnosis": st.dictionaries(_TEXT, st.integers(), max_size=2)},
)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records are parsed together, so that borders fall between pieces and into them."""
    monkeypatch.setattr("reasonknee_hf.dataset.json_array._PIECE", 256)


def tree_of(records: list[dict[str, Any]]) -> tuple[FsspecTree, int]:
    content = json.dumps(records, ensure_ascii=False).encode()
    fsspec.filesystem("memory").pipe("/shards/train.json", content)
    return FsspecTree("memory://shards"), len(content)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), records=st.lists(_RECORDS, min_size=1, max_size=30))
def test_shares_give_whole_scans_once_one_by_one_or_many_at_once(
    data: st.DataObject, records: list[dict[str, Any]], small_pieces: None
) -> None:
    tree, size = tree_of(records)
    places = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    found: list[dict[str, Any]] = []
    for low, high in itertools.pairwise([0, *places, size]):
        one_by_one = list(read_records(tree, "train.json", low, high))
        for head, record in one_by_one:
            assert head is not None
            assert head.value["image"] == record.value["image"]
            assert low <= head.offset < high
        values = [value for some in read_values(tree, "train.json", low, high) for value in some]
        assert values == [record.value for _, record in one_by_one]
        found += values
    assert found == records


def test_only_pieces_at_the_borders_are_looked_at_record_by_record(
    small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"image": str(number // 10), "prompt": "x" * 60} for number in range(4000)]
    tree, size = tree_of(records)
    looked_at: list[int] = []
    between = shards._Borders.between

    def counted(borders: shards._Borders, some: Parsed) -> Iterator[Any]:
        looked_at.append(len(some.values))
        return between(borders, some)

    monkeypatch.setattr(shards._Borders, "between", counted)
    given = sum(map(len, read_values(tree, "train.json", size // 4, 3 * size // 4)))
    assert given == pytest.approx(2000, abs=10)
    assert sum(looked_at) < 300  # a look back of 16 KiB
