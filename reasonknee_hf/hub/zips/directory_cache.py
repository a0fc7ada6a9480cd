"""Directories of archives on disk, for the next process. Safe with many processes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reasonknee_hf.hub.disk import GIB, DiskCache, our_folders

# Names the form of what is kept: the number goes up when the fields of `Location` change.
_FORM = "zip directory 1"


def default_folder() -> Path:
    """The folder below `HF_HOME` that directories are kept in."""
    return our_folders()["directories"]


class CachedDirectory:
    """One directory on disk.

    What was damaged, or kept for something else, counts as absent and is written anew. A folder that cannot be
    written to costs speed, not the read.

    Args:
        folder: Made if absent.
        identity: Of the tree the parts lie in, see [`Tree`].
        paths: Of the parts.
        sizes: Of the parts as listed.
    """

    def __init__(
        self, folder: str | os.PathLike[str], identity: str, paths: Sequence[str], sizes: Sequence[int | None]
    ) -> None:
        self._cache = DiskCache(Path(folder), GIB)
        self._key = json.dumps([_FORM, identity, list(paths), list(sizes)])

    def load(self) -> tuple[dict[str, Any], bytes] | None:
        """The numbers and the bytes that were stored, `None` where there are none to be trusted."""
        stored = self._cache.get(self._key)
        if stored is None:
            return None
        head, _, data = stored.partition(b"\n")
        return json.loads(head), data

    def store(self, numbers: dict[str, Any], data: bytes) -> None:
        """Keeps `numbers` and `data`."""
        self._cache.put(self._key, json.dumps(numbers).encode() + b"\n" + data)

    def alone(self) -> contextlib.AbstractContextManager[bool]:
        """Lets one process at a time in, so that several that start together fetch the directory once."""
        return self._cache.alone(self._key)
