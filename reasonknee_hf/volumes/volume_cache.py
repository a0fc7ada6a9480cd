"""The per-process cache of decoded volumes: bounded in bytes, thread-safe, one decode when several ask."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass

from reasonknee_hf import environment
from reasonknee_hf.volumes.header import NiftiHeader
from reasonknee_hf.volumes.orientation import Array

# A window of four scans that are shuffled together plus the one that is fetched ahead, each with image
# (160x384x384 int16: 45 MiB) and mask (uint8: 22.5 MiB): 338 MiB. Rounded up, so that slightly larger scans
# fit as well.
DEFAULT_BYTES = 384 << 20
_TOUCHED = 256  # files remembered as asked for


@dataclass(frozen=True)
class Decoded:
    """One decoded file: its header and its voxels in file order, read-only."""

    header: NiftiHeader
    array: Array

    @property
    def is_whole(self) -> bool:
        """Whether all slices were read."""
        slices: int = self.array.shape[2]
        return slices >= self.header.shape[2]


class VolumeCache:
    """Decoded volumes, the least recently used one leaves first. Thread-safe; never pickled.

    Args:
        max_bytes: how many bytes of voxels are kept. A volume larger than that is handed out but not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.decodes = 0  # how often a loader ran, for tests and benchmarks
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Decoded] = OrderedDict()
        self._bytes = 0
        self._running: dict[Hashable, Future[Decoded]] = {}
        self.touches = 0  # how often all voxels of a file were asked for
        self._touched: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()  # number of the touch, bytes

    @property
    def nbytes(self) -> int:
        """Bytes of voxels kept now."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(
        self, key: Hashable, load: Callable[[], Decoded], enough: Callable[[Decoded], bool] = lambda _: True
    ) -> Decoded:
        """The kept volume, or what `load` makes. Threads that ask for the same key wait for one `load`.

        Args:
            key: what tells volumes apart.
            load: makes the volume.
            enough: says whether a kept volume, of which only a part may have been read, will do.
        """
        # New objects are made without the lock: they may start the garbage collector, and that anything.
        while True:
            with self._lock:
                found = self._kept.get(key)
                running = self._running.get(key)
            if found is not None and enough(found):
                with self._lock:
                    if key in self._kept:
                        self._kept.move_to_end(key)
                return found
            if running is not None:
                decoded = running.result()
                if enough(decoded):
                    return decoded
                continue
            mine: Future[Decoded] = Future()
            with self._lock:
                if key not in self._running and self._kept.get(key) is found:
                    self._running[key] = mine
                    self.decodes += 1
                    break
        try:
            decoded = load()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._keep(key, decoded)
        mine.set_result(decoded)
        return decoded

    def touch(self, name: Hashable, nbytes: int) -> None:
        """Remembers that somebody asked for all voxels of a file, and how many bytes they are."""
        touched = (self.touches, nbytes)
        with self._lock:
            self.touches += 1
            self._touched[name] = touched
            self._touched.move_to_end(name)
            while len(self._touched) > _TOUCHED:
                self._touched.popitem(last=False)

    def touched_bytes(self, name: Hashable, since: int) -> int:
        """How many bytes the voxels of a file are if somebody asked for them since `touches` had a value; else 0."""
        number, nbytes = self._touched.get(name, (-1, 0))
        return nbytes if number >= since else 0

    def resize(self, max_bytes: int) -> None:
        """Sets the bound, and drops what is over it."""
        with self._lock:
            self.max_bytes = max_bytes
            self._shrink()

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._kept.clear()
            self._touched.clear()
            self._bytes = 0

    def _keep(self, key: Hashable, decoded: Decoded) -> None:
        part = self._kept.pop(key, None)
        if part is not None:
            self._bytes -= part.array.nbytes
        if decoded.array.nbytes <= self.max_bytes:
            self._kept[key] = decoded
            self._bytes += decoded.array.nbytes
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self.max_bytes:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= gone.array.nbytes


def _new_cache() -> VolumeCache:
    size = environment.volume_cache_bytes()
    return VolumeCache(DEFAULT_BYTES if size is None else size)


_cache: VolumeCache | None = None
_cache_lock = threading.Lock()


def volume_cache() -> VolumeCache:
    """The cache of this process. It starts with `REASONKNEE_VOLUME_CACHE` bytes, else 384 MiB."""
    global _cache
    with _cache_lock:
        if _cache is None:
            _cache = _new_cache()
        return _cache


def _forget_after_fork() -> None:
    """A forked worker starts empty: locks that other threads of the parent held would never be released."""
    global _cache, _cache_lock
    _cache_lock = threading.Lock()
    _cache = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
