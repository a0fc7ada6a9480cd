"""Where finished files lie: a local folder, or anywhere else that fsspec writes to. And where files are made."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout

from reasonknee_hf.errors import EndpointError, ForbiddenError, PublishError, ReleaseError
from reasonknee_hf.hub.disk import write_file
from reasonknee_hf.hub.tree import could_not_connect
from reasonknee_hf.hub.trees.folder_tree import FsspecTree, open_root

_STAGING = "reasonknee-push-"
_UNFINISHED = f".{'[0-9a-f]' * 16}.part"  # what a killed `write_file` leaves


class Store(Protocol):
    """Finished files by their paths below a root."""

    def names(self) -> set[str]:
        """Paths of all files."""

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file for reading, seekable."""

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def sha256(self, name: str) -> str:
        """Hash of a file."""


class Place:
    """The files below a local folder or an fsspec URL such as `s3://bucket/version`. Nothing is made by naming it.

    A file appears whole or not at all where the store does so, as folders and object stores do; elsewhere a cut one
    is known by its size and hash in the manifest. What other processes write meanwhile is seen.

    Raises:
        PublishError: The URL is one of a repository, which `push` writes to.
        OptionError: No filesystem knows URLs of its kind, or it carries a password.
        ExtraMissingError: The package for URLs of its kind is not installed.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if self.root.startswith("hf://") and not self.root.startswith("hf://buckets/"):
            raise PublishError(
                f"{self.root!r} is a repository, where each file would be a commit: use push with OWNER/NAME."
            )
        self._fs, below = open_root(self.root)
        self._below = below.rstrip("/")
        self.local = Path(below) if _is_local(self._fs) else None
        self._folders: set[str] = set()

    @property
    def shown(self) -> str:
        """What `load_dataset` is given, from the folder above it."""
        return f"./{self.local.resolve().name if self.local else posixpath.basename(self._below)}"

    def names(self) -> set[str]:
        """Paths of all files, hidden and unfinished ones not among them; none if nothing is there."""
        self._fs.invalidate_cache()
        try:
            entries = FsspecTree(self.root).entries()
        except ReleaseError as error:
            cause = error.__cause__
            if isinstance(cause, FileNotFoundError) and not could_not_connect(cause):
                return set()
            raise
        return {path for path in entries if not any(part.startswith(".") for part in path.split("/"))}

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file for reading."""
        opened: AbstractContextManager[Any] = self._fs.open(self._path(name), "rb")
        return opened

    def size(self, name: str) -> int:
        """Bytes of a file."""
        self._fs.invalidate_cache()
        return int(self._fs.size(self._path(name)))

    def sha256(self, name: str) -> str:
        """Hash of a file."""
        with self.open(name) as file:
            return hash_of(file)

    def text(self, name: str) -> str:
        """The text of a file, its line ends as they are; empty if there is none.

        Raises:
            PublishError: It is not UTF-8.
        """
        try:
            with self.open(name) as file:
                return decoded(bytes(file.read()), f"{self.root}/{name}")
        except FileNotFoundError:
            return ""

    def write(self, name: str, content: bytes) -> None:
        """Writes a file; what was there stays until then.

        Raises:
            PublishError: The disk is full.
            ForbiddenError, EndpointError: The store does not take it.
        """
        with self._written(name):
            if self.local:
                write_file((self.local / name).resolve(), content)  # a link stays one
            else:
                self._fs.pipe_file(self._made(name), content)

    def put(self, made: Path, names: Iterable[str]) -> None:
        """Takes over files that were made in [`workplace`], in this order.

        Raises:
            ForbiddenError, EndpointError: The store does not take one.
        """
        for name in names if self.local is None else ():
            with self._written(name):
                self._fs.put_file(str(made / name), self._made(name))

    def remove(self, names: Iterable[str]) -> None:
        """Removes files."""
        for name in names:
            with self._written(name):
                self._fs.rm_file(self._path(name))

    def prove(self) -> None:
        """Writes a small file and removes it, where files go elsewhere than to this disk.

        Raises:
            ForbiddenError, EndpointError: Nothing can be written there.
        """
        if self.local is None:
            self.write(".reasonknee", b"may this be written?")
            self.remove([".reasonknee"])

    def clear(self, folder: str) -> None:
        """Removes what killed calls left of files that they had not finished, in the root and below a folder."""
        if self.local:
            for path in (*self.local.glob(_UNFINISHED), *(self.local / folder).rglob(_UNFINISHED)):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A local folder to make files in: the place itself, or one that goes afterwards."""
        with contextlib.nullcontext(self.local) if self.local else staging() as folder:
            yield folder

    def _path(self, name: str) -> str:
        return f"{self._below}/{name}"

    def _made(self, name: str) -> str:
        """The path of a file, whose folders are made where the store has such; but never a bucket."""
        parts = self._path(name).split("/")
        folders = ["/".join(parts[:number]) for number in range(2, len(parts))]
        for folder in (one for one in folders if one not in self._folders):
            with contextlib.suppress(FileExistsError):
                self._fs.mkdir(folder, create_parents=False)
            self._folders.add(folder)
        return self._path(name)

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[None]:
        try:
            with disk_full(self.root, f"{name} was not written"):
                yield
        except Exception as error:  # clients of storage services have error types of their own
            if self.local:
                raise
            kind = ForbiddenError if isinstance(error, PermissionError) else EndpointError
            raise kind(
                f"{self.root} does not take {name} ({type(error).__name__}: {error}). Check the place, the connection "
                "and the login, and run the same command again: finished files are kept."
            ) from error


def _is_local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


@contextlib.contextmanager
def staging(folder: str | Path | None = None) -> Iterator[Path]:
    """The folder where files are made: a given one, or one that goes afterwards, as those of killed calls do now."""
    if folder is not None:
        yield Path(folder)
        return
    for lock in Path(tempfile.gettempdir()).glob(f"{_STAGING}*/.lock"):
        with contextlib.suppress(Timeout, OSError), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent)  # nobody holds it: its call was killed
    with (
        tempfile.TemporaryDirectory(prefix=_STAGING, ignore_cleanup_errors=True) as temporary,
        FileLock(Path(temporary, ".lock")),
    ):
        yield Path(temporary)


def hash_of(file: IO[bytes]) -> str:
    """The sha256 of what is left of a file."""
    digest = sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def decoded(content: bytes, what: str) -> str:
    """The text of a file, its line ends as they are.

    Raises:
        PublishError: It is not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PublishError(
            f"{what} is not UTF-8 (byte {error.start} is 0x{content[error.start]:02x}). Save it as UTF-8 first."
        ) from None


@contextlib.contextmanager
def disk_full(folder: str | Path, what: str) -> Iterator[None]:
    """Says in one clear error that a disk is full.

    Args:
        folder: A folder of that disk.
        what: What was not done.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise PublishError(
                f"The disk of {folder} is full; {what}. Make room and run the same command again: finished files are "
                "kept."
            ) from error
        raise
