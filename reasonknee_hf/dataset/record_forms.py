"""How the records of an annotation file are cut: as JSON, or as lines of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from reasonknee_hf.dataset.contract import Records, Release
from reasonknee_hf.dataset.csv_table import CsvForm, record_ends
from reasonknee_hf.dataset.json_array import iter_parsed, parsed_behind, parsed_from
from reasonknee_hf.dataset.json_record import Parsed, RawRecord, read_record
from reasonknee_hf.dataset.json_text import as_array, parser
from reasonknee_hf.hub.tree import Tree

_FIRST_LINE, _LONGEST_LINE = 16 << 10, 1 << 20  # bytes of names: as many as are asked for first, and at most


class Form(Protocol):
    """Reads the records of one file, many at once, from chunks of its bytes."""

    def all(self, chunks: Iterable[bytes]) -> Iterator[Parsed]:
        """The records of the file, from its first byte on."""

    def found(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """The records from the first one on that is found from `start` on, any byte of the file."""

    def behind(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """The records behind one that ends at `start`."""

    def values(self, stretch: bytes) -> list[Any] | None:
        """The records of a stretch that holds whole ones; `None` where only one by one can be read."""

    def one(self, data: bytes, offset: int, index: int) -> RawRecord:
        """The record whose bytes are known."""


class JsonForm:
    """Records that are JSON objects, in any of the layouts of `json_array`.

    Args:
        path: What to call the file in errors.
        records: What its records name things.
    """

    def __init__(self, path: str, records: Records) -> None:
        self._path, self._keys = path, records.keys
        self._parse = parser()

    def all(self, chunks: Iterable[bytes]) -> Iterator[Parsed]:
        """As in [`Form`]."""
        return iter_parsed(chunks, name=self._path, keys=self._keys)

    def found(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """As in [`Form`]."""
        return parsed_from(chunks, name=self._path, start=start, keys=self._keys)

    def behind(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """As in [`Form`]."""
        return parsed_behind(chunks, name=self._path, start=start)

    def values(self, stretch: bytes) -> list[Any] | None:
        """As in [`Form`]."""
        return self._parse(as_array(stretch))

    def one(self, data: bytes, offset: int, index: int) -> RawRecord:
        """As in [`Form`]."""
        return read_record(data, name=self._path, offset=offset, index=index)


def form_of(tree: Tree, path: str, records: Records) -> Form:
    """How the records of a file are cut. Of a table the first line is read.

    Raises:
        AnnotationError: The first line of a table is not one.
    """
    if not path.casefold().endswith(".csv"):
        return JsonForm(path, records)
    head, size, asked = b"", tree.size(path), _FIRST_LINE
    while True:
        head += b"".join(tree.stream(path, len(head), min(size, asked)))
        ends = record_ends(head)
        if len(ends) or asked >= min(size, _LONGEST_LINE):
            break
        asked = min(8 * asked, _LONGEST_LINE)
    return CsvForm(head[: ends[0]] if len(ends) else head, path, records.member, records.keys)


def records_of(release: Release, path: str) -> Iterator[RawRecord]:
    """All records of an annotation file of a release, in order.

    Raises:
        AnnotationError: The file is not what its form should be. Records before that place have been given.
    """
    form = form_of(release.tree, path, release.dataset.records(path))
    for some in form.all(release.tree.stream(path)):
        yield from some.records()
