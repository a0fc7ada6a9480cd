"""A stretch of a file as a file of its own: a volume that lies, as it is, inside a larger table."""

from __future__ import annotations

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
        try:
            _, _, size = _parsed(path)
        except ValueError:
            return None
        return Info(name=path, size=size, type="file")

    def _children(self, path: str) -> list[Info] | None:
        return None

    def _contents(self, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
        for path, (content,) in self._stretches({path: [(None, None)] for path in paths}):
            yield path, content

    def _stretches(self, spans: Mapping[str, list[Span]]) -> Iterable[tuple[str, list[bytes]]]:
        for path, wanted in spans.items():
            try:
                url, start, size = _parsed(path)
            except ValueError:
                raise FileMissingError(f"{path!r} is no stretch of a file") from None
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


def _parsed(path: str) -> tuple[str, int, int]:
    url, span, _ = path.split("/")
    start, size = map(int, span.split("+"))
    return unquote(url), start, size


fsspec.register_implementation(SCHEME, StretchFileSystem, clobber=True)
