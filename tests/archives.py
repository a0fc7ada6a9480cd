"""Zip archives for tests, and a tree that counts what is asked of it."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Mapping, Sequence

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.archive import CutArchive
from reasonknee_hf.hub.parts import PartSet
from reasonknee_hf.hub.tree import FileEntry


class CountingTree:
    """A [`Tree`] over bytes in memory.

    Args:
        files: Path -> content.
        sha: As of a Hub tree; `None` as of a folder.
        unlisted: Paths whose size the listing does not tell.

    Attributes:
        requests: `(path, start, stop)` of every range that was read.
        asked_sizes: Paths whose size was asked for one by one.
    """

    def __init__(self, files: Mapping[str, bytes], *, sha: str | None = None, unlisted: Sequence[str] = ()) -> None:
        self.files = dict(files)
        self.sha = sha
        self.unlisted = set(unlisted)
        self.name = "tree of the test"
        self.identity = f"test/tree@{sha}"
        self.requests: list[tuple[str, int, int]] = []
        self.asked_sizes: list[str] = []
        self.running = self.most_running = 0
        self._lock = threading.Lock()

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def entries(self) -> Mapping[str, FileEntry]:
        return {
            path: FileEntry(path, None if path in self.unlisted else len(content))
            for path, content in sorted(self.files.items())
        }

    def entry(self, path: str) -> FileEntry:
        if path not in self.files:
            raise FileMissingError(path)
        return self.entries()[path]

    def size(self, path: str) -> int:
        self.asked_sizes.append(path)
        if path not in self.files:
            raise FileMissingError(path)
        return len(self.files[path])

    def read(self, path: str) -> bytes:
        return self.files[path]

    def ranges(self, path: str, spans, *, checked_later: bool = False) -> list[bytes]:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        answers = []
        for start, stop in spans:
            assert 0 <= start < stop <= len(self.files[path]), (path, start, stop)
            with self._lock:
                self.requests.append((path, start, stop))
            answers.append(self.files[path][start:stop])
        with self._lock:
            self.running -= 1
        return answers

    def stream(self, path: str, start: int = 0, stop: int | None = None):
        yield self.files[path][start:stop]

    def url(self, path: str) -> str:
        return f"counting://{path}"

    @property
    def sent(self) -> int:
        """Bytes of all answers so far."""
        return sum(stop - start for _, start, stop in self.requests)

    def forget(self) -> None:
        """Empties the records."""
        self.requests.clear()
        self.asked_sizes.clear()


def make_zip(members: Mapping[str, bytes], *, compression: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> bytes:
    """A zip as the standard library writes it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2025, 5, 15, 0, 0, 0)), content, compression)
        archive.comment = comment
    return target.getvalue()


def cut(data: bytes, *positions: int) -> dict[str, bytes]:
    """The pieces of `data` as `masks_aa`, `masks_ab`, …"""
    bounds = [0, *sorted(positions), len(data)]
    return {
        f"masks_a{chr(ord('a') + number)}": data[start:stop]
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False))
    }


def open_cut(data: bytes, *positions: int, **options) -> CutArchive:
    """An archive over a counting tree that holds `data` in pieces."""
    files = cut(data, *positions)
    return CutArchive(CountingTree(files), PartSet("masks", tuple(files)), **options)


def contents(archive: CutArchive) -> dict[str, bytes]:
    """Everything that can be read."""
    return dict(archive.read_many(archive.names()))
