"""Opening an archive: part sizes, end record, directory, and the proof that the parts fit it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from reasonknee_hf.errors import ArchiveError
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.zips.directory import (
    LOCAL,
    LOCAL_HEADER,
    SPANNED_START,
    Directory,
    DirectoryError,
    EndRecordMissingError,
    PartsMismatchError,
    SpannedArchiveError,
    locate_directory,
)
from reasonknee_hf.hub.zips.executor import execute
from reasonknee_hf.hub.zips.members import is_local_header
from reasonknee_hf.hub.zips.parts import PartSet, next_part
from reasonknee_hf.hub.zips.planner import Request, plan_requests

# Takes the directory of 10,000 members along with the end record.
TAIL = 1024 * 1024

_SPANNED = (
    "was written in the archiver's spanning mode (`zip -s`), where each part is a disk of its own; only "
    "plain cuts of one finished zip can be read. Join it with `zip -s 0 {last} --out joined.zip` and use "
    "joined.zip"
)


class PartTree(Protocol):
    """What an archive needs of the tree its parts lie in; every [`Tree`] has it."""

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def sha(self) -> str | None: ...
    def entries(self) -> Mapping[str, FileEntry]: ...
    def size(self, path: str) -> int: ...
    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]: ...


@dataclass(frozen=True)
class Opened:
    """What is known of an opened archive: its directory, and the bytes of every part."""

    directory: Directory
    sizes: tuple[int, ...]


def where(tree: PartTree, parts: PartSet) -> str:
    """How messages name the archive."""
    return f"{' + '.join(parts.paths)} of {tree.name}"


def refuse_incomplete(tree: PartTree, parts: PartSet) -> None:
    """Raises [`ArchiveError`] for parts whose names alone tell that they cannot be read."""
    if parts.spanned:
        raise ArchiveError(f"{where(tree, parts)} {_SPANNED.format(last=parts.paths[-1])}")
    if parts.missing:
        raise ArchiveError(
            f"{', '.join(parts.missing)} of {tree.name} missing: it belongs to the same archive as "
            f"{', '.join(parts.paths)}. Put it beside them"
        )


def listed_sizes(tree: PartTree, parts: PartSet) -> list[int | None]:
    """The size of every part as far as the listing tells."""
    entries = tree.entries()
    return [entries[path].size if path in entries else tree.size(path) for path in parts.paths]


def fetch_directory(
    tree: PartTree, parts: PartSet, listed: Sequence[int | None], *, encoding: str | None = None
) -> tuple[Opened, bytes]:
    """Reads the end of the archive: one request where the last part holds all of the directory.

    Args:
        tree: Where the parts lie.
        parts: All of them.
        listed: Their sizes as far as the listing tells.
        encoding: See [`Directory`].

    Returns:
        What is known now, and the bytes of the directory.

    Raises:
        ArchiveError: The parts are not, or not all, of one zip archive. The message says which and why.
    """
    sizes = _needed_sizes(tree, parts, listed)
    with contextlib.suppress(DirectoryError):
        # A directory that fits to the last byte is proof enough that these were the bytes that were asked
        # for.
        return _fetch(tree, parts, sizes, encoding, checked_later=True)
    try:
        return _fetch(tree, parts, sizes, encoding, checked_later=False)
    except DirectoryError as error:
        raise _explained(tree, parts, error, sizes) from error


def _explained(
    tree: PartTree, parts: PartSet, error: DirectoryError, sizes: Sequence[int | None]
) -> ArchiveError:
    """The error to raise instead of `error`: names the parts, what is wrong with them and what to do."""
    heads = _heads(tree, parts, sizes)
    name, following = where(tree, parts), next_part(parts.paths[-1])
    following = f" ({following})" if following else ""
    if isinstance(error, SpannedArchiveError) or SPANNED_START in heads:
        return ArchiveError(f"{name} {_SPANNED.format(last=parts.paths[-1])} ({error})")
    if heads[0][:2] != b"PK" and LOCAL in heads:
        first = parts.paths[heads.index(LOCAL)]
        return ArchiveError(
            f"{name}: the parts are in the wrong order: {first} is the one that begins like a zip"
        )
    if isinstance(error, PartsMismatchError):
        listing = ", ".join(f"{path} {size}" for path, size in zip(parts.paths, sizes, strict=True))
        return ArchiveError(
            f"{name}: {error}. A part is missing{following}, cut short, too long or not of this archive; "
            f"compare with the published sizes: {listing}"
        )
    if not isinstance(error, EndRecordMissingError):
        return ArchiveError(f"{name}: {error}")
    if heads[0][:2] == b"PK":
        return ArchiveError(
            f"{name}: {parts.paths[0]} begins like a zip, but {parts.paths[-1]} does not end like one: it "
            f"was cut short, or a later part is missing{following}"
        )
    return ArchiveError(f"{name} is no zip archive: it neither begins nor ends like one")


def _heads(tree: PartTree, parts: PartSet, sizes: Sequence[int | None]) -> list[bytes]:
    """The first bytes of every part. Asked for only when opening failed."""
    return [
        tree.ranges(path, [(0, min(4, size))])[0] if size else b""
        for path, size in zip(parts.paths, sizes, strict=True)
    ]


def read_spans(
    tree: PartTree,
    parts: PartSet,
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int]],
    *,
    checked_later: bool = False,
) -> list[bytes]:
    """The bytes of `spans`, counted over all parts, in their order."""
    plan = plan_requests(spans, sizes)
    found = dict(execute(plan, fetcher(tree, parts, checked_later=checked_later)))
    return [found[index] for index in range(len(spans))]


def fetcher(tree: PartTree, parts: PartSet, *, checked_later: bool = False) -> Callable[[Request], bytes]:
    """What sends one request to the tree."""

    def fetch(request: Request) -> bytes:
        path, span = parts.paths[request.part], (request.start, request.stop)
        return tree.ranges(path, [span], checked_later=checked_later)[0]

    return fetch


def _needed_sizes(tree: PartTree, parts: PartSet, listed: Sequence[int | None]) -> list[int | None]:
    """Sizes such that at most one is left open, which then follows from the directory."""
    last = tree.size(parts.paths[-1]) if listed[-1] is None else listed[-1]
    sizes = [*listed[:-1], last]
    if sizes.count(None) > 1 or last < TAIL:
        return [
            tree.size(path) if size is None else size for path, size in zip(parts.paths, sizes, strict=True)
        ]
    return sizes


def _fetch(
    tree: PartTree, parts: PartSet, sizes: list[int | None], encoding: str | None, *, checked_later: bool
) -> tuple[Opened, bytes]:
    read = partial(read_spans, tree, parts, checked_later=checked_later)
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        total = sum(known)
        tail = read(known, [(max(0, total - TAIL), total)])[0]
        location = locate_directory(tail, total)
    else:
        size = known[-1]
        tail = tree.ranges(parts.paths[-1], [(size - TAIL, size)], checked_later=checked_later)[0]
        location = locate_directory(tail, None)
        rest = location.total - sum(known)
        if rest < 0:
            raise PartsMismatchError(
                f"its end record speaks of {location.total} bytes but the parts of known size alone hold "
                f"{sum(known)}"
            )
        known = [rest if size is None else size for size in sizes]
    tail_start = location.total - len(tail)
    stop = location.start + location.size
    data = tail[max(0, location.start - tail_start) : max(0, stop - tail_start)]
    if location.start < tail_start:
        data = read(known, [(location.start, min(stop, tail_start))])[0] + data
    opened = Opened(Directory(data, location, encoding=encoding), tuple(known))
    _prove(tree, parts, opened)
    return opened, data


def _prove(tree: PartTree, parts: PartSet, opened: Opened) -> None:
    """Checks that local headers stand where the directory says, in every part where that is not certain yet.

    The last part holds the end record, and the sizes add up: so with two parts everything is in its place.
    More parts could still be swapped, and bytes in front of the archive could as well be bytes too many
    elsewhere.
    """
    directory, sizes = opened.directory, opened.sizes
    prefix = directory.location.prefix
    if len(parts.paths) <= 2 and not prefix:
        return
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    found = {
        directory.first_from(start + (prefix if number == 0 else 0)) for number, start in enumerate(starts)
    }
    probes = [directory[index] for index in sorted(index for index in found if index is not None)]
    spans = [(probe.header, probe.header + LOCAL_HEADER.size + len(probe.raw_name)) for probe in probes]
    if any(stop > directory.location.start for _, stop in spans):
        raise DirectoryError("its directory speaks of members behind their own end")
    headers = read_spans(tree, parts, sizes, spans)
    for probe, header in zip(probes, headers, strict=True):
        if not is_local_header(header, probe):
            raise PartsMismatchError(
                f"there are {prefix} bytes more than its end record speaks of, and they do not stand in front"
                if prefix
                else f"no member begins where its directory says in {_part_at(parts, sizes, probe.header)}"
            )


def _part_at(parts: PartSet, sizes: Sequence[int], offset: int) -> str:
    for path, size in zip(parts.paths, sizes, strict=True):
        if offset < size:
            return path
        offset -= size
    return parts.paths[-1]
