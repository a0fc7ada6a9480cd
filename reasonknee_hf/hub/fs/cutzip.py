"""A zip archive in one or several parts, over any fsspec filesystem (`cutzip`), and written into one file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from reasonknee_hf.errors import ArchiveError, IntegrityError, OptionError
from reasonknee_hf.hub.disk import alone, our_folder, write_file
from reasonknee_hf.hub.fs.readonly import Folders, Info, ReadOnlyFileSystem
from reasonknee_hf.hub.tree import FileEntry, Tree
from reasonknee_hf.hub.trees.folder_tree import FsspecFiles
from reasonknee_hf.hub.wire.checks import ContentCheck
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet, find_part_sets


class CutZipFileSystem(ReadOnlyFileSystem):
    """Read-only filesystem over the members of a zip archive, cut into parts or whole.

        fs = CutZipFileSystem("hf://datasets/owner/name/data", parts=["masks_aa", "masks_ab"])
        fs.cat("masks/knee_003.nii.gz")

    Each instance reads the directory of the archive once. As with zips in `fsspec`, instances are not shared: nothing
    in the arguments tells whether the parts are still the same. Keep one to read many members.

    Args:
        fo: Filesystem or URL. With `parts`, of the folder they lie in; without, of the zip or of its first
            part, and the other parts are found by their names.
        parts: Names of the parts below `fo`, first byte first.
        target_protocol: Of the filesystem below, where `fo` is a bare path.
        target_options: For the filesystem below.
        encoding: Code page of member names that are not flagged as UTF-8.
        directory_cache: Folder that keeps the directory for other processes. Only for parts that never
            change: they are told apart by URL, names and sizes.

    Examples:
        >>> fs = CutZipFileSystem(str(rk.knee.sample.sample_folder() / "data/masks_aa"))
        >>> len(fs.find(""))
        9
    """

    protocol = "cutzip"
    cachable = False

    def __init__(
        self,
        fo: Any = "",
        parts: Sequence[str] | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        encoding: str | None = None,
        directory_cache: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(fo, AbstractFileSystem):
            base, root = fo, ""
        else:
            options = dict(target_options or {})
            if target_protocol is not None:
                options["protocol"] = target_protocol
            base, root = fsspec.core.url_to_fs(os.fspath(fo), **options)
        if parts is None:
            found = _find_parts(base, root)
        else:
            found = PartSet("", tuple(f"{root.rstrip('/')}/{part}" if root else part for part in parts))
        self.archive = CutArchive(
            FsspecFiles(base, found.paths), found, encoding=encoding, directory_cache=directory_cache or False
        )

    @cached_property
    def _listing(self) -> Folders:
        directory = self.archive.directory
        names = self.archive.path_names
        return Folders({name: {"size": directory[directory.files[name]].size} for name in names})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.archive.name!r})"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.strip("/") if isinstance(stripped, str) else stripped

    def _info(self, path: str) -> Info | None:
        return self._listing.get(path)

    def _children(self, path: str) -> list[Info] | None:
        return self._listing.children(path)

    def _contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        paths = list(paths)
        for path in paths:
            if self.info(path)["type"] == "directory":
                raise IsADirectoryError(f"{path!r} of {self.archive.name} is a folder")
        return self.archive.read_many(paths)


def _find_parts(base: Any, path: str) -> PartSet:
    """The archive that a path is a part of, by the names beside it."""
    try:
        siblings = [base._strip_protocol(found) for found in base.ls(base._parent(path), detail=False)]
    except (OSError, NotImplementedError):  # no listing, as with most web servers
        siblings = []
    for parts in find_part_sets(siblings).values():
        if path in parts.paths:
            return parts
    return PartSet("", (path,))


logger = logging.getLogger(__name__)

_BLOCK = 1024 * 1024


def join(
    tree: Tree,
    parts: PartSet,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    check_members: bool | None = None,
) -> Path:
    """Writes the whole archive to `out`.

    The bytes are collected in `<out>.partial`. A run that was killed is continued by the next one; what it
    left is verified like everything else. `out` appears when all is verified: the size and, where it is
    published, the hash of every part, then the directory, then the members. Until then an existing `out`
    stays as it is.

    Args:
        tree: Where the parts lie.
        parts: Found by [`find_part_sets`].
        out: File to write; its folder is made if absent.
        overwrite: Replace an existing file.
        check_members: Also read every member of the result and check its CRC. Default: only where the hash of
            a part is not known.

    Returns:
        The path of the file.

    Raises:
        OptionError: `out` exists, or is a folder.
        ArchiveError: The parts are not one archive, the disk has no room, or another process writes the same
            file.
        IntegrityError: A part is not what was published. What was right so far is kept for the next run.
    """
    target = Path(out).absolute()
    if target.is_dir() or (target.exists() and not overwrite):
        raise OptionError(
            f"{target} exists. Name another file, or allow to replace it (`overwrite`, `--force`)"
        )
    archive = CutArchive(tree, parts)
    sizes = archive.part_sizes  # opening proves that the parts belong together, before anything is written
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    lock = our_folder("archives", "locks") / hashlib.sha256(os.fsencode(target)).hexdigest()
    try:
        with alone(lock, 0) as free:
            if not free:
                raise ArchiveError(f"another process is writing {target} at this moment")
            _refuse_without_room(target, sum(sizes) - _kept(partial, tree, parts, sizes))
            hashed = _fetch(partial, tree, parts, sizes)
            _check_whole(partial, archive, members=not hashed if check_members is None else check_members)
            os.replace(partial, target)
            _state_file(partial).unlink()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted. The next run goes on with what is in {partial}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArchiveError(
                f"no room left while writing {partial}. Make room and run it again: it goes on from there"
            ) from error
        raise
    return target


def _state_file(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _kept(partial: Path, tree: Tree, parts: PartSet, sizes: tuple[int, ...]) -> int:
    """Bytes of an earlier run that can be used. Makes an empty file where there are none."""
    state: dict[str, Any] = {"tree": tree.identity, "parts": dict(zip(parts.paths, sizes, strict=True))}
    earlier: Any = None
    with contextlib.suppress(OSError, ValueError):
        earlier = json.loads(_state_file(partial).read_bytes())
    kept = partial.stat().st_size if partial.exists() else 0
    if earlier == state and 0 < kept <= sum(sizes):
        logger.info("going on with %d bytes in %s", kept, partial)
        return kept
    if kept:
        logger.info("%s is of something else and is written anew", partial)
    partial.write_bytes(b"")
    write_file(_state_file(partial), json.dumps(state).encode())
    return 0


def _refuse_without_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise ArchiveError(
            f"{target.parent} has {free:,} bytes free, {needed:,} are needed. Make room or name another "
            f"folder"
        )


def _fetch(partial: Path, tree: Tree, parts: PartSet, sizes: tuple[int, ...]) -> bool:
    """Fills the partial file. Returns whether every part was compared with a published hash."""
    from datasets.utils import tqdm

    hashed = True
    with (
        open(partial, "r+b") as file,
        tqdm(total=sum(sizes), unit="B", unit_scale=True, unit_divisor=1024, desc=partial.stem) as bar,
    ):
        start = 0
        for path, size in zip(parts.paths, sizes, strict=True):
            entry = tree.entry(path)
            hashed &= bool(entry.sha256 or entry.blob_id)
            for last in (False, False, True):
                try:
                    _fetch_part(file, start, size, entry, tree, bar)
                    break
                except IntegrityError as error:
                    # What an earlier run left may be damaged, and an endpoint that gave wrong bytes comes last
                    # now.
                    file.truncate(start)
                    if last:
                        raise
                    logger.warning("%s; fetching the part once more from its start", error)
                    bar.update(start - bar.n)
            start += size
        file.flush()
        os.fsync(file.fileno())
    return hashed


def _fetch_part(file: BinaryIO, start: int, size: int, entry: FileEntry, tree: Tree, bar: Any) -> None:
    """Completes one part from `start` on and verifies it."""
    kept = min(size, max(0, os.fstat(file.fileno()).st_size - start))
    check = ContentCheck(replace(entry, size=size))
    file.seek(start)
    for block in _blocks(file, kept):
        check.update(block)
        bar.update(len(block))
    for chunk in _rest(tree, entry.path, kept, size):
        file.write(chunk)
        check.update(chunk)
        bar.update(len(chunk))
    check.finish(f"{entry.path} of {tree.name}")


def _rest(tree: Tree, path: str, kept: int, size: int) -> Iterator[bytes]:
    if kept == 0:
        yield from tree.stream(path)  # as a whole, so that the tree can verify it too
    elif kept < size:
        yield from tree.stream(path, kept, size)


def _blocks(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length > 0 and (block := file.read(min(_BLOCK, length))):
        length -= len(block)
        yield block


def _check_whole(partial: Path, archive: CutArchive, *, members: bool) -> None:
    """Opens the result as an archive of its own and compares it. Removes it if it is not right."""
    joined = CutZipFileSystem(LocalFileSystem(), parts=[str(partial)]).archive
    try:
        if list(joined.directory) != list(archive.directory):
            raise ArchiveError(f"{partial} holds other members than {archive.name}")
        if members:
            for _ in joined.read_many(joined.names()):
                pass
    except (ArchiveError, IntegrityError):
        partial.unlink()
        _state_file(partial).unlink()
        raise
