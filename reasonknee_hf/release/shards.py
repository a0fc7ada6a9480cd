"""Which records belong to which shard of an annotation array, and how to read just those.

A shard is an equal share of the file in bytes, moved to scan boundaries: it owns every scan whose first record begins
inside the share. That needs no index, keeps all rows of a scan together, and a reader fetches little more than its
share. It relies on the records of a scan lying together in the file, as they are published; records of one scan in
two places are still read exactly once each, by two shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.rows.json_array import RawRecord, iter_records, iter_share

# Each divides evenly among the usual numbers of ranks and workers (1, 2, 3, 4, 6, 8, 12, 24, …).
_COUNTS = (192, 96, 48, 24)

# A record is about 2 kB: this finds the one before a border, and the rest of a scan behind one, at the first try.
_LOOK_BACK = 16 * 1024
_LOOK_AHEAD = 192 * 1024


def shard_count(scans: int) -> int:
    """How many shards a split of so many scans has: 24 to 192, at most one a scan where there are enough scans."""
    return next((count for count in _COUNTS if count <= scans), _COUNTS[-1])


def share(size: int, index: int, count: int) -> tuple[int, int]:
    """The half-open range of the `index`-th of `count` equal shares of `range(size)`."""
    return size * index // count, size * (index + 1) // count


def joined(shards: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Half-open ranges, with those that lie end to end made one, so that one request reads them."""
    low = high = None
    for start, stop in shards:
        if low is not None and start == high:
            high = stop
            continue
        if low is not None and high is not None:
            yield low, high
        low, high = start, stop
    if low is not None and high is not None:
        yield low, high


def read_records(tree: Tree, path: str, low: int, high: int) -> Iterator[RawRecord]:
    """The records of all scans whose first record begins in bytes `[low, high)` of an annotation array.

    Args:
        tree: Where the file lies.
        path: The file.
        low, high: Any byte offsets; shares that lie end to end give every record exactly once.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    size = tree.size(path)
    run: object = None  # what the previous record says of its volume
    owned = False
    for record in _from_before(tree, path, low, high, size):
        image = record.value.get("image")
        if run is None or image != run:
            if record.offset >= high:
                return
            owned, run = record.offset >= low, image
        if owned:
            yield record


def _from_before(tree: Tree, path: str, low: int, high: int, size: int) -> Iterator[RawRecord]:
    """Records from one that begins before `low` on, or from the first one of the file."""
    back = _LOOK_BACK
    while low > back:
        records = iter_share(_chunks(tree, path, low - back, high, size), name=path, start=low - back, stop=size)
        first = next(records, None)
        if first is not None and first.offset < low:
            yield first
            yield from records
            return
        back *= 4
    yield from iter_records(_chunks(tree, path, 0, high, size), name=path)


def _chunks(tree: Tree, path: str, start: int, high: int, size: int) -> Iterator[bytes]:
    """Bytes from `start` on, asked for as far as they are likely needed, and further when they are."""
    ahead = _LOOK_AHEAD
    while start < size:
        stop = min(size, max(high, start) + ahead)
        whole = start == 0 and stop == size
        yield from tree.stream(path) if whole else tree.stream(path, start, stop)
        start, ahead = stop, ahead * 4
