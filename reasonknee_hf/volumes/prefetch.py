"""Decode the next scan while the current one is used."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reasonknee_hf.volumes.volume import KneeVolume

Row = TypeVar("Row")
logger = logging.getLogger(__name__)
_SEEN = 64  # volumes remembered as asked for


def row_volumes(row: Mapping[str, Any]) -> list[KneeVolume]:
    """The volumes among the values of a row."""
    return [value for value in row.values() if isinstance(value, KneeVolume)]


def prefetched(
    rows: Iterable[Row],
    *,
    volumes: Callable[[Row], Iterable[KneeVolume]] = row_volumes,  # type: ignore[assignment]
    box: Callable[[Row], list[int] | None] | None = None,
    ahead: int = 1,
    max_rows: int = 1000,
) -> Iterator[Row]:
    """Yields the same rows in the same order, while one background thread loads the volumes of the next scan.

    The thread fetches and inflates at the same time (the inflaters release the GIL) and leaves the voxels in
    the cache of the process, where the row finds them. It never holds more than `ahead` scans that no row has
    reached yet. It ends with the iterator, at the latest when that is closed or collected. A failure to load
    is not raised
    here: the row that touches the volume meets it, by the same name.

    Args:
        rows: any rows, best scan by scan. They are read ahead until a new scan shows up.
        volumes: which volumes of a row to load.
        box: for rows that look at nothing but a box: a volume is then loaded only up to the farthest box
            among its rows in the read-ahead. For scan order; None for a row that needs all.
        ahead: how many scans to load ahead; 0 switches the thread off.
        max_rows: how many rows to read ahead at most.
    """
    if ahead < 1:
        yield from rows
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="reasonknee-prefetch")
    try:
        yield from _reading_ahead(iter(rows), volumes, box, ahead, max_rows, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class _Scan:
    """Volumes that showed up together for the first time, and what their rows want of them."""

    volumes: list[KneeVolume]
    boxes: list[list[int] | None] = field(default_factory=list)
    loading: Future[None] | None = None


def _reading_ahead(
    rows: Iterator[Row],
    volumes: Callable[[Row], Iterable[KneeVolume]],
    box: Callable[[Row], list[int] | None] | None,
    ahead: int,
    max_rows: int,
    pool: ThreadPoolExecutor,
) -> Iterator[Row]:
    buffer: deque[tuple[Row, _Scan | None]] = deque()  # a row, and the scan that it is the first row of
    coming: deque[_Scan] = deque()  # scans in the buffer, in order
    seen: dict[Any, _Scan] = {}
    wanted = ahead + (box is not None)  # the boxes of a scan are all known once the scan after it shows up
    exhausted = False
    while True:
        while not exhausted and len(coming) < wanted and len(buffer) < max_rows:
            row = next(rows, _END)
            if isinstance(row, _End):
                exhausted = True
                break
            new = _first_seen(volumes(row), seen)
            if new is not None:
                coming.append(new)
            for volume in volumes(row):
                seen[_name(volume)].boxes.append(box(row) if box is not None else None)
            buffer.append((row, new))
        ready = len(coming) if exhausted or box is None else len(coming) - 1
        for scan in list(coming)[: min(ready, ahead)]:
            if scan.loading is None:
                scan.loading = pool.submit(_load, scan)
        if not buffer:
            return
        row, first_of = buffer.popleft()
        if first_of is not None:
            coming.popleft()
            if box is not None and first_of.loading is not None:
                first_of.loading.result()  # else the row would start to read a smaller part by itself
        yield row


class _End:
    """The end of the rows."""


_END: Any = _End()


def _name(volume: KneeVolume) -> tuple[Any, ...]:
    return (
        (volume.path, volume.mask) if volume.path is not None else (id(volume.storage["bytes"]), volume.mask)
    )


def _first_seen(volumes: Iterable[KneeVolume], seen: dict[Any, _Scan]) -> _Scan | None:
    new = [volume for volume in volumes if _name(volume) not in seen]
    if not new:
        return None
    scan = _Scan(new)
    for volume in new:
        seen[_name(volume)] = scan
    while len(seen) > _SEEN:
        seen.pop(next(iter(seen)))
    return scan


def _load(scan: _Scan) -> None:
    ends = [box for box in scan.boxes if box is not None]
    some = bool(ends) and len(ends) == len(scan.boxes)
    union = [edge(box[i] for box in ends) for i, edge in enumerate((min, max) * 3)] if some else None
    for volume in scan.volumes:
        _load_quietly(volume, union)


def _load_quietly(volume: KneeVolume, box: list[int] | None) -> None:
    try:
        volume.load(box)
    except Exception as error:
        logger.debug("could not load %r ahead, its row will say why: %s", volume, error)
