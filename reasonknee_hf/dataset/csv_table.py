"""Reads the records of a table piece by piece, from its beginning or from the middle, in bounded memory.

A record is a line, or several where a cell in quotes holds line ends. Where a record ends is told by counting quotes:
inside a cell their number is odd, and a quote that belongs to the text is doubled.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.json_record import Parsed, Piece, RawRecord, known_record, record_error

_LONGEST = 1 << 22
_SURE = 1 << 16  # so many bytes must read as records where the first one is looked for
_QUOTED = rb'"[^"]*(?:""[^"]*)*'
_CELL = rb'(?:%b"|[^",\r\n]*)' % _QUOTED
_BEGUN = rb'(?:%b"?|[^",\r\n]*)' % _QUOTED


class CsvForm:
    """Records of one table: a mapping of its names to the text of the cells, null for empty ones.

    Args:
        names: Its first line.
        path: What to call it in errors.
        member: The member that a name stands for.
        needed: Members that must be there.

    Raises:
        AnnotationError: The first line lacks one of those, or names one member twice.
    """

    def __init__(
        self, names: bytes, path: str, member: Callable[[str], str] = str, needed: Sequence[str] = ()
    ) -> None:
        self._path = path
        self._names: list[str] = []
        self._names = [
            member(name.strip()) for name in self._cells([names.removeprefix(b"\xef\xbb\xbf")], [0], 0)[0]
        ]
        lacking = [name for name in needed if name not in self._names]
        if lacking:
            raise record_error(f"no column says {lacking[0]!r}; it has {', '.join(self._names)}", path, 0, 0)
        twice = [name for name in self._names if self._names.count(name) > 1 or not name]
        if twice:
            raise record_error(f"the first line has the name {twice[0]!r} twice, or an empty one", path, 0, 0)
        others = len(self._names) - 1
        self._record = re.compile(rb"(?:%b,){%d}%b(?:\r?\n)+" % (_CELL, others, _CELL))
        self._part = re.compile(rb"(?:%b,){0,%d}%b\r?" % (_CELL, others, _BEGUN))

    def all(self, chunks: Iterable[bytes]) -> Iterator[Parsed]:
        """The records of the file, from its first byte on."""
        return self._parsed(chunks, 0, is_head=True)

    def behind(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """The records behind one that ends at `start`."""
        return self._parsed(chunks, start)

    def found(self, chunks: Iterable[bytes], start: int) -> Iterator[Parsed]:
        """The records from the first one on that is found behind `start`, any byte of the file.

        That is the first line from which on whole records read, as many as 64 kB hold. A line inside a cell is none:
        what follows is a quote that ends its cell, where none may stand.
        """
        rest, data, searched = iter(chunks), b"", 0
        for chunk in rest:
            data += chunk
            while (line := data.find(b"\n", searched) + 1) and len(data) - line >= _SURE:
                if self._reads(data, line):
                    yield from self._parsed(_joined(data[line:], rest), start + line)
                    return
                searched = line
            if len(data) - searched > _LONGEST:
                raise self._error("no record begins within 4 MiB from here", start, 0)
        while line := data.find(b"\n", searched) + 1:
            if line < len(data) and self._reads(data, line):
                yield from self._parsed([data[line:]], start + line)
                return
            searched = line

    def values(self, stretch: bytes) -> list[dict[str, str | None]]:
        """The records of a stretch that holds whole ones."""
        ends = record_ends(stretch)
        return self._records(stretch, [*ends.tolist(), len(stretch)], 0, 0)[0]

    def one(self, data: bytes, offset: int, index: int) -> RawRecord:
        """The record whose bytes are known."""
        values, _ = self._records(data, [len(data)], offset, index)
        return known_record(values[0], offset, offset + len(data), index)

    def _reads(self, data: bytes, line: int) -> bool:
        """Whether whole records, and at most a part of one at the end, follow from here."""
        at, stop = line, min(len(data), line + 2 * _SURE)
        while record := self._record.match(data, at, stop):
            at = record.end()
        return self._part.fullmatch(data, at, stop) is not None

    def _parsed(self, chunks: Iterable[bytes], start: int, *, is_head: bool = False) -> Iterator[Parsed]:
        data, index = b"", 0
        for chunk in chunks:
            data += chunk
            ends = record_ends(data).tolist()
            if is_head and ends:
                data, start = data[ends[0] :], start + ends[0]
                ends, is_head = [end - ends[0] for end in ends[1:]], False
            if ends:
                for some in self._piece(data, ends, start, index):
                    yield some
                    index += len(some.values)
                data, start = data[ends[-1] :], start + ends[-1]
            if len(data) > _LONGEST:
                raise self._error("no record ends within 4 MiB from here", start, index)
        if data.strip() and not is_head:
            yield from self._piece(data, [len(data)], start, index)

    def _piece(self, data: bytes, ends: list[int], start: int, index: int) -> Iterator[Parsed]:
        values, spans = self._records(data, ends, start, index)
        if values:
            yield Parsed(values, Piece.of(spans), index)

    def _records(
        self, data: bytes, ends: list[int], start: int, index: int
    ) -> tuple[list[dict[str, str | None]], list[tuple[int, int]]]:
        """The records that end at some places, and where each stands in the file. Blank lines are none."""
        cut = [(low, high) for low, high in zip([0, *ends], ends) if data[low:high].strip()]  # noqa: B905
        spans = [(start + low, start + high) for low, high in cut]
        rows = self._cells([data[low:high] for low, high in cut], [low for low, _ in spans], index)
        wrong = next((n for n, row in enumerate(rows) if len(row) != len(self._names)), None)
        if wrong is not None:
            what = f"{len(rows[wrong])} cells, the first line names {len(self._names)}"
            raise self._error(what, spans[wrong][0], index + wrong)
        return [dict(zip(self._names, [cell or None for cell in row], strict=True)) for row in rows], spans

    def _cells(self, lines: list[bytes], offsets: list[int], index: int) -> list[list[str]]:
        rows: list[list[str]] = []
        try:
            texts = (line.decode("utf-8").rstrip("\r\n") for line in lines)
            rows.extend(csv.reader(texts, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._error(
                f"not a line of a table: {error}", offsets[len(rows)], index + len(rows)
            ) from None
        return rows

    def _error(self, what: str, offset: int, index: int) -> Exception:
        return record_error(what, self._path, offset, index)


def record_ends(data: bytes) -> npt.NDArray[np.int64]:
    """The places behind the line ends that stand in no quotes, from the beginning of a record on."""
    text = np.frombuffer(data, np.uint8)
    lines = np.flatnonzero(text == ord("\n"))
    quotes = np.flatnonzero(text == ord('"'))
    outside: npt.NDArray[np.int64] = lines[np.searchsorted(quotes, lines) % 2 == 0].astype(np.int64)
    return outside + 1


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
