"""One record of an annotation file: what it says and where it stands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from reasonknee_hf.dataset import json_text
from reasonknee_hf.errors import AnnotationError

RECORD_KEYS = ("image", "prompt")
"""Members that tell a record from any other object in the file."""


class RawRecord(NamedTuple):
    """One record as it stands in the file.

    Attributes:
        value: The parsed object, exactly what `json.loads` makes of it.
        index: Its number in the file, from 0; in a share of a file, its number in the share.
        offset: Where its `{` stands in the file, in bytes; in a table, where its line begins.
        end: The byte behind its `}`; in a table, behind its line.
        length: Its length in bytes.
    """

    value: dict[str, Any]
    index: int  # type: ignore[assignment]  # tuples have a method of this name
    piece: Piece  # parsed together with it, and its place there
    place: int

    @property
    def offset(self) -> int:
        return self.piece.spans()[self.place][0]

    @property
    def end(self) -> int:
        return self.piece.spans()[self.place][1]

    @property
    def length(self) -> int:
        start, end = self.piece.spans()[self.place]
        return end - start

    def begins_before(self, place: int) -> bool:
        """Whether it begins before a byte of the file; most often known without working out where it begins."""
        return self.piece.end <= place or self.offset < place

    def __repr__(self) -> str:
        return f"RawRecord(offset={self.offset}, length={self.length}, index={self.index}, {self.value!r})"


_new_record = partial(tuple.__new__, RawRecord)  # a third of the time of a call of the class


class Piece:
    """Where records stand that were parsed together. Where each begins is worked out when it is asked for."""

    __slots__ = ("_array", "_spans", "count", "end", "start")

    def __init__(self, array: bytes, start: int, end: int, count: int) -> None:
        self._array = array  # of their text
        self.start = start
        self.end = end
        self.count = count
        self._spans: list[tuple[int, int]] | None = None

    @classmethod
    def of(cls, spans: list[tuple[int, int]]) -> Piece:
        """A piece of records whose places are known."""
        piece = cls(b"", spans[0][0], spans[-1][1], len(spans))
        piece._spans = spans
        return piece

    def spans(self) -> list[tuple[int, int]]:
        """Where each record begins and ends in the file."""
        if self._spans is None:
            at, spans = self.start, json_text.spans(json_text.array_text(self._array), self.count)
            self._spans = [(at + start, at + end) for start, end in spans]
            self._array = b""
        return self._spans


class Parsed(NamedTuple):
    """Records that were parsed together.

    Attributes:
        values: What they say.
        piece: Where they stand.
        first: Number of the first one.
    """

    values: list[dict[str, Any]]
    piece: Piece
    first: int

    @classmethod
    def of_one(cls, record: RawRecord) -> Parsed:
        """A record that was read by itself."""
        return cls([record.value], record.piece, record.index)

    def records(self) -> Iterator[RawRecord]:
        numbers = itertools.count(self.first)
        return map(
            _new_record, zip(self.values, numbers, itertools.repeat(self.piece), range(self.piece.count))
        )


def read_record(data: bytes, *, name: str, offset: int, index: int) -> RawRecord:
    """The one record whose bytes are known, e.g. from an index.

    Args:
        data: The record's bytes.
        name: What to call the file in errors.
        offset: Where the record begins in the file.
        index: Its number.

    Raises:
        AnnotationError: `data` is not one JSON object.
    """
    try:
        value = json_text.loads(data)
    except json.JSONDecodeError as error:
        place = offset + len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        raise record_error(f"not valid JSON: {error.msg}", name, place, index) from None
    except (ValueError, RecursionError) as error:
        raise record_error(f"not valid JSON: {error}", name, offset, index) from None
    if not isinstance(value, dict):
        raise record_error(f"found {data[:20]!r} where a record, an object, should be", name, offset, index)
    return known_record(value, offset, offset + len(data), index)


def known_record(value: dict[str, Any], start: int, end: int, index: int) -> RawRecord:
    """A record that has been parsed, and whose place is known."""
    return _new_record((value, index, Piece.of([(start, end)]), 0))


def is_record(value: Any, keys: Sequence[str] = RECORD_KEYS) -> bool:
    return isinstance(value, dict) and all(key in value for key in keys)


def record_error(what: str, name: str, offset: int, index: int) -> AnnotationError:
    return AnnotationError(f"{name}, byte {offset}, record {index}: {what}.")
