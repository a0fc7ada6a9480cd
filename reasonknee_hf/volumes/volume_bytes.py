"""Where the bytes of a volume come from: memory, a local file, or any URL that fsspec opens.

No descriptor or connection outlives a call (or the generator that a call returned). What is gzip is decided by content;
`isal` (extra `fast`) inflates about two and a half times faster than the standard library and is used where it is
installed; the results are the same. Both release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from reasonknee_hf.errors import (
    EndpointError,
    FileMissingError,
    GridMismatchError,
    OptionError,
    ReasonKneeError,
    RecordError,
    UnreachableError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
)
from reasonknee_hf.hub.tree import SCHEME, could_not_connect
from reasonknee_hf.hub.zips.directory import inflater as inflater

_REMOTE_CHUNK = 1 << 18  # at most; every piece costs a switch to fsspec's own thread and back
_CHUNK = 1 << 16  # bytes read at a time: small enough to stay in the cache between reading and inflating
_START = 4096  # bytes fetched for a header, which has 540
_STREAMING_PROTOCOLS = {"http", "https", "hf"}  # file systems whose `block_size=0` means one plain GET
SERIES = "dicom://"  # DICOM series that read as a NIfTI file; see `dicom_files`

fsspec.register_implementation(
    "dicom", "reasonknee_hf.volumes.dicom_files.DicomSeriesFileSystem", clobber=True
)


def is_local(path: str) -> bool:
    """Whether a path is an ordinary one of the local disk (and not a URL, not an fsspec chain)."""
    return "://" not in path and "::" not in path


def chunks(path: str | None, data: bytes | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of a file from first to last, as they arrive. Use a piece before asking for the next.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if data is not None:
        return _memory_chunks(data)
    assert path is not None
    return _local_chunks(path) if is_local(path) else _remote_chunks(path)


def start(path: str | None, data: bytes | None, size: int) -> bytes:
    """At most `size` bytes from the start of a file, with one small read."""
    if data is not None:
        return bytes(data[:size])
    assert path is not None
    if is_local(path):
        with open(path, "rb", buffering=0) as file:
            return _read_exactly(file, size)
    filesystem, name = _filesystem(path)
    if path.startswith(SERIES):
        return bytes(filesystem.header(name)[:size])
    return bytes(filesystem.cat_file(name, start=0, end=size)[:size])


def verified(path: str) -> bytes | None:
    """The whole file if its source holds hashes to prove it by; `None` for others.

    Raises:
        EndpointError: No endpoint has it right.
    """
    if is_local(path):
        return None
    filesystem, name = _filesystem(path)
    return bytes(filesystem.cat_file(name)) if "reasonknee" in _protocols(filesystem) else None


def plain_start(path: str | None, data: bytes | None, size: int) -> bytes:
    """At least `size` bytes from the start of the plain (inflated) file, or all of it where it is shorter."""
    fetched = _START
    while True:
        head = start(path, data, fetched)
        found = bytearray()
        try:
            for piece in plain([head], piece_size=size):
                found += piece
                if len(found) >= size:
                    return bytes(found)
        except VolumeDataError:
            if len(head) < fetched:
                raise
        if len(head) < fetched:
            return bytes(found)
        fetched *= 16  # the fetched part ends in the gzip header, which may hold a long name


def identity(path: str) -> tuple[int | str, ...]:
    """What tells apart two states of the same path: size and time of local files, also where a URL leads to them."""
    if path.startswith(SERIES):
        path = path.partition("::")[2]
    if path.startswith(f"{SCHEME}file%3A"):  # in a local release, perhaps inside an archive
        filesystem, name = _filesystem(path)
        return (filesystem.ukey(name),) if filesystem.exists(name) else ()
    if not is_local(path):
        return ()
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns, state.st_ino


def pair_names(path: str, want: str) -> list[str]:
    """Names under which the other half of an `.hdr` / `.img` pair may lie; `want` is "hdr" or "img"."""
    stem = path[:-3] if path.endswith(".gz") else path
    root, _ = os.path.splitext(stem)
    same = ".gz" if path.endswith(".gz") else ""
    other = "" if same else ".gz"
    return [f"{root}.{want}{same}", f"{root}.{want}{other}"]


def is_half(path: str, which: str) -> bool:
    """Whether the name is that of a half of an `.hdr` / `.img` pair; `which` is "hdr" or "img"."""
    return path.endswith((f".{which}", f".{which}.gz"))


def exists(path: str) -> bool:
    """Whether a file is there."""
    if is_local(path):
        return os.path.isfile(path)
    filesystem, name = _filesystem(path)
    return bool(filesystem.isfile(name))


def _filesystem(path: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    filesystem, name = url_to_fs(path)
    return filesystem, name


def _protocols(filesystem: Any) -> set[str]:
    return {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)


def _memory_chunks(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    for at in range(0, len(view), _CHUNK):
        yield view[at : at + _CHUNK]


def _local_chunks(path: str) -> Iterator[memoryview]:
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield view[:count]


def _read_exactly(file: Any, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _remote_chunks(path: str) -> Iterator[bytes]:
    filesystem, name = _filesystem(path)
    protocols = _protocols(filesystem)
    if protocols & {"reasonknee", "dicom"}:
        yield from filesystem.stream(name)
    elif protocols & _STREAMING_PROTOCOLS:
        # A size that is known, even a made-up one, saves the HEAD request for it; streams do not use it.
        options = {"size": 1} if "http" in protocols else {}
        with filesystem.open(name, "rb", block_size=0, **options) as file:
            while part := _read(file):
                yield part
    else:
        yield filesystem.cat_file(name)


def _read(file: Any) -> bytes:
    try:
        return bytes(file.read(_REMOTE_CHUNK))
    except OSError:
        raise
    except Exception as error:  # HTTP clients have error types of their own for a body that ends early
        raise VolumeDataError(f"the connection broke ({type(error).__name__}: {error}); try again") from error


GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31  # zlib's number for: a gzip header and trailer, both checked
_PIECE = 1 << 20  # most bytes inflated in one step, so that memory stays flat for very compressible data


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


_NAMED = (
    VolumeDataError,
    VolumeFormatError,
    GridMismatchError,
    RecordError,
    OptionError,
    VolumeMissingError,
)


@contextmanager
def named_errors(name: Callable[[], str], mask: bool, path: str | None) -> Iterator[None]:
    """Puts a name in front of the message of errors about a volume, once.

    Args:
        name: gives the row and the file; asked for only when there is an error.
        mask: whether the volume is a mask; that changes the advice for a missing one.
        path: where the volume lies, if not in memory.

    Raises:
        VolumeMissingError: instead of any other `FileNotFoundError` about a file.
        UnreachableError: instead of a `FileNotFoundError` by which a filesystem says that it could not connect.
        VolumeDataError: instead of what else the system says about a local file, such as `PermissionError`.
    """
    try:
        yield
    except EndpointError as error:
        if not str(error).startswith(f"{name()}: "):  # in place: kinds differ in what they are made of
            error.args = (f"{name()}: {error.args[0]}", *error.args[1:])
        raise
    except (*_NAMED, FileNotFoundError) as error:
        if could_not_connect(error):
            reason = f"{type(error.__cause__).__name__}: {error.__cause__}"
            raise UnreachableError(f"{name()}: it cannot be asked for ({reason})") from error
        if not isinstance(error, _NAMED):
            raise VolumeMissingError(f"{name()}: {_advice(error, mask)}") from error
        if str(error).startswith(name()):
            raise
        raise type(error)(f"{name()}: {error}") from error
    except OSError as error:  # of a file that is not local it may be the connection
        if path is None or not is_local(path) or isinstance(error, ReasonKneeError):
            raise
        raise VolumeDataError(
            f"{name()}: the file cannot be read ({error.strerror or error}); {_next_step(error)}"
        ) from error


def _next_step(error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return (
            "a folder is no NIfTI file: a series of DICOM is read by 'dicom://series.nii::' before its folder, and a"
            " folder of volumes is given as images="
        )
    return "check its permissions and the disk"


def _advice(error: FileNotFoundError, mask: bool) -> str:
    reason = str(error) if isinstance(error, FileMissingError) else "no such file"
    if mask:
        return f"the mask cannot be opened ({reason})"
    return (
        f"the volume cannot be opened ({reason}). Volumes may be under terms of their own and not part of this release:"
        " the card of the dataset says who gives them out; give as images= the folder or URL that holds yours"
    )
