"""A tree that lies in a local folder, or anywhere else that fsspec can list and read."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import fsspec

from reasonknee_hf.errors import (
    EndpointError,
    ExtraMissingError,
    FileMissingError,
    IntegrityError,
    OptionError,
    ReasonKneeError,
    ReleaseError,
)
from reasonknee_hf.hub.disk import ForkSafeFilesystem
from reasonknee_hf.hub.tree import (
    POINTER_LIMIT,
    Address,
    FileEntry,
    check_spans,
    chunk_sizes,
    could_not_connect,
    find_entry,
    refuse_pointer,
)

T = TypeVar("T")

# Version control keeps thousands of objects here; none of them belongs to the release.
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__"})
_NOTHING = re.compile(r"(?!)")

# A password before a host, also of a chained URL; a query, which may be a signature and is no part of a folder.
_SECRET = re.compile(r"(?<=//)[^/@:]*:[^/@]*(?=@)|(?<=^http://).*\?.*|(?<=^https://).*\?.*")
_HIDDEN = "…"


class FsspecTree:
    """The files below a local folder or an fsspec URL, see [`Tree`].

    Args:
        root: Local folder, or a URL such as `memory://release` or `s3://bucket/release`.
        closed: Folders whose path it finds are listed as one entry, without size, and not looked into.

    Raises:
        OptionError: `root` is a URL of a kind that no filesystem knows, or carries a password.
        ExtraMissingError: The package for URLs of its kind is not installed.
        ReleaseError: `root` is not a folder that can be listed.
    """

    sha: str | None = None

    def __init__(self, root: str | os.PathLike[str], closed: re.Pattern[str] = _NOTHING) -> None:
        self._closed = closed
        filesystem, self._root = open_root(os.fspath(root))
        self._base = ForkSafeFilesystem(filesystem)
        self._root = self._root.rstrip("/")
        self._local = "file" in _protocols(self._fs)
        if self._local:
            self._root = os.path.abspath(self._root).replace(os.sep, "/")
        self.identity = self._root if self._local else self._fs.unstrip_protocol(self._root)
        self.name = f"folder {self._root}" if self._local else self.identity
        self._entries: Mapping[str, FileEntry] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity!r})"

    @property
    def _fs(self) -> Any:
        return self._base.get()

    @property
    def address(self) -> Address:
        """Of its root."""
        return Address(f"file://{self.identity}" if self._local else self.identity)

    def entries(self) -> Mapping[str, FileEntry]:
        """The whole listing by posix path, in sorted order, fetched once."""
        if self._entries is None:  # two threads may both list; a lock could be held over a fork
            self._entries = self._list()
        return self._entries

    def _list(self) -> dict[str, FileEntry]:
        try:
            files = _files_below(self._root, self._closed) if self._local else self._remote_files()
            return {path: FileEntry(path, size) for path, size in sorted(files)}
        except Exception as error:  # clients of storage services have error types of their own
            raise ReleaseError(
                f"{self.name} cannot be listed: {_told(error)}. Name an existing folder"
                + ("" if self._local else ", and check the connection and the login for it")
            ) from error

    def _remote_files(self) -> Iterator[tuple[str, int | None]]:
        # Not by `walk` of fsspec, to which a folder that cannot be listed is an empty one.
        prefix = len(self._root) + 1 if self._root else 0
        folders = [self._root]
        while folders:
            folder = folders.pop()
            for info in self._fs.ls(folder, detail=True):
                path = info["name"].rstrip("/")
                if info["type"] != "directory":
                    yield path[prefix:], info.get("size")
                elif self._closed.search(path[prefix:]):
                    yield path[prefix:], None
                elif path != folder and posixpath.basename(path) not in _SKIPPED_FOLDERS:
                    folders.append(path)

    def entry(self, path: str) -> FileEntry:
        """One file. Raises [`FileMissingError`] if it is not listed."""
        return find_entry(self.entries(), path, self.name)

    def size(self, path: str) -> int:
        """The size in bytes."""
        size = self.entry(path).size
        if size is None:
            with self._readable(path):
                size = self._fs.size(self._full(path))
        if size is None:
            raise IntegrityError(f"{self.name} does not say how large {path!r} is")
        return int(size)

    def read(self, path: str) -> bytes:
        """The whole file."""
        return b"".join(self.stream(path))

    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        """The bytes of half-open `spans`, in order."""
        size = self.size(path)
        check_spans(path, size, *spans)
        if size <= POINTER_LIMIT:
            whole = self.read(path)
            return [whole[start:stop] for start, stop in spans]
        if not self._local:
            return [self._range(path, start, stop) for start, stop in spans]
        # Unbuffered: a buffer reads a page or more around each of many short spans.
        with self._readable(path), open(self._full(path), "rb", buffering=0) as file:
            found = []
            for start, stop in spans:
                file.seek(start)
                found.append(self._whole(path, file.read(stop - start), start, stop))
            return found

    def checked_ranges(self, spans: Sequence[tuple[str, int, int]], check: Callable[[list[bytes]], T]) -> T:
        """What `check` makes of the bytes of `spans`. There is nobody else to ask."""
        return check([self.ranges(path, [(start, stop)])[0] for path, start, stop in spans])

    def _range(self, path: str, start: int, stop: int) -> bytes:
        if stop == start:
            return b""
        with self._readable(path):
            data = bytes(self._fs.cat_file(self._full(path), start=start, end=stop))
        return self._whole(path, data, start, stop)

    def _whole(self, path: str, data: bytes, start: int, stop: int) -> bytes:
        if len(data) != stop - start:
            raise IntegrityError(
                f"{path!r} of {self.name}: bytes {start}-{stop} came back as {len(data)} bytes. "
                f"The file changed, or the filesystem does not honour ranges"
            )
        return data

    def stream(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The file, or a part of it, in chunks of at most 64 KiB."""
        size = self.size(path)
        stop = size if stop is None else stop
        check_spans(path, size, (start, stop))
        position = start
        full = self._full(path)
        with (
            self._readable(path),
            open(full, "rb", buffering=0) if self._local else self._fs.open(full, "rb") as file,
        ):
            if start:
                file.seek(start)
            for length in chunk_sizes():
                if position >= stop:
                    if self._local and stop == size and file.read(1):
                        raise IntegrityError(
                            f"{path!r} of {self.name} is longer than the {size} bytes that were listed: it was "
                            "written to meanwhile. Open the folder again"
                        )
                    return
                chunk = bytes(file.read(min(length, stop - position)))
                if not chunk:
                    raise IntegrityError(
                        f"{path!r} of {self.name} ends at {position}, not at {size} as listed"
                    )
                if position == 0 and size <= POINTER_LIMIT:
                    refuse_pointer(path, chunk, self.name)
                position += len(chunk)
                yield chunk

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        """Names a file of which the system, or the client of a storage service, gives no bytes."""
        try:
            yield
        except (
            Exception
        ) as error:  # only a builtin: an iterator that is left to the end of the program outlives ours
            if isinstance(error, ReasonKneeError):
                raise
            if isinstance(error, FileNotFoundError) and not could_not_connect(error):
                raise
            if isinstance(error, OSError) and self._local:
                raise IntegrityError(
                    f"{path!r} of {self.name} cannot be read ({error.strerror or error}). "
                    f"Check its permissions and the disk"
                ) from error
            raise EndpointError(
                f"{path!r} of {self.name} cannot be read: {_told(error)}. Check the connection and the login for it"
            ) from error

    def url(self, path: str) -> str:
        """The absolute path of a local file, else the native URL."""
        self.entry(path)
        full = self._full(path)
        return full if self._local else str(self._fs.unstrip_protocol(full))

    def _full(self, path: str) -> str:
        self.entry(path)  # only listed names reach the filesystem, so none can climb out of the root
        return f"{self._root}/{path}" if self._root else path


def open_root(root: str) -> tuple[Any, str]:
    """The filesystem of a URL or path, and the path there.

    Raises:
        OptionError: The URL is of a kind that no filesystem knows, or carries a password.
        ExtraMissingError: The package for URLs of its kind is not installed.
    """
    if _SECRET.search(root):  # rows, states and messages name the root
        raise OptionError(
            f"{_SECRET.sub(_HIDDEN, root)!r} carries a password or a query, which would end up in rows and logs. Leave"
            " it out, and give it in the configuration of fsspec (FSSPEC_<PROTOCOL>_<OPTION>, or ~/.config/fsspec)"
        )
    try:
        filesystem, path = fsspec.core.url_to_fs(root)
    except ImportError as error:
        raise ExtraMissingError(f"{root!r} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise OptionError(
            f"{root!r} cannot be opened: {_told(error)}. Name a folder, a URL that fsspec knows, or a dataset id"
        ) from error
    return filesystem, path


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class FsspecFiles(FsspecTree):
    """Some files of an fsspec filesystem by their paths there; nothing is listed to find them.

    Args:
        filesystem: Where they lie.
        paths: The files.
    """

    def __init__(self, filesystem: Any, paths: Sequence[str]) -> None:
        self._base, self._root, self._paths = ForkSafeFilesystem(filesystem), "", tuple(paths)
        self._local = "file" in _protocols(filesystem)
        self.identity = str(filesystem.unstrip_protocol(paths[0])) if paths else ""
        self.name = type(filesystem).__name__
        self._entries = None

    def _list(self) -> dict[str, FileEntry]:
        try:
            return {path: FileEntry(path, self._fs.info(path).get("size")) for path in self._paths}
        except FileNotFoundError as error:
            raise FileMissingError(f"a file of {self.name} is not there: {error}") from error


def _files_below(
    folder: str,
    closed: re.Pattern[str],
    prefix: str = "",
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[str, int | None]]:
    """Path and size of every file below a local folder, and path of each closed folder.

    Links are followed, unless back to a folder above: volumes often lie on another disk, with a link in their place.
    """
    own = os.stat(folder)
    here = (own.st_dev, own.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                state = os.stat(entry.path)
            except OSError:
                if not entry.is_symlink():
                    raise
                continue  # a link to nothing, to itself, or to where we may not go
            if stat.S_ISREG(state.st_mode):
                yield prefix + entry.name, state.st_size
            elif stat.S_ISDIR(state.st_mode) and closed.search(prefix + entry.name):
                yield prefix + entry.name, None
            elif stat.S_ISDIR(state.st_mode) and entry.name not in _SKIPPED_FOLDERS:
                yield from _files_below(entry.path, closed, f"{prefix}{entry.name}/", above | {here})


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
