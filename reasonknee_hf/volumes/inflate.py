"""Plain bytes out of bytes that may be gzip, decided by content, as they arrive.

`isal` (extra `fast`) inflates about two and a half times faster than the standard library and is used where
it is installed; the results are the same. Both release the GIL.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from reasonknee_hf.errors import VolumeDataError

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31  # zlib's number for: a gzip header and trailer, both checked
_PIECE = 1 << 20  # most bytes inflated in one step, so that memory stays flat for very compressible data


@lru_cache(maxsize=1)
def inflater() -> Any:
    """The module that inflates: `isal.isal_zlib` where it is installed, else `zlib`."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def gzip_file(file: Any) -> Any:
    """The plain content of an open gzip file as a file; `isal` reads it where it is installed."""
    try:
        from isal import igzip as module
    except ImportError:
        import gzip as module
    return module.GzipFile(fileobj=file)


def plain(chunks: Iterable[bytes | memoryview], piece_size: int = _PIECE) -> Iterator[bytes | memoryview]:
    """Inflates gzip (one or several members) and passes anything else through.

    Args:
        chunks: the file from its first byte, in pieces of any size. A piece may be a view of a buffer that is
            reused: it is done with before the next one is asked for.
        piece_size: most bytes that are inflated in one step.

    Returns:
        The plain bytes in pieces of at most `piece_size` (gzip) or as they came (anything else). A piece must
        be used before the next one is asked for.

    Raises:
        VolumeDataError: at the point where a gzip stream ends early, is broken, or is followed by something
            that is neither zeros nor another member. Checksums and lengths of all members are verified.
    """
    source = iter(chunks)
    first = b""
    while len(first) < len(GZIP_MAGIC):
        chunk = next(source, None)
        if chunk is None:
            break
        first += bytes(chunk)
    if first.startswith(GZIP_MAGIC):
        yield from _inflate(first, source, piece_size)
    else:
        if first:
            yield first
        yield from source


def _inflate(
    first: bytes | memoryview, source: Iterator[bytes | memoryview], piece_size: int
) -> Iterator[bytes]:
    module = inflater()
    member = module.decompressobj(wbits=_GZIP_WBITS)
    pending: bytes | memoryview = first
    while True:
        try:
            piece = member.decompress(pending, piece_size)
        except module.error as error:
            raise VolumeDataError(f"the gzip data is broken ({error}); fetch the file again") from error
        if piece:
            yield piece
        if member.eof:
            pending = _next_member(member.unused_data, source)
            if not pending:
                return
            member = module.decompressobj(wbits=_GZIP_WBITS)
        elif member.unconsumed_tail:
            pending = member.unconsumed_tail
        elif len(piece) == piece_size:
            pending = b""  # the step was full: more output may wait inside
        else:
            pending = next((chunk for chunk in source if len(chunk)), b"")
            if not pending:
                raise VolumeDataError(
                    "the gzip stream ends before its end mark; the file is cut, fetch it again"
                )


def _next_member(rest: bytes, source: Iterator[bytes | memoryview]) -> bytes:
    """What follows a finished member: b"" at the end of the file, else the start of the next member."""
    rest = rest.lstrip(b"\0")
    while len(rest) < 2:
        chunk = next((chunk for chunk in source if len(chunk)), None)
        if chunk is None:
            break
        rest = (rest + bytes(chunk)).lstrip(b"\0")
    if rest and rest[:2] != GZIP_MAGIC:
        raise VolumeDataError(
            "the gzip stream is followed by bytes that are no gzip member; fetch the file again"
        )
    return rest
