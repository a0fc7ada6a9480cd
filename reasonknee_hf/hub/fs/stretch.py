"""A stretch of a file as a file of its own: a volume that lies, as it is, inside a larger table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

import fsspec

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.fs.readonly import Info, ReadOnlyFileSystem, Span, slice_bounds

SCHEME = "reasonknee-stretch"


class StretchFileSystem(ReadOnlyFileSystem):
    """Opens URLs of [`stretch_url`] by one ranged read. Nothing can be listed."""

    protocol = SCHEME

    def _info(self, path: str) -> Info | None:
        found = _parsed(path)
        return found and Info(name=path, size=found[2], type="file")

    def _children(self, path: str) -> list[Info] | None:
        return None

    def _contents(self, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
        for path, (content,) in self._stretches({path: [(None, None)] for path in paths}):
            yield path, content

    def _stretches(self, spans: Mapping[str, list[Span]]) -> Iterable[tuple[str, list[bytes]]]:
        for path, wanted in spans.items():
            found = _parsed(path)
            if found is None:
                raise FileMissingError(f"{path!r} is no stretch of a file")
            url, start, size = found
            filesystem, name = fsspec.core.url_to_fs(url)
            bounds = [slice_bounds(*one, size) for one in wanted]
            yield (
                path,
                [
                    bytes(filesystem.cat_file(name, start=start + low, end=start + high))
                    for low, high in bounds
                ],
            )


def stretch_url(url: str, start: int, size: int, name: str) -> str:
    """The URL of `size` bytes of a file from `start` on, under a name of its own."""
    return f"{SCHEME}://{quote(url, safe='')}/{start}+{size}/{name}"


def _parsed(path: str) -> tuple[str, int, int] | None:
    """URL of the whole, start and size."""
    found = re.fullmatch(r"([^/]*)/(\d+)\+(\d+)/[^/]*", path)
    return found and (unquote(found[1]), int(found[2]), int(found[3]))


fsspec.register_implementation(SCHEME, StretchFileSystem, clobber=True)
