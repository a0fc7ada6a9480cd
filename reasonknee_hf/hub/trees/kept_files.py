"""What lies on this disk of one dataset repository: whole files as the Hub's own clients keep them, and the rest."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from reasonknee_hf.hub.disk import Cache, alone, warn_once
from reasonknee_hf.hub.tree import FileEntry, chunk_sizes
from reasonknee_hf.hub.wire.checks import ContentCheck, ContentError

logger = logging.getLogger(__name__)

# Files up to this size are hashed before they are used for the first time in a process; that takes about as long as
# copying them. Larger ones are hashed once, which all processes remember; unless their reader proves what it reads.
_HASHED = 64 * 1024 * 1024
PIECE = 4 * 1024 * 1024
"""About how much of a file is kept under one key."""

# What has been hashed, as far as this process knows: path, size, time of last change.
_verified: set[str] = set()


class KeptFiles:
    """Finds and keeps what has been fetched of a repository. Cheap to make and to pickle.

    Whole files lie as `huggingface_hub` lays them out (`blobs/<hash>`, `snapshots/<commit>/<path>`), so that each
    uses what the other fetched. Nothing of the Hub's cache is removed, and its branches are not moved.

    Args:
        cache: Where.
        repo_id: `owner/name`.
    """

    def __init__(self, cache: Cache, repo_id: str) -> None:
        self.cache = cache
        self.repo_id = repo_id
        self._root = cache.hub / f"datasets--{repo_id.replace('/', '--')}"
        self._locks = cache.hub / ".locks" / self._root.name

    # --- commits and listings --------------------------------------------------------------------------

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch or tag had when it was resolved last, by us or by the Hub's own client."""
        found = self.cache.listings.get(f"revision\0{self.repo_id}\0{revision}")
        if found is None and (below := _below(revision)) is not None:
            with contextlib.suppress(OSError):
                found = (self._root / "refs" / below).read_bytes()
        return None if found is None else found.decode().strip()

    def remember(self, revision: str, sha: str) -> None:
        """Keeps the commit of a branch or tag."""
        self.cache.listings.put(f"revision\0{self.repo_id}\0{revision}", sha.encode())

    def keep_listing(self, sha: str, entries: Mapping[str, FileEntry]) -> None:
        """Keeps the listing of a commit, which may have got sizes that it did not have."""
        self.cache.listings.put(self._listing_key(sha), dump(entries))

    def listing(self, sha: str, make: Callable[[], dict[str, FileEntry]]) -> dict[str, FileEntry]:
        """The listing of a commit, made and kept if it is not here; by one process, if several ask together."""
        found = self.cache.listings.once(self._listing_key(sha), lambda: dump(make()))
        if sha not in (known := self._listed_commits()):
            self.cache.listings.put(f"shas\0{self.repo_id}", json.dumps([*known, sha]).encode())
        return load(found)

    def snapshot(self, sha: str) -> dict[str, FileEntry] | None:
        """What the Hub's own client has fetched of a commit, which may be less than the commit holds."""
        root = self._root / "snapshots" / sha
        found = {}
        for file in sorted(root.rglob("*")):
            if file.is_file():
                name = os.path.basename(os.readlink(file)) if file.is_symlink() else ""
                told = {40: {"blob_id": name}, 64: {"sha256": name}}
                path = file.relative_to(root).as_posix()
                found[path] = FileEntry(path, file.stat().st_size, **told.get(len(name), {}))
        return found or None

    def commits(self) -> list[str]:
        """Every commit of which something is here."""
        with contextlib.suppress(OSError):
            return list(dict.fromkeys([*self._listed_commits(), *os.listdir(self._root / "snapshots")]))
        return self._listed_commits()

    def _listed_commits(self) -> list[str]:
        found = self.cache.listings.get(f"shas\0{self.repo_id}")
        return [] if found is None else list(json.loads(found))

    def _listing_key(self, sha: str) -> str:
        return f"listing\0{self.repo_id}@{sha}"

    # --- whole files -----------------------------------------------------------------------------------

    def find(self, sha: str, entry: FileEntry, *, checked_later: bool = False) -> Path | None:
        """A copy of a file that is what the listing says: by its hash from any commit, else as part of this one.

        With `checked_later` a large one is told by name and size alone.
        """
        name, pointer = _blob_name(entry), self._pointer(sha, entry.path)
        places = [self._root / "blobs" / name if name else None, pointer]
        place = next((one for one in places if one and os.path.isfile(one)), None)
        return place if place and self._fits(place, entry, checked_later) else None

    def _fits(self, place: Path, entry: FileEntry, checked_later: bool) -> bool:
        try:
            status = place.stat()
            if entry.size is not None and status.st_size != entry.size:
                return False
            state = f"hashed\0{place}\0{status.st_size}\0{status.st_mtime_ns}"
            large = status.st_size > _HASHED
            if state in _verified or (
                large and (checked_later or self.cache.listings.get(state) is not None)
            ):
                return True
            check = ContentCheck(entry)
            for chunk in pieces_of(place, 0, status.st_size):
                check.update(chunk)
            check.finish(str(place))
            _verified.add(state)
            if large:
                self.cache.listings.put(state, b"")
        except ContentError as error:
            logger.warning("a damaged file is fetched anew: %s", error)
            return False
        except OSError:
            return False
        return True

    def alone_with(self, entry: FileEntry) -> contextlib.AbstractContextManager[bool]:
        """Lets one process at a time fetch a file; others wait, and then find it."""
        return self.cache.listings.alone(f"file\0{self.repo_id}\0{_blob_name(entry) or entry.path}")

    @contextlib.contextmanager
    def grow(self, sha: str, entry: FileEntry) -> Iterator[Growth | None]:
        """Where the whole of a file can be written while it passes by; `None` where it is not to be kept.

        That is: without a hash to name it, above the bound of the cache, while another process writes it, or
        on a disk that cannot be written to.
        """
        name, pointer = _blob_name(entry), self._pointer(sha, entry.path)
        if name is None or pointer is None or not entry.size or not self._has_room(entry.size, name):
            yield None
            return
        with contextlib.ExitStack() as stack:
            growth = None
            if stack.enter_context(alone(self._locks / f"{name}.lock", 0)):
                try:
                    unfinished = self._root / "blobs" / f"{name}.incomplete"
                    pointer.parent.mkdir(parents=True, exist_ok=True)
                    unfinished.parent.mkdir(exist_ok=True)
                    unfinished.touch()
                    file = stack.enter_context(unfinished.open("r+b", buffering=0))
                    growth = Growth(self, unfinished, file, entry.size, pointer)
                except OSError as error:
                    warn_once(logger, f"files are not kept in {self.cache.hub}", error)
            yield growth

    def _has_room(self, size: int, name: str) -> bool:
        if self.cache.limit is None:
            return True
        taken = 0
        with contextlib.suppress(OSError), os.scandir(self._root / "blobs") as found:
            taken = sum(one.stat().st_size for one in found if not one.name.startswith(name))
        if taken + size > self.cache.limit:
            logger.info(
                "%s takes %d bytes in %s: nothing more is kept (cache_size=)", self.repo_id, taken, self._root
            )
        return taken + size <= self.cache.limit

    def settle(self, unfinished: Path, pointer: Path, size: int) -> None:
        """Gives a complete file its final name and its place in the commit, if there is room for it still."""
        blob = unfinished.with_suffix("")
        with alone(self._locks / "room.lock", 60):
            if not self._has_room(size, blob.name):  # another process was faster
                unfinished.unlink()
                return
            os.replace(unfinished, blob)
        link = pointer.with_name(f".{blob.name}.link")
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # a disk without links: there the Hub's own client has no blobs either
            os.replace(blob, pointer)
        else:
            os.replace(link, pointer)

    def _pointer(self, sha: str, path: str) -> Path | None:
        """Where a file of a commit lies; `None` for a path that would leave the folder."""
        below = _below(path)
        return None if below is None else self._root / "snapshots" / sha / below

    # --- pieces ----------------------------------------------------------------------------------------

    def piece(self, sha: str, path: str, start: int) -> bytes | None:
        """What is kept of a file from a byte on."""
        return self.cache.pieces.get(self._piece_key(sha, path, start))

    def keep_piece(self, sha: str, path: str, start: int, content: bytes | bytearray) -> None:
        """Keeps a piece of a file."""
        self.cache.pieces.put(self._piece_key(sha, path, start), content)

    def _piece_key(self, sha: str, path: str, start: int) -> str:
        return f"piece\0{self.repo_id}@{sha}\0{path}\0{start}"


class Growth:
    """A whole file that is written while it passes by. What was written is there for the next time.

    Attributes:
        size: Bytes that are there.
        whole: Bytes of the whole file.
    """

    def __init__(self, kept: KeptFiles, unfinished: Path, file: BinaryIO, whole: int, pointer: Path) -> None:
        self._kept, self._unfinished, self._pointer = kept, unfinished, pointer
        self._file: BinaryIO | None = file
        self.whole = whole
        self.size = unfinished.stat().st_size
        if self.size > whole:
            file.truncate(0)
            self.size = 0

    def pieces(self) -> Iterator[bytes]:
        """What is there, from the first byte on."""
        return pieces_of(self._unfinished, 0, self.size) if self.size else iter(())

    def write(self, chunk: bytes) -> None:
        """Writes what comes next. Where that fails the file is given up; the bytes go on all the same."""
        if self._file is None:
            return
        try:
            self._file.seek(self.size)
            if self._file.write(chunk) != len(chunk):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            warn_once(logger, f"files are not kept in {self._kept.cache.hub}", error)
            self.discard()
        self.size += len(chunk)

    def finish(self) -> None:
        """All is there, and it is right."""
        if self._file is None:
            return
        try:
            if self.whole > _HASHED:  # it is hashed once more at the most, perhaps before it lies there
                os.fsync(self._file.fileno())
            self._file.close()
            self._kept.settle(self._unfinished, self._pointer, self.whole)
        except OSError as error:
            warn_once(logger, f"files are not kept in {self._kept.cache.hub}", error)

    def discard(self) -> None:
        """What is there is wrong, or the disk is full."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._unfinished.unlink()


def pieces_of(file: Path, start: int, stop: int) -> Iterator[bytes]:
    """Bytes of a local file as a stream would hand them out."""
    with open(file, "rb", buffering=0) as handle:
        handle.seek(start)
        for size in chunk_sizes():
            chunk = handle.read(min(size, stop - start))
            if not chunk:
                return
            start += len(chunk)
            yield chunk


def _blob_name(entry: FileEntry) -> str | None:
    """The name that the Hub's own client gives the content: its ETag, which is one of these."""
    name = entry.sha256 or entry.blob_id
    return name if name is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", name) else None


def _below(path: str) -> str | None:
    """A relative path that stays below where it starts."""
    steps = PurePosixPath(path)
    return None if steps.is_absolute() or ".." in steps.parts or "\\" in path else str(steps)


def dump(entries: Mapping[str, FileEntry]) -> bytes:
    """A listing as it is kept on disk."""
    return json.dumps([[e.path, e.size, e.blob_id, e.sha256] for e in entries.values()]).encode()


def load(content: bytes) -> dict[str, FileEntry]:
    """What [`dump`] wrote."""
    return {row[0]: FileEntry(*row) for row in json.loads(content)}
