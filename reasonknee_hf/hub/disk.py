"""What lies on this disk: files that appear whole or not at all, locks between processes, our folders, bytes by key."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import pickle
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec.asyn

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError, ReasonKneeError

logger = logging.getLogger(__name__)

GIB = 1024**3
DEFAULT_SIZE = 10 * GIB
"""Bytes that are kept where nobody says how many."""

_DIGEST = hashlib.sha256().digest_size
_UNFINISHED = ".part"
_ABANDONED_AFTER = 3600.0  # seconds; an unfinished file this old belongs to a process that was killed
_LOCK_WAIT = 60.0

Entry = tuple[float, int, Path]
"""Time of last use, bytes, path."""


_warned: set[str] = set()


def warn_once(logger: logging.Logger, what: str, error: OSError) -> None:
    """Warns of a disk that cannot be used, which would be told for each of thousands of files."""
    logger.log(logging.DEBUG if what in _warned else logging.WARNING, "%s: %s", what, error)
    _warned.add(what)


def write_file(path: Path, *contents: bytes | bytearray, mode: int = 0o777) -> Path:
    """Writes a file that appears complete or not at all. Returns its path."""
    path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}{_UNFINISHED}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode & 0o666)) as file:
            file.writelines(contents)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


@contextlib.contextmanager
def alone(path: Path, seconds: float = -1, mode: int = 0o777) -> Iterator[bool]:
    """Lets one process at a time into what belongs to the lock file `path`.

    Args:
        path: Made if absent, with its folder.
        seconds: How long to wait for others; for ever by default.
        mode: Rights of what is made, before the umask.

    Yields:
        `False` if another one is still in after `seconds`. Where no lock can be had everybody goes on: that costs
        double work, not results.
    """
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        free = True
        try:
            path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
            # The owner of a lock may be closed by another thread: a generator, for instance.
            lock = FileLock(path, timeout=seconds, mode=mode & 0o666, thread_local=False)
            stack.enter_context(lock.acquire(poll_interval=0.01))
        except Timeout:
            free = False
        except (
            OSError,
            NotImplementedError,
            RuntimeError,
        ) as error:  # the last: this thread holds it already
            logger.info("going on without the lock %s: %s", path, error)
        yield free


# --- our folders ---------------------------------------------------------------------------------------------------


def our_folder(*below: str) -> Path:
    """A folder of this package in the assets cache below `HF_HOME`. It is named, not made."""
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE, "reasonknee_hf", *below)


def our_folders() -> dict[str, Path]:
    """Everything this package keeps outside the Hub's own cache, by what it is."""
    return {
        "index": our_folder("rows", "index"),
        "faults": our_folder("rows", "faults"),
        "directories": our_folder("archives", "directories"),
        "listings": our_folder("hub", "listings"),
        "pieces": our_folder("hub", "pieces"),
        "sample": our_folder("sample"),
        "published": our_folder("published"),
    }


@contextlib.contextmanager
def must_be_kept(folder: Path, what: str) -> Iterator[None]:
    """For what cannot be used before it lies in one of our folders.

    Raises:
        OptionError: The folder cannot be written to.
    """
    try:
        yield
    except ReasonKneeError:
        raise
    except OSError as error:
        raise OptionError(
            f"{what} cannot be kept in {folder}: {error}. Set HF_HOME to a folder that can be written to."
        ) from error


def entries(folder: Path) -> Iterator[Entry]:
    """What is kept in a folder. Removes what killed processes left behind."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]  # locks
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if name.startswith("."):
                    if name.endswith(_UNFINISHED) and time.time() - status.st_mtime > _ABANDONED_AFTER:
                        path.unlink()
                    continue
                yield status.st_mtime, status.st_size, path


def prune(found: Iterable[Entry], max_bytes: int, max_files: int | None = None) -> int:
    """Removes what was used longest ago until the rest fits. Returns the bytes that this freed."""
    oldest_first = sorted(found)
    excess = sum(size for _, size, _ in oldest_first) - max_bytes
    surplus = 0 if max_files is None else len(oldest_first) - max_files
    freed = 0
    for number, (_, size, path) in enumerate(oldest_first):
        if freed >= excess and number >= surplus:
            break
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # open, where open files cannot be removed
            logger.warning("%s cannot be removed: %s", path, error)
        else:
            freed += size
    return freed


# --- bytes by key --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiskCache:
    """Bytes by key in a bounded folder that processes share; what was used longest ago goes first.

    File names are hashes of the keys, so no key can climb out of the folder or be read off it. Only the owner
    can read the files. Every entry carries its checksum: what rots on disk is dropped, not returned. A folder
    that cannot be written to costs speed, nothing else.

    Args:
        folder: Made if it is not there.
        max_bytes: All entries together never take more.
    """

    folder: Path
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes <= 0:
            raise OptionError(f"the size of a cache must be a positive number of bytes, not {self.max_bytes}")
        object.__setattr__(self, "folder", Path(os.path.abspath(os.path.expanduser(self.folder))))

    def get(self, key: str) -> bytes | None:
        """The bytes of `key`, or `None`."""
        found = self.view(key)
        return None if found is None else bytes(found)

    def view(self, key: str) -> memoryview | None:
        """The same without a copy, read-only and mapped: processes that look at it share the memory."""
        place = self._place(key)
        try:
            with open(place, "rb") as file:
                stored = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            with contextlib.suppress(OSError):  # pushed out meanwhile by another process, or a read-only disk
                os.utime(place)
        except FileNotFoundError:
            return None
        except ValueError:  # nothing to map
            stored = memoryview(b"")
        except OSError as error:
            warn_once(logger, f"cannot read the cache in {self.folder}", error)
            return None
        if hashlib.sha256(stored[_DIGEST:]).digest() == stored[:_DIGEST]:
            return stored[_DIGEST:]
        logger.warning("dropping a damaged entry of the cache in %s", self.folder)
        with contextlib.suppress(OSError):
            place.unlink()
        return None

    def put(self, key: str, data: bytes | bytearray) -> bool:
        """Keeps `data`. `False` if it is too large or the folder cannot be written, which is logged."""
        needed = _DIGEST + len(data)
        if needed > self.max_bytes:
            return False
        place = self._place(key)
        try:
            # The room is made and taken under one lock, or two writers would both take it.
            with alone(self.folder / ".lock", _LOCK_WAIT, 0o700):
                self._make_room(needed)
                write_file(place, hashlib.sha256(data).digest(), data, mode=0o700)
        except OSError as error:  # includes a full disk
            warn_once(logger, f"cannot write to the cache in {self.folder}", error)
            return False
        return True

    def _make_room(self, needed: int) -> None:
        """To look at all entries for each new one would take longer than to fetch it: a file holds the sum."""
        book = self.folder / ".sum"
        taken = self.max_bytes
        with contextlib.suppress(OSError, ValueError):
            taken = int(book.read_bytes())
        if taken + needed > self.max_bytes:
            found = list(entries(self.folder))
            taken = sum(size for _, size, _ in found)
            taken -= prune(found, self.max_bytes * 9 // 10 - needed)
        # Before the entry itself: whoever is killed in between leaves a sum that is too large, which mends itself.
        with open(os.open(book, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
            file.write(b"%d" % (taken + needed))

    def alone(self, key: str, seconds: float = _LOCK_WAIT) -> contextlib.AbstractContextManager[bool]:
        """Lets one process at a time make the same entry; others wait, and then find it."""
        return alone(self.folder / ".locks" / self._place(key).name[:2], seconds, 0o700)

    def once(self, key: str, make: Callable[[], bytes], seconds: float = _LOCK_WAIT) -> bytes:
        """The bytes of `key`, made and kept if they are not here; processes that start together make them once."""
        content = self.get(key)
        if content is None:
            with self.alone(key, seconds):
                content = self.get(key)
                if content is None:
                    content = make()
                    self.put(key, content)
        return content

    def _place(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / name


# --- what comes from a Hub -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """Where the files of a Hub are kept, and how much of them.

    Args:
        hub: Whole files, in the layout of the Hub's own cache.
        ours: The rest: listings, pieces of files, members of archives.
        limit: Bytes that the whole files of one repository may take; above it nothing more is kept, and nothing
            that lies there is removed. Pieces and members take no more than as much again; of them the oldest
            go first.
    """

    hub: Path
    ours: Path
    limit: int | None = DEFAULT_SIZE

    @property
    def listings(self) -> DiskCache:
        """Small things that the rest cannot be used without."""
        return DiskCache(self.ours / "listings", GIB // 4)

    @property
    def pieces(self) -> DiskCache:
        """Pieces of files, and members."""
        return DiskCache(self.ours / "pieces", self.limit or DEFAULT_SIZE)


CacheLike = str | os.PathLike[str] | bool | None


def chosen_cache(cache: CacheLike = None, size: int | str | None = None) -> Cache | None:
    """The cache that a call asks for.

    Args:
        cache: `"auto"`: whole files in the Hub's own cache are used, and what is fetched is kept there until its
            files of the repository take `size`, 10 GiB by default. `True`: the same without a bound, but for a
            `size` that is given. A folder: like `True`, with that folder in the place of the Hub's cache. `False`:
            nothing on disk is used or kept. Default: `$REASONKNEE_CACHE`, else `"auto"`.
        size: Bytes, or text such as `"50GB"`. Default: `$REASONKNEE_CACHE_SIZE`.

    Returns:
        `None` for no cache.

    Raises:
        OptionError: `cache` or `size` is something else.
    """
    from huggingface_hub import constants

    if cache is None or isinstance(cache, str):
        cache = environment.cache(cache)
    if not isinstance(cache, (bool, str, os.PathLike)):
        raise OptionError(f"cache={cache!r} is none of 'auto', True, False and a folder")
    limit = environment.cache_bytes() if size is None else environment.as_bytes("cache_size", size)
    if cache is False or limit == 0:
        return None
    if isinstance(cache, bool) or cache == "auto":
        bound = limit if cache is True or limit is not None else DEFAULT_SIZE
        return Cache(Path(constants.HF_HUB_CACHE), our_folder("hub"), bound)
    folder = Path(os.path.abspath(os.path.expanduser(cache)))
    return Cache(folder, folder / ".reasonknee_hf", limit)


class ForkSafeLock:
    """A reentrant lock that a forked child finds open, whatever thread of the parent held it.

    Pickles as a new lock, so that its owner can be pickled without further ado.
    """

    _all: ClassVar[weakref.WeakSet[ForkSafeLock]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._lock = threading.RLock()
        ForkSafeLock._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[ForkSafeLock], tuple[()]]:
        return ForkSafeLock, ()

    @classmethod
    def _renew_all(cls) -> None:
        for lock in list(cls._all):
            lock._lock = threading.RLock()


class ForkSafeFilesystem:
    """A filesystem of `fsspec` that a forked child can use as well.

    Asynchronous ones refuse to work there: they belong to an event loop whose thread stayed in the parent.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._pid = os.getpid()

    def get(self) -> Any:
        """The filesystem, made anew after a fork."""
        if self._pid != os.getpid():
            self._filesystem, self._pid = pickle.loads(pickle.dumps(self._filesystem)), os.getpid()
        return self._filesystem

    def __reduce__(self) -> tuple[type[ForkSafeFilesystem], tuple[Any]]:
        return ForkSafeFilesystem, (self._filesystem,)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ForkSafeLock._renew_all)
    if not hasattr(fsspec.asyn, "reset_after_fork"):
        # Versions of fsspec without this function leave the child waiting for the loop of its parent.
        os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)
