"""Decode the next scan while the current one is used."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

Row = TypeVar("Row")
logger = logging.getLogger(__name__)
_SEEN = 64  # volumes remembered as asked for
_MOST_ROWS = 1000  # read ahead, where no new scan shows up
_PATIENCE = 10.0  # seconds that the end of an iterator waits for a load to end


def row_volumes(row: Mapping[str, Any]) -> list[KneeVolume]:
    """The volumes among the values of a row."""
    return [value for value in row.values() if isinstance(value, KneeVolume)]


def prefetched(
    rows: Iterable[Row],
    *,
    volumes: Callable[[Row], Iterable[KneeVolume]] = row_volumes,  # type: ignore[assignment]
    on_touch: bool = False,
) -> Iterator[Row]:
    """Yields the same rows in the same order, while one background thread loads the volumes of the next scan.

    The thread fetches and inflates at the same time (the inflaters release the GIL) and leaves the voxels in
    the cache of the process, where the row finds them. It never holds more than one scan that no row has
    reached yet. It ends with the iterator, at the latest when that is closed or collected. A failure to load
    is not raised here: the row that touches the volume meets it, by the same name. A failure to read rows is
    raised when all rows before it have been given.

    Args:
        rows: any rows, best scan by scan. They are read ahead until a new scan shows up.
        volumes: which volumes of a row to load.
        on_touch: read ahead and load nothing until the volume of a row has been touched, and then only that
            kind, images or masks, as long as rows go on to touch it; and nothing of which two do not fit into
            the cache. Who reads no voxels, or only parts of volumes (`whole=False`), pays nothing.
    """
    loader = _Loader()
    finalizing = sys.is_finalizing  # modules may be gone when an iterator is left to the end of the program
    try:
        yield from _reading_ahead(iter(rows), volumes, on_touch, loader)
    finally:
        if not finalizing():  # the interpreter has ended all pools by then
            loader.close()


class _Loader:
    """The background thread; there is none before the first load."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(1, "reasonknee-prefetch", _remember_thread, (self._threads,))

    def submit(self, scan: _Scan, kind: bool) -> Future[None] | None:
        """Loads volumes of a kind; does nothing where no more threads are to be had, as at the end of a program."""
        try:
            return self._pool.submit(_load, scan, kind)
        except RuntimeError as error:
            logger.debug("nothing is loaded ahead any more: %s", error)
            return None

    def close(self) -> None:
        """Ends the thread and waits for it.

        An iterator that is collected is closed wherever the collector happens to run: in the thread itself, or while a
        lock is held that the thread needs. So the wait is bounded.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)


def _remember_thread(threads: list[threading.Thread]) -> None:
    threads.append(threading.current_thread())


_KINDS = frozenset((False, True))  # images and masks, by `KneeVolume.mask`


@dataclass
class _Scan:
    """Volumes that showed up together for the first time."""

    volumes: list[KneeVolume]
    loading: dict[bool, Future[None] | None] = field(default_factory=dict)  # by kind


def _reading_ahead(
    rows: Iterator[Row],
    volumes: Callable[[Row], Iterable[KneeVolume]],
    on_touch: bool,
    loader: _Loader,
) -> Iterator[Row]:
    # Rows read ahead, each with its volumes and the scan that it is the first row of.
    buffer: deque[tuple[Row, Sequence[KneeVolume], _Scan | None]] = deque()
    coming: deque[_Scan] = deque()  # scans in the buffer, in order
    seen: dict[Any, _Scan] = {}
    used: Sequence[KneeVolume] = ()  # volumes of the row that was given last
    begun = volume_cache().touches
    end: BaseException | None = None  # what ended the rows
    if on_touch:
        cache = volume_cache()
        for row in rows:
            yield row
            if cache.touches != begun:
                used = tuple(volumes(row))
                _first_seen(used, seen)
                break
        else:
            return  # nobody in this process touched anything
    while True:
        kinds = _touched_kinds(used, begun) if on_touch else _KINDS
        while end is None and (not buffer or (kinds and not coming and len(buffer) < _MOST_ROWS)):
            try:
                row = next(rows)
            except (StopIteration, Exception) as error:
                end = error
                break
            found = volumes(row)
            if not isinstance(found, (tuple, list)):
                found = tuple(found)
            new = None if found is used else _first_seen(found, seen)
            if new is not None:
                coming.append(new)
            buffer.append((row, found, new))
        for scan in coming:
            for kind in kinds - scan.loading.keys():
                scan.loading[kind] = loader.submit(scan, kind)
        if not buffer:
            if isinstance(end, StopIteration):
                return
            assert end is not None
            raise end
        row, used, first_of = buffer.popleft()
        if first_of is not None:
            coming.popleft()
        yield row


def _touched_kinds(volumes: Sequence[KneeVolume], since: int) -> frozenset[bool]:
    """Of which kinds volumes have been touched whole since the iteration began, and two fit into the cache."""
    cache = volume_cache()
    return frozenset(
        volume.mask
        for volume in volumes
        if 0 < 2 * cache.touched_bytes(volume.cache_name, since) <= cache.max_bytes
    )


def _first_seen(volumes: Iterable[KneeVolume], seen: dict[Any, _Scan]) -> _Scan | None:
    new = [volume for volume in volumes if volume.cache_name not in seen]
    if not new:
        return None
    scan = _Scan(new)
    for volume in new:
        seen[volume.cache_name] = scan
    while len(seen) > _SEEN:
        seen.pop(next(iter(seen)))
    return scan


def _load(scan: _Scan, kind: bool) -> None:
    for volume in scan.volumes:
        if volume.mask == kind:
            try:
                volume.load(ahead=True)
            except Exception as error:
                logger.debug("could not load %r ahead, its row will say why: %s", volume, error)
