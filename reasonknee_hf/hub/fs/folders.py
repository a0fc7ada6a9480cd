"""Folders of a flat list of paths, in the form that fsspec wants them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

Info = dict[str, Any]


class Folders:
    """What `ls` and `info` need to know of a set of files. Built once, looked up by path.

    Args:
        files: Posix path -> what fsspec shall tell about the file beside its name and type.
        folders: Folders that exist although no file lies in them.
    """

    def __init__(self, files: Mapping[str, Info], folders: Iterable[str] = ()) -> None:
        self._infos: dict[str, Info] = {"": _folder_info("")}
        self._children: dict[str, list[str]] = {"": []}
        for folder in folders:
            self._add_folder(folder)
        for path, info in files.items():
            parent = posixpath.dirname(path)
            self._add_folder(parent)
            self._children[parent].append(path)
            self._infos[path] = {"name": path, "type": "file", **info}

    def _add_folder(self, folder: str) -> None:
        chain = []
        while folder not in self._children:
            chain.append(folder)
            folder = posixpath.dirname(folder)
        for missing in reversed(chain):
            self._children[missing], self._infos[missing] = [], _folder_info(missing)
            self._children[posixpath.dirname(missing)].append(missing)

    def get(self, path: str) -> Info | None:
        """About one file or folder, `None` where there is none."""
        info = self._infos.get(path)
        return None if info is None else dict(info)

    def children(self, folder: str) -> list[Info] | None:
        """What lies directly in a folder, sorted by name; `None` where it is no folder."""
        names = self._children.get(folder)
        return None if names is None else [dict(self._infos[name]) for name in sorted(names)]


def _folder_info(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}
