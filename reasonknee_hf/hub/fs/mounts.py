"""A tree whose zip archives look like folders: `data/masks_aa` + `data/masks_ab` become `data/masks/…`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.fs.folders import Folders, Info
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.member_names import SuffixIndex, parent_folders
from reasonknee_hf.hub.zips.parts import PartSet, find_part_sets


@dataclass(frozen=True)
class Found:
    """Where the bytes of a path lie: in a member of an archive, or, without one, in a file of the tree."""

    path: str
    archive: CutArchive | None = None
    member: str = ""


class MountedTree:
    """A tree and its archives. Archives are opened when something in them is asked for, not before.

    The members of an archive appear in the folder that its parts are named after, without the leading folder
    that all of them share. A real folder of that name wins: what is unpacked needs no archive.

    Args:
        tree: The files as they are.
        open_archive: Makes the archive of a set of parts.
    """

    def __init__(self, tree: Tree, open_archive: Callable[[Tree, PartSet], CutArchive] = CutArchive) -> None:
        self.tree = tree
        self._open_archive = open_archive
        self._mounted: dict[str, Folders] = {}

    @cached_property
    def archives(self) -> Mapping[str, CutArchive]:
        """Every archive by the folder that its members appear in."""
        paths = self.tree.entries()
        folders = parent_folders(paths)
        return {
            mount: self._open_archive(self.tree, parts)
            for mount, parts in find_part_sets(paths).items()
            if mount not in folders and mount not in paths
        }

    @cached_property
    def _files(self) -> Folders:
        entries = self.tree.entries().values()
        return Folders(
            {e.path: {"size": e.size, "blob_id": e.blob_id, "sha256": e.sha256} for e in entries},
            folders=self.archives,
        )

    def _split(self, path: str) -> tuple[str, str] | None:
        """The mount that a path lies in, and the rest of the path."""
        for end in (*_slashes(path), len(path)):
            if path[:end] in self.archives:
                return path[:end], path[end + 1 :]
        return None

    def _listing(self, mount: str) -> Folders:
        if mount not in self._mounted:
            archive = self.archives[mount]
            directory = archive.directory
            sizes = {
                f"{mount}/{path}": {"size": directory[directory.files[name]].size}
                for path, name in archive.mounted.items()
            }
            self._mounted[mount] = Folders(sizes, folders=[mount])
        return self._mounted[mount]

    def info(self, path: str) -> Info | None:
        """About one file, member or folder; `None` where there is none."""
        split = self._split(path)
        if not split or not split[1]:
            return self._files.get(path)
        archive = self.archives[split[0]]
        name = archive.mounted.get(split[1])
        if name is not None:  # without a listing of all the others
            return {"name": path, "type": "file", "size": archive.member(name).size}
        return self._listing(split[0]).get(path)

    def children(self, path: str) -> list[Info] | None:
        """What lies directly in a folder; `None` where it is no folder."""
        split = self._split(path)
        return self._listing(split[0]).children(path) if split else self._files.children(path)

    def locate(self, path: str) -> Found:
        """Where the bytes of a file lie.

        Raises:
            FileMissingError: Neither a file nor a member has this path.
            IsADirectoryError: It is a folder.
        """
        split = self._split(path)
        if split and split[1]:
            archive = self.archives[split[0]]
            name = archive.mounted.get(split[1])
            if name is not None:
                return Found(path, archive, name)
        elif path in self.tree.entries():
            return Found(path)
        if self.info(path) is not None:
            raise IsADirectoryError(f"{path!r} of {self.tree.name} is a folder")
        if split is None:
            self.tree.entry(path)  # says that it is missing, or why nobody can know that
        raise FileMissingError(
            f"there is no {path!r} in {self.archives[split[0]].name if split else self.tree.name}"
        )

    def members(self, folder: str) -> list[str]:
        """Paths of all members below a mount, relative to it. For an unpacked folder, of its files."""
        folder = folder.strip("/")
        if folder in self.archives:
            return list(self.archives[folder].mounted)
        prefix = f"{folder}/" if folder else ""
        return [path[len(prefix) :] for path in self.tree.entries() if path.startswith(prefix)]

    @cached_property
    def _suffixes(self) -> SuffixIndex:
        return SuffixIndex(
            itertools.chain.from_iterable(
                (f"{mount}/{path}" for path in archive.mounted) for mount, archive in self.archives.items()
            )
        )

    def resolve_member(self, published: str) -> str:
        """The path of the member that shares the most last components with a published path.

        Raises:
            MemberMissingError: No archive holds such a file.
            AmbiguousPathError: Several members fit equally well.
        """
        return self._suffixes.find(published, f"the archives of {self.tree.name}")


def _slashes(path: str) -> Iterator[int]:
    return (index for index, character in enumerate(path) if character == "/")
