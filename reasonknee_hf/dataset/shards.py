"""Which records belong to which shard of an annotation array, and how to read just those.

A shard is an equal share of the file in bytes, moved to scan boundaries: it owns every scan whose first record begins
inside the share. That needs no index, keeps all rows of a scan together, and a reader fetches little more than its
share. It relies on the records of a scan lying together in the file, as they are published; records of one scan in
two places are still read exactly once each, by two shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.contract import Records
from reasonknee_hf.dataset.index import RowIndex
from reasonknee_hf.dataset.json_record import Parsed, RawRecord, known_record
from reasonknee_hf.dataset.record_forms import Form, form_of
from reasonknee_hf.hub.tree import Tree

# Each divides evenly among the usual numbers of ranks and workers (1, 2, 3, 4, 6, 8, 12, 24, …).
_COUNTS = (192, 96, 48, 24)
# Without an index a shard costs about half a scan more than it has, at either end: 3 % at this size.
_SCANS_PER_SHARD = 24

# A record is about 2 kB: this finds the one before a border, and the rest of a scan behind one, at the first try.
_LOOK_BACK = 16 * 1024
_LOOK_AHEAD = 32 * 1024
_GAP = 4 * 1024
_FIRST_AFTER_SEEK = 256 * 1024
_OURS = Records()


def shard_count(scans: int) -> int:
    """How many shards a split of so many scans has: 24 to 192, but no more than scans."""
    fitting = (count for count in _COUNTS if count * _SCANS_PER_SHARD <= scans)
    return next(fitting, max(1, min(_COUNTS[-1], scans)))


def share(size: int, index: int, count: int) -> tuple[int, int]:
    """The half-open range of the `index`-th of `count` equal shares of `range(size)`."""
    return size * index // count, size * (index + 1) // count


def read_records(
    tree: Tree,
    path: str,
    low: int,
    high: int,
    resume: tuple[int, str | None] | None = None,
    *,
    records: Records = _OURS,
    form: Form | None = None,
) -> Iterator[tuple[RawRecord | None, RawRecord]]:
    """The records of all scans whose first record begins in bytes `[low, high)` of an annotation array.

    Args:
        tree: Where the file lies.
        path: The file.
        low, high: Any byte offsets; shares that lie end to end give every record exactly once.
        resume: To go on behind a record that was given: the byte behind it, and the volume that it names.
        records: What its records name things.
        form: How they are cut, where that is known.

    Yields:
        The first record of the scan (of a resumed scan, `None`), and the record.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    size = tree.size(path)
    borders = _Borders(low, high, records)
    form = form or form_of(tree, path, records)
    if resume is None:
        parsed = _from_before(tree, path, low, high, size, form)
    else:
        start, run = resume
        borders.resume(run)
        chunks = _chunks(tree, path, start, high, size, first=_FIRST_AFTER_SEEK)
        parsed = form.behind(chunks, start)
    for some in parsed:
        yield from borders.between(some)
        if borders.passed:
            return


def read_values(
    tree: Tree, path: str, low: int, high: int, *, records: Records = _OURS
) -> Iterator[list[dict[str, Any]]]:
    """What the records of [`read_records`] say, many at once."""
    borders = _Borders(low, high, records)
    for some in _from_before(tree, path, low, high, tree.size(path), form_of(tree, path, records)):
        if borders.are_around(some):
            yield some.values
        else:
            yield [record.value for _, record in borders.between(some)]
        if borders.passed:
            return


class _Borders:
    """Finds the records of the scans that begin in bytes `[low, high)`, among records in the order of the file."""

    def __init__(self, low: int, high: int, records: Records) -> None:
        self._low, self._high = low, high
        self._image_of = records.image_of
        self._head: RawRecord | None = None
        self._image: Any = None  # that the last record names
        self._begun = self._inside = False
        self.passed = False

    def resume(self, image: str | None) -> None:
        """The next record is one behind a record that belongs here and names this volume."""
        self._image, self._begun, self._inside = image, True, True

    def between(self, some: Parsed) -> Iterator[tuple[RawRecord | None, RawRecord]]:
        """Those of the next records that belong here, each with the first one of its scan."""
        head, run, begun, inside = self._head, self._image, self._begun, self._inside
        image_of = self._image_of
        for record in some.records():
            image = image_of(record.value)
            if not begun or image != run:
                if not record.begins_before(self._high):
                    self.passed = True
                    return
                head, run, begun = record, image, True
                inside = inside or not record.begins_before(self._low)
            if inside:
                yield head, record
        self._head, self._image, self._begun, self._inside = head, run, begun, inside

    def are_around(self, some: Parsed) -> bool:
        """Whether all of the next records belong here, as far as that can be told without looking at each."""
        if not self._inside or some.piece.end > self._high:
            return False
        self._image = self._image_of(some.values[-1])
        return True


def scan_reader(
    tree: Tree, path: str, form: Form, index: RowIndex, rows: Sequence[npt.NDArray[np.int64]]
) -> Callable[[int, int], RawRecord]:
    """Reads the records of a few scans, by one request a scan, and gives a function that parses one of them.

    Args:
        tree, path: The annotation array.
        form: How its records are cut.
        index: Its index.
        rows: Row numbers of each scan.

    Returns:
        `record(scan, place)`: the record at `rows[scan][place]`.
    """
    spans: list[tuple[int, int]] = []
    where: list[list[tuple[int, int]]] = []  # per row: which span, and which record of it
    counts: list[int] = []  # records of each span
    for some in rows:
        places: list[tuple[int, int]] = []
        for row in some:
            start, stop = index.span(int(row))
            # Records of one scan lie together; where they do not, each stretch is a request of its own.
            if not places or not 0 <= start - spans[-1][1] <= _GAP:
                spans.append((start, stop))
                counts.append(0)
            spans[-1] = (spans[-1][0], stop)
            places.append((len(spans) - 1, counts[-1]))
            counts[-1] += 1
        where.append(places)
    stretches = tree.ranges(path, spans)
    parsed: dict[int, list[Any] | None] = {}

    def record(scan: int, place: int) -> RawRecord:
        stretch, number = where[scan][place]
        if stretch not in parsed:
            values = form.values(stretches[stretch])
            # Anything else than a comma between the records, as in lines: one by one.
            parsed[stretch] = values if values is not None and len(values) == counts[stretch] else None
        row = int(rows[scan][place])
        start, stop = index.span(row)
        values, low = parsed[stretch], spans[stretch][0]
        if values is not None and type(values[number]) is dict:
            return known_record(values[number], start, stop, row)
        return form.one(stretches[stretch][start - low : stop - low], start, row)

    return record


def _from_before(tree: Tree, path: str, low: int, high: int, size: int, form: Form) -> Iterator[Parsed]:
    """Records from one that begins before `low` on, or from the first one of the file."""
    back = _LOOK_BACK
    while low > back:
        start = low - back
        parsed = form.found(_chunks(tree, path, start, high, size), start)
        first = next(parsed, None)
        if first is not None and first.piece.start < low:
            yield first
            yield from parsed
            return
        back *= 4
    yield from form.all(_chunks(tree, path, 0, high, size))


def _chunks(
    tree: Tree, path: str, start: int, high: int, size: int, first: int | None = None
) -> Iterator[bytes]:
    """Bytes from `start` on, asked for as far as they are likely needed, and further when they are.

    Args:
        first: Most bytes of the first request: whoever seeks to a row may want only a few.
    """
    ahead = _LOOK_AHEAD
    while start < size:
        stop = min(size, max(high, start) + ahead)
        if first is not None:
            stop, first = min(stop, start + first), None
        else:
            ahead *= 4
        whole = start == 0 and stop == size
        yield from tree.stream(path) if whole else tree.stream(path, start, stop)
        start = stop
