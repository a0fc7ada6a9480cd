"""A bounded folder of bytes that many processes may share. Off unless a caller makes one."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator

from reasonknee_hf.errors import OptionError

logger = logging.getLogger(__name__)

_DIGEST = hashlib.sha256().digest_size
_TEMPORARY = ".tmp-"
_ABANDONED_AFTER = 3600.0  # seconds; a temporary file this old belongs to a process that was killed
_LOCK_WAIT = 60.0


class DiskCache:
    """Bytes by key on disk; what was used longest ago goes first.

    File names are hashes of the keys, so no key can climb out of the folder or be read off it. Only the owner
    can read the files. Every entry carries its checksum: what rots on disk is dropped, not returned.

    Args:
        folder: Made if it is not there.
        max_bytes: All entries together never take more.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        if max_bytes <= 0:
            raise OptionError(f"the size of a cache must be a positive number of bytes, not {max_bytes}")
        self.folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"DiskCache({self.folder!r}, {self.max_bytes})"

    def get(self, key: str) -> bytes | None:
        """The bytes of `key`, or `None`."""
        place = self._place(key)
        try:
            with open(place, "rb") as file:
                digest, data = file.read(_DIGEST), file.read()
            with contextlib.suppress(OSError):  # pushed out meanwhile by another process, or a read-only disk
                os.utime(place)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("cannot read the cache in %s: %s", self.folder, error)
            return None
        if hashlib.sha256(data).digest() != digest:
            logger.warning("dropping a damaged entry of the cache in %s", self.folder)
            with contextlib.suppress(OSError):
                os.unlink(place)
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data`, unless it is too large or the folder cannot be written (which is logged)."""
        needed = _DIGEST + len(data)
        if needed > self.max_bytes:
            return
        place = self._place(key)
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(hashlib.sha256(data).digest())
                    file.write(data)
                self._move_in(temporary, place, needed)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:  # includes a full disk and a lock that never comes free
            logger.warning("cannot write to the cache in %s: %s", self.folder, error)

    def _move_in(self, temporary: str, place: str, needed: int) -> None:
        from filelock import FileLock

        # The room is made and taken under one lock, or two writers would both take it.
        with FileLock(os.path.join(self.folder, ".lock"), timeout=_LOCK_WAIT, mode=0o600):
            others = [entry for entry in self._entries() if entry[2] != place]
            excess = sum(size for _, size, _ in others) + needed - self.max_bytes
            for _, size, path in sorted(others):
                if excess <= 0:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                excess -= size
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.replace(temporary, place)

    def size(self) -> int:
        """Bytes that the entries take now."""
        return sum(size for _, size, _ in self._entries())

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """`(time of last use, bytes, path)` of every entry. Removes what killed processes left behind."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                    if name.startswith(_TEMPORARY) and time.time() - status.st_mtime > _ABANDONED_AFTER:
                        os.unlink(path)
                except FileNotFoundError:
                    continue
                if not name.startswith("."):
                    yield status.st_mtime, status.st_size, path

    def _place(self, key: str) -> str:
        name = hashlib.sha256(key.encode()).hexdigest()
        return os.path.join(self.folder, name[:2], name)
