"""What the filesystems of this package share: they list from memory, read by path, and refuse to write."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from fsspec import AbstractFileSystem

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.fs.folders import Info

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
            raise FileMissingError(f"there is no {path!r} in {self!r}")
        return info

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = self._children(path)
        if found is None:
            found = [self.info(path)]
        return found if detail else [info["name"] for info in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._info(self._strip_protocol(path)) is not None

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
