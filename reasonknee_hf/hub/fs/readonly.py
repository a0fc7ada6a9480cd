"""What the filesystems of this package share: they list from memory, read by path, and refuse to write.

A tree is listed with its zip archives opened like folders: `data/masks_aa` + `data/masks_ab` become `data/masks/…`.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import unquote

from fsspec import AbstractFileSystem

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.fs.treefile import MemberFile, said
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet, find_part_sets, parent_folders

Info = dict[str, Any]
Span = tuple["int | None", "int | None"]  # the bounds of a Python slice


class ReadOnlyFileSystem(AbstractFileSystem):
    """A filesystem whose content never changes. Leaves say what there is and how it is read."""

    root_marker = ""
    cachable = True

    # --- what a leaf provides -------------------------------------------------------------------------------

    def _info(self, path: str) -> Info | None:
        """About one file or folder, `None` where there is none."""
        raise NotImplementedError

    def _children(self, path: str) -> list[Info] | None:
        """What lies directly in a folder, `None` where it is no folder."""
        raise NotImplementedError

    def _contents(self, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
        """The whole content of several files, each once, in any order."""
        raise NotImplementedError

    def _stretches(self, spans: Mapping[str, list[Span]]) -> Iterable[tuple[str, list[bytes]]]:
        """Stretches of several files, by path. Leaves that can read less than a whole file override this."""
        for path, content in self._contents(spans):
            yield path, [content[start:end] for start, end in spans[path]]

    # --- listing --------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> Info:
        path = self._strip_protocol(path)
        info = self._info(path)
        if info is None:
            shown = unquote(path) if "%3A%2F%2F" in path else path  # the source inside one of our URLs
            raise FileMissingError(f"there is no {shown!r} in {self!r}")
        return info

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = self._children(path)
        if found is None:
            found = [self.info(path)]
        return found if detail else [info["name"] for info in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._info(self._strip_protocol(path)) is not None

    def isfile(self, path: str) -> bool:
        return self._is(path, "file")

    def isdir(self, path: str) -> bool:
        return self._is(path, "directory")

    def _is(self, path: str, kind: str) -> bool:
        info = self._info(self._strip_protocol(path))
        return info is not None and info["type"] == kind

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """As in fsspec, but a folder that cannot be listed is an error unless `on_error` says otherwise.

        `find`, `glob`, `du`, `get` and `expand_path` stand on this; without it an archive that cannot be opened
        would look empty to them.
        """
        on_error = kwargs.setdefault(
            "on_errors", on_error
        )  # fsspec hands on to folders below all but `on_error`
        if on_error is not None or self.exists(path):  # what is not there is empty
            yield from super().walk(path, maxdepth, topdown, on_error=on_error or "raise", **kwargs)

    # --- reading --------------------------------------------------------------------------------------------

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return next(iter(self._contents([path])))[1]
        return next(iter(self._stretches({path: [(start, end)]})))[1][0]

    def cat(
        self, path: str | list[str], recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        """Contents of one file (`bytes`) or several (`dict` by path). Files that lie together travel
        together.

        Args:
            path: One path, a list, or a pattern.
            recursive: Take everything below folders.
            on_error: `"raise"`, `"omit"` or `"return"` (the exception in place of the content).
        """
        paths = self.expand_path(path, recursive=recursive)
        if recursive:
            paths = [found for found in paths if not self.isdir(found)]
        elif isinstance(path, str) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0])
        contents = _collect(self._contents, paths, on_error)
        return {path: contents[path] for path in paths if path in contents}

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int],
        ends: int | list[int],
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        paths = [self._strip_protocol(path) for path in paths]
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends")
        spans: dict[str, list[Span]] = {}
        for path, start, end in zip(paths, starts, ends, strict=True):
            spans.setdefault(path, []).append((start, end))
        found = _collect(
            lambda some: self._stretches({path: spans[path] for path in some}),
            list(spans),
            "raise" if on_error == "raise" else "return",  # each range has its place in the answer
        )
        turns = {path: iter(answer) for path, answer in found.items() if not isinstance(answer, Exception)}
        return [next(turns[path]) if path in turns else found[path] for path in paths]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            self._refuse(path)
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(f"{path!r} of {self!r} is a folder")
        return MemberFile(self, path, **{"cache_type": "none", **said(options), "size": info["size"]})

    # --- writing is refused ---------------------------------------------------------------------------------

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]) if args else self.protocol)

    mkdir = makedirs = rmdir = rm = rm_file = _rm = delete = _refuse
    cp_file = copy = cp = mv = mv_file = move = rename = _refuse
    put_file = put = upload = pipe_file = pipe = write_bytes = write_text = touch = _refuse


def _collect(
    read: Callable[[Iterable[str]], Iterable[tuple[str, Any]]], paths: Iterable[str], on_error: str
) -> dict[str, Any]:
    """What `read` yields, by path. Unless errors are raised, the exception stands in for what could not be
    read, or nothing does with `on_error="omit"`."""
    found: dict[str, Any] = {}
    paths = list(dict.fromkeys(paths))
    try:
        found.update(read(paths))
    except Exception:
        if on_error == "raise":
            raise
        for path in paths:  # one by one, to learn which of them it was
            if path not in found:
                try:
                    found.update(read([path]))
                except Exception as error:
                    if on_error != "omit":
                        found[path] = error
    return found


def slice_bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """The half-open range inside a file that a slice with these bounds covers."""
    first, stop, _ = slice(start, end).indices(size)
    return first, max(first, stop)


# --- listings ---------------------------------------------------------------------------------------------


class Folders:
    """What `ls` and `info` need to know of a set of files. Built once, looked up by path.

    Args:
        files: Posix path -> what fsspec shall tell about the file beside its name and type.
        folders: Folders that exist although no file lies in them.
    """

    def __init__(self, files: Mapping[str, Info], folders: Iterable[str] = ()) -> None:
        above = parent_folders([*files, *(f"{folder}/file" for folder in folders)])
        every = {name: {"name": name, "size": 0, "type": "directory"} for name in ("", *above)}
        self._infos: dict[str, Info] = {
            **every,
            **{path: {"name": path, "type": "file", **info} for path, info in files.items()},
        }
        self._children: dict[str, list[str]] = {folder: [] for folder in every}
        for path in self._infos.keys() - {""}:
            self._children[posixpath.dirname(path)].append(path)

    def get(self, path: str) -> Info | None:
        """About one file or folder, `None` where there is none."""
        info = self._infos.get(path)
        return None if info is None else dict(info)

    def children(self, folder: str) -> list[Info] | None:
        """What lies directly in a folder, sorted by name; `None` where it is no folder."""
        names = self._children.get(folder)
        return None if names is None else [dict(self._infos[name]) for name in sorted(names)]


@dataclass(frozen=True)
class Whereabouts:
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
        sizes = {path: entry.size for path, entry in paths.items()}
        return {
            mount: self._open_archive(self.tree, parts)
            for mount, parts in find_part_sets(paths, sizes).items()
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
        steps = path.split("/")
        for depth in range(1, len(steps) + 1):
            mount = "/".join(steps[:depth])
            if mount in self.archives:
                return mount, "/".join(steps[depth:])
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

    def locate(self, path: str) -> Whereabouts:
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
                return Whereabouts(path, archive, name)
        elif path in self.tree.entries():
            return Whereabouts(path)
        if self.info(path) is not None:
            raise IsADirectoryError(f"{path!r} of {self.tree.name} is a folder")
        if split is None:
            self.tree.entry(path)  # says that it is missing, or why nobody can know that
        inside = self.archives[split[0]].name if split else self.tree.name
        raise FileMissingError(f"there is no {path!r} in {inside}")

    def state(self, found: Whereabouts) -> list[tuple[int, int, int]]:
        """Size, time and number of the local files behind it; nothing of a commit, which does not change."""
        if self.tree.sha is not None:
            return []
        paths = [found.path] if found.archive is None else found.archive.parts.paths
        states = [os.stat(file) for file in map(self.tree.url, paths) if os.path.isfile(file)]
        return [(state.st_size, state.st_mtime_ns, state.st_ino) for state in states]

    def members(self, folder: str) -> list[str]:
        """Paths of all members below a mount, relative to it. For an unpacked folder, of its files."""
        folder = folder.strip("/")
        if folder in self.archives:
            return list(self.archives[folder].mounted)
        prefix = f"{folder}/" if folder else ""
        return [path[len(prefix) :] for path in self.tree.entries() if path.startswith(prefix)]
