"""Files of a tree and members of an archive as file objects that any part of fsspec can work with."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from fsspec.caching import BaseCache
from fsspec.spec import AbstractBufferedFile

from reasonknee_hf.hub.tree import Tree


class FromTheFront(BaseCache):
    """Reads on in one stream as long as nobody jumps, and keeps what came but was not taken yet.

    Args:
        blocksize: Least bytes of a range after a jump.
        fetcher: Reads a range.
        size: Bytes of the file.
        open_stream: Begins to read from the front.
    """

    name = "from-the-front"

    def __init__(
        self,
        blocksize: int,
        fetcher: Callable[[int, int], bytes],
        size: int,
        open_stream: Callable[[], Iterator[bytes]],
    ) -> None:
        super().__init__(blocksize, fetcher, size)
        self._open_stream = open_stream
        self._stream: Iterator[bytes] | None = None  # delivers from the end of what is kept on
        self._kept, self._start = b"", 0

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = start or 0, self.size if stop is None else min(stop, self.size)
        if not self._start <= start <= self._start + len(self._kept):
            self.close()
            self._start = start
        if stop > self._start + len(self._kept):
            pieces = [self._kept[start - self._start :]]
            position = start + len(pieces[0])
            while position < stop and (piece := self._next(position, stop)):
                pieces.append(piece)
                position += len(piece)
            self._kept, self._start = b"".join(pieces), start
        found = self._kept[start - self._start : max(0, stop - self._start)]
        if len(found) > self.blocksize:  # nobody goes back that far, as the search for the end of a line does
            self._kept, self._start = self._kept[stop - self._start :], start + len(found)
        return found

    def _next(self, position: int, stop: int) -> bytes:
        if position == 0 and self._stream is None:
            self._stream = self._open_stream()
        if self._stream is not None:
            try:
                return next(self._stream, b"")
            except BaseException:
                # A stream that failed would say next time that the file ends here, and what came of it is not
                # to be believed.
                self.close()
                raise
        data: bytes = self.fetcher(position, min(self.size, max(stop, position + self.blocksize)))
        return data

    def close(self) -> None:
        """Ends the stream, and with it the connection, and forgets what came."""
        stream, self._stream, self._kept = self._stream, None, b""
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]  # a generator


def said(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `open` without those that say nothing: `None`, or blocks of no bytes."""
    return {name: value for name, value in options.items() if value}


class MemberFile(AbstractBufferedFile):
    """A member of an archive, read as a whole when its first byte is asked for."""

    _content: bytes | None = None

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._content is None:
            self._content = self.fs.cat_file(self.path)
        return self._content[start:end]

    def write(self, data: Any) -> NoReturn:
        raise io.UnsupportedOperation(f"{self.path} is open for reading only")


class TreeFile(MemberFile):
    """A file of a tree: one plain GET while it is read from the front, ranges after a seek.

    Args:
        tree: Where the file lies.
        listed: Its path in the tree.
    """

    # About what a line transfers in the time of a round trip.
    DEFAULT_BLOCK_SIZE = 256 * 1024

    def __init__(
        self,
        fs: Any,
        path: str,
        tree: Tree,
        listed: str,
        *,
        cache_type: str = FromTheFront.name,
        **options: Any,
    ) -> None:
        self._tree, self._listed = tree, listed
        options.setdefault("size", tree.size(listed))
        stock = "none" if cache_type == FromTheFront.name else cache_type
        super().__init__(fs, path, cache_type=stock, **options)
        if cache_type == FromTheFront.name:
            self.cache = FromTheFront(
                self.blocksize, self._fetch_range, self.size, partial(tree.stream, listed)
            )

    def _fetch_range(self, start: int, end: int) -> bytes:
        return (
            self._tree.ranges(self._listed, [(start, min(end, self.size))])[0] if start < self.size else b""
        )
