"""A zip archive in one or several parts, over any fsspec filesystem: `cutzip`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from reasonknee_hf.hub.fs.readonly import Folders, Info, ReadOnlyFileSystem
from reasonknee_hf.hub.trees.folder_tree import FsspecFiles
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.parts import PartSet, find_part_sets


class CutZipFileSystem(ReadOnlyFileSystem):
    """Read-only filesystem over the members of a zip archive, cut into parts or whole.

    >>> fs = CutZipFileSystem("hf://datasets/owner/name/data", parts=["masks_aa", "masks_ab"])
    >>> fs.cat("masks/knee_003.nii.gz")

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
