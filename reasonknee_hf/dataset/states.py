"""Saved states of streams: whether one fits, and those of several ranks and workers made into one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from reasonknee_hf.dataset.contract import Records
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.errors import StateError

STATE_VERSION = 2
ANY_PART = "any"
"""The part of a state that [`merge_states`] made: whoever reads a shard takes its place."""

# Counters of what `datasets` wraps around ours that say nothing about which rows come next …
_PASSED = ("previous_state_example_idx", "batch_idx")
# … and those of a batch that has been given in part.
_IN_A_BATCH = ("num_examples_since_previous_state", "num_chunks_since_previous_state", "cropped_chunk_length")


class Place(NamedTuple):
    """How far one shard has been read.

    Attributes:
        row: How many of its rows have been passed; -1 when it is done.
        offset: In published order, the byte behind the last of them; 0 before the first.
        image: The volume that the last of them names.
    """

    row: int = 0
    offset: int = 0
    image: str | None = None


DONE = Place(-1)


class Passed:
    """Where a shard stands behind a row it gave.

    The place is worked out when it is asked for: where a record ends takes a closer look at the file.
    """

    __slots__ = ("record", "records", "row")

    def __init__(self, row: int, record: RawRecord | None = None, records: Records | None = None) -> None:
        self.row = row
        self.record = record  # the last one, in published order
        self.records = records  # what it names things

    def place(self) -> Place:
        """The place itself."""
        if self.record is None or self.records is None:
            return Place(self.row)
        return Place(self.row, self.record.end, self.records.image_of(self.record.value))


class Places:
    """How far shards have been read; copied or pickled, it is text, which is not worked out before."""

    def __init__(self, places: Mapping[str, Place | Passed]) -> None:
        self.places = places

    def __str__(self) -> str:
        places = {name: p.place() if isinstance(p, Passed) else p for name, p in self.places.items()}
        return json.dumps(places)

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def read_places(text: Any) -> dict[str, Place]:
    """What [`Places`] wrote.

    Raises:
        StateError: It is something else.
    """
    try:
        return {name: Place(*place) for name, place in json.loads(str(text)).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StateError(f"the places of a state cannot be read ({error}): {str(text)[:80]!r}.") from None


def misfit(ours: Any, theirs: Any, name: str = "it") -> str | None:
    """Where a state has not the form of ours, in words; `None` where it fits."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict) or ours.keys() != theirs.keys():
            held = ", ".join(map(str, theirs)) if isinstance(theirs, dict) else repr(theirs)
            return f"{name} holds {held} where this stream has {', '.join(ours)}"
        for key in ours.keys() & {"type", "version"}:
            if ours[key] != theirs[key]:
                return f"{name} is of {key} {theirs[key]!r}, not {ours[key]!r}"
        pairs = [(ours[key], theirs[key], key) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list):
        pairs = [(one, other, name) for one, other in zip(ours, theirs, strict=False)]
    else:
        return None
    return next((found for pair in pairs if (found := misfit(*pair)) is not None), None)


def merge_states(states: Iterable[Any]) -> dict[str, Any]:
    """One state out of those of all ranks and loader workers, to go on with any other number of them.

        state = reasonknee_hf.merge_states([state_of_rank_0, state_of_rank_1])
        stream.load_state_dict(state)  # in every rank, before it is divided or given to a loader

    Every row that none of them had given comes once. Shards stay as they were until the epoch ends, so ranks may differ
    by one of them.

    Args:
        states: What `state_dict()` gave, of each rank's stream or `StatefulDataLoader`, at the same step.

    Raises:
        StateError: No states of ours, not those of one stream and epoch, one is missing, or they cannot be told apart
            from rows: a batch was given in part, steps are equal, or a transform counts rows.

    Examples:
        >>> from datasets.distributed import split_dataset_by_node
        >>> ds = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> parts = [split_dataset_by_node(ds, rank, 3) for rank in range(3)]
        >>> ds.load_state_dict(rk.merge_states([part.state_dict() for part in parts]))
    """
    found = [state for given in states for state in _of_streams(given)]
    if not found:
        raise StateError("these are no states of streams: give what state_dict() of each rank gave.")
    if any(state.keys() != {"examples_iterable", "epoch"} for state in found):
        raise StateError(
            "states of a training stream count the rows of equal steps: resume with the same ranks."
        )
    merged: dict[str, Any] = _merged(found, "the state")
    return merged


def _of_streams(given: Any) -> Iterator[dict[str, Any]]:
    """The states of streams inside whatever a loader keeps them in."""
    if isinstance(given, dict) and given.get("_steps_since_snapshot"):
        raise StateError(
            "the loader has given batches since its snapshot: make it with snapshot_every_n_steps=1."
        )
    if isinstance(given, dict) and {"examples_iterable", "epoch"} <= given.keys():
        yield given
    elif isinstance(given, (dict, list, tuple)):
        for part in given.values() if isinstance(given, dict) else given:
            yield from _of_streams(part)


def _merged(states: list[Any], name: str) -> Any:
    first = states[0]
    if name == "previous_state":
        return None
    if isinstance(first, dict) and all(isinstance(s, dict) and s.keys() == first.keys() for s in states):
        if first.get("type") == "RowsIterable":
            return _merged_rows(states)
        return {key: _merged([state[key] for state in states], key) for key in first}
    if isinstance(first, list) and all(isinstance(s, list) and len(s) == len(first) for s in states):
        return [_merged([*some], name) for some in zip(*states, strict=True)]
    if name in _PASSED and all(type(state) is int for state in states):
        return max(states)
    if any(state != first for state in states) or (name in _IN_A_BATCH and first):
        raise StateError(
            f"these states cannot be merged: {name} is {' and '.join(map(repr, dict.fromkeys(map(str, states))))}. That"
            " takes the states of one stream in one epoch, taken behind whole batches, and no transform that counts."
        )
    return first


def _merged_rows(states: list[dict[str, Any]]) -> dict[str, Any]:
    same = ("type", "version", "source", "split", "options", "epoch")
    merged = {key: _merged([state[key] for state in states], key) for key in same}
    if "equal_steps=" in merged["options"]:
        raise StateError(
            "with equal_steps= other ranks would not take equal steps: resume with the same ones."
        )
    end, parts = Fraction(0), [(*map(int, state["part"].split("/")),) for state in states if state["shards"]]
    for low, high in sorted((Fraction(c, w), Fraction(c + 1, w)) for c, w in parts):
        if low > end:
            break
        end = max(end, high)
    if end < 1:
        raise StateError(f"the state of the rank or worker that reads on at {end} of the split is missing.")
    begun = [state for state in states if state["places"] is not None and state["shards"]]
    if not begun:
        return states[0] | {"part": ANY_PART}
    places: dict[str, Place] = {}
    for state in begun:
        for shard, place in read_places(state["places"]).items():
            # One that a worker has not touched since it was loaded is older than what another says of the same shard.
            if places.get(shard) != DONE and (place == DONE or place.row >= places.get(shard, Place()).row):
                places[shard] = place
    shards = _merged([state["shards"] for state in begun], "the number of shards")
    return {**merged, "part": ANY_PART, "shards": shards, "places": str(Places(places))}
