"""A file of a tree as a Python file object: one plain GET read from the front, ranges after a seek."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

from reasonknee_hf.hub.tree import Tree

# Least bytes of a range after a seek: about what a line transfers in the time of a round trip.
_BLOCK = 256 * 1024


class _RawTreeFile(io.RawIOBase):
    def __init__(self, tree: Tree, path: str) -> None:
        self._tree, self._path = tree, path
        self._position = 0
        self._stream: Iterator[bytes] | None = None  # delivers from `_position + len(_ahead)` on
        self._ahead = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += self._tree.size(self._path)
        if offset < 0:
            raise ValueError(f"seek to {offset}")
        ahead = offset - self._position
        if 0 <= ahead < len(self._ahead):
            self._ahead = self._ahead[ahead:]
        elif ahead:
            self._drop()
        self._position = offset
        return offset

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if not self._ahead:
            self._ahead = memoryview(self._next(len(target)))
        count = min(len(target), len(self._ahead))
        target[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        self._position += count
        return count

    def _next(self, length: int) -> bytes:
        if self._position == 0 and self._stream is None:
            self._stream = self._tree.stream(self._path)
        if self._stream is not None:
            try:
                return next(self._stream, b"")
            except BaseException:
                self._drop()  # a stream that failed would say next time that the file ends here
                raise
        size = self._tree.size(self._path)
        stop = min(size, self._position + max(length, _BLOCK))
        return self._tree.ranges(self._path, [(self._position, stop)])[0] if self._position < size else b""

    def _drop(self) -> None:
        stream, self._stream, self._ahead = self._stream, None, memoryview(b"")
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]  # a generator: closes the connection

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()


class TreeFile(io.BufferedReader):
    """A seekable reader over [`Tree`].

    Args:
        tree: Where the file lies.
        path: Of the listing.
    """

    def __init__(self, tree: Tree, path: str) -> None:
        super().__init__(_RawTreeFile(tree, path))
        self.path = path
        self.size = tree.entry(path).size


class ContentFile(io.BufferedReader):
    """A file whose content is in memory already, with the size that callers of fsspec files ask for."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))  # a raw file in all that is used
        self.size = len(content)
