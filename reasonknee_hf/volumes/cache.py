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
from reasonknee_hf.volumes.voxels import Array

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
        self._touched: OrderedDict[Hashable, int] = OrderedDict()

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
        while True:
            with self._lock:
                found = self._kept.get(key)
                if found is not None and enough(found):
                    self._kept.move_to_end(key)
                    return found
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future()
                    self.decodes += 1
                    break
            decoded = running.result()
            if enough(decoded):
                return decoded
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
        """Remembers that a row asked for the voxels of a file, and how many bytes they are."""
        with self._lock:
            self._touched[name] = nbytes
            self._touched.move_to_end(name)
            while len(self._touched) > _TOUCHED:
                self._touched.popitem(last=False)

    def touched_bytes(self, name: Hashable) -> int:
        """How many bytes the voxels of a file are that a row asked for lately; 0 if none did."""
        return self._touched.get(name, 0)

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
