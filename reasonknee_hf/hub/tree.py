"""What the rest of the package knows about a source of files: one immutable tree, read-only, and how URLs name it."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, unquote

from reasonknee_hf.errors import FileMissingError, OptionError, PointerError

T = TypeVar("T")

# The first piece of a stream is small, so that a reader of headers gets its answer early.
FIRST_CHUNK = 32 * 1024
CHUNK = 64 * 1024

# A git-LFS pointer text is 120 to 200 bytes; no file above this size can be one.
POINTER_LIMIT = 1024
_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?size (\d+)")


# To compare a name that is missing with all names of a large tree would take longer than any request.
_COMPARED = 200


@dataclass(frozen=True)
class FileEntry:
    """One file of a listing.

    Args:
        path: Posix path below the root of the tree.
        size: Bytes, `None` where the listing does not say.
        blob_id: Git sha1 of the blob (40 hex digits); of the pointer text where the file is kept in LFS.
        sha256: SHA-256 of the content (64 hex digits) where the file is kept in LFS.
    """

    path: str
    size: int | None = None
    blob_id: str | None = None
    sha256: str | None = None

    @property
    def incomplete(self) -> bool:
        """Whether the listing leaves out the size or every hash."""
        return self.size is None or (self.blob_id is None and self.sha256 is None)


@dataclass(frozen=True)
class Address:
    """One file of one source.

    Args:
        source: Hub dataset id `OWNER/NAME`, or the root URL of a folder.
        path: Of the file, below the root.
        revision: Of a Hub source.
        endpoints: Base URLs of a Hub and its mirrors; empty for those of the environment, and for folders.
        opened: Name of the token options that the source was opened with; see `hub.wire.tokens.TokenOptions`.
    """

    source: str
    path: str = ""
    revision: str | None = None
    endpoints: tuple[str, ...] = ()
    opened: str = ""


@runtime_checkable
class Tree(Protocol):
    """One immutable tree of files. Safe to share by threads, to pickle (a token stays behind) and to fork."""

    @property
    def name(self) -> str:
        """For messages: `owner/name at 7a611f92 from https://…`, or `folder /x`."""

    @property
    def identity(self) -> str:
        """Stable cache key without secrets: `owner/name@<sha>`, or the root URL."""

    @property
    def sha(self) -> str | None:
        """The commit for trees of a Hub, `None` for folders."""

    @property
    def address(self) -> Address:
        """Of its root, for other processes."""

    def entries(self) -> Mapping[str, FileEntry]:
        """The whole listing by posix path, in sorted order, fetched once."""

    def entry(self, path: str) -> FileEntry:
        """One file, with size and hash where they can be learnt, or [`FileMissingError`]."""

    def size(self, path: str) -> int:
        """The size in bytes. Raises a typed error that says what is missing where it cannot be learnt."""

    def read(self, path: str) -> bytes:
        """The whole file, verified against the hash of the listing."""

    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        """The bytes of half-open `spans`, in order: one request a span, each verified, or a typed error.

        Args:
            path: File of the listing.
            spans: `(start, stop)` pairs inside the file.
            checked_later: The caller holds a checksum of what it reads (the CRC of a zip member), so the
                tree need not prove beforehand that the endpoint cuts ranges honestly.
        """

    def checked_ranges(self, spans: Sequence[tuple[str, int, int]], check: Callable[[list[bytes]], T]) -> T:
        """What `check` makes of the bytes of `(path, start, stop)` spans, all of them from one endpoint.

        An [`IntegrityError`] of `check` is a failure of that endpoint like any other: the next one is asked.
        """

    def stream(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """One plain GET in chunks, resumed after a cut. Closing the generator closes the connection."""

    def url(self, path: str) -> str:
        """What `fsspec.open` opens in any other process without further state."""


def chunk_sizes(first: bool = True) -> Iterator[int]:
    """How much to ask for next when streaming; `first`: from the start of a stream."""
    if first:
        yield FIRST_CHUNK
    while True:
        yield CHUNK


def pieces(content: bytes, first: bool = True) -> Iterator[bytes]:
    """`content` as a stream would hand it out."""
    position = 0
    for size in chunk_sizes(first):
        if position >= len(content):
            return
        yield content[position : position + size]
        position += size


def find_entry(entries: Mapping[str, FileEntry], path: str, tree_name: str) -> FileEntry:
    """The entry of `path`. Raises [`FileMissingError`] with the closest names."""
    found = entries.get(path)
    if found is None:
        folder, base = posixpath.split(path)
        near = [name for name in entries if posixpath.basename(name) == base]
        near += [name for name in entries if posixpath.dirname(name) == folder][:_COMPARED]
        close = difflib.get_close_matches(path, dict.fromkeys(near), n=3)
        hint = f"; closest: {', '.join(close)}" if close else ""
        raise FileMissingError(f"{path!r} is not among the {len(entries)} files of {tree_name}{hint}")
    return found


def could_not_connect(error: BaseException) -> bool:
    """Whether a filesystem of fsspec says "not found" of what it could not ask for."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or isinstance(cause, FileNotFoundError):
        return False
    return isinstance(cause, OSError) or getattr(cause, "status", 404) not in (404, 410)


def check_spans(path: str, size: int | None, *spans: tuple[int, int]) -> None:
    """Raises `ValueError` for a span that does not lie inside the file."""
    for start, stop in spans:
        if start < 0 or stop < start or (size is not None and stop > size):
            raise ValueError(f"span {start}-{stop} does not lie inside {path!r} of {size} bytes")


def refuse_pointer(path: str, content: bytes, where: str) -> None:
    """Raises [`PointerError`] if `content` is the text that git-LFS leaves in place of a file."""
    pointer = _POINTER.match(content) if len(content) <= POINTER_LIMIT else None
    if pointer is not None:
        raise PointerError(
            f"{path!r} of {where} holds a git-LFS pointer text of {len(content)} bytes that stands for "
            f"{int(pointer[1])} bytes of data. Fetch the real content, for example with `git lfs pull` in a "
            f"clone or `hf download` instead of git"
        )


SCHEME = "reasonknee://"
# Marks a folder behind http(s), which would otherwise look like a Hub.
_FOLDER = "folder:"
# Stands in the place of the last endpoint.
_OPENED = "options://"
_ENCODED = re.compile(r"(folder%3A)?[A-Za-z][A-Za-z0-9+.-]*%3A%2F%2F.*", re.IGNORECASE)
_GRAMMAR = (
    "Known forms: reasonknee://OWNER/NAME@REVISION/path, "
    "reasonknee://https%3A%2F%2Fhub.example/OWNER/NAME@REVISION/path, "
    "reasonknee://file%3A%2F%2F%2Ffolder/path"
)


def build_url(address: Address) -> str:
    """The URL of an address. Its ending is the ending of the path; it never holds a token."""
    if "://" in address.source:
        marked = _FOLDER * address.source.startswith(("http://", "https://")) + address.source
        root = quote(marked, safe="")
    else:
        root = address.source
        if address.revision is not None:
            root += "@" + quote(address.revision, safe="")
        places = [*address.endpoints, *([_OPENED + address.opened] if address.opened else [])]
        if places:
            root = quote(",".join(places), safe="") + "/" + root
    return f"{SCHEME}{root}/{address.path}" if address.path else SCHEME + root


def parse_url(url: str) -> Address:
    """The address that a URL stands for.

    Raises:
        OptionError: It has none of the known forms.
    """
    rest = url[len(SCHEME) :].lstrip("/") if url.startswith(SCHEME) else url
    first, _, below = rest.partition("/")
    endpoints, opened = [], ""
    if _ENCODED.fullmatch(first):
        origin = unquote(first)
        if not origin.startswith(("http://", "https://", _OPENED)):
            return Address(origin.removeprefix(_FOLDER), below.strip("/"))
        endpoints, rest = origin.split(","), below
        if endpoints[-1].startswith(_OPENED):
            opened = endpoints.pop().removeprefix(_OPENED)
    steps = rest.split("/", 2)
    if len(steps) < 2 or not steps[0] or not steps[1]:
        raise OptionError(f"{url!r} does not say which repository it means. {_GRAMMAR}")
    name, marked, revision = steps[1].partition("@")
    return Address(
        source=f"{steps[0]}/{name}",
        path=steps[2].strip("/") if len(steps) > 2 else "",
        revision=unquote(revision) if marked else None,
        endpoints=tuple(endpoints),
        opened=opened,
    )
