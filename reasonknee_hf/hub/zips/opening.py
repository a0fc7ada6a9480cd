"""Opening an archive: end record, directory, part sizes, and the proof that the parts fit it."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from reasonknee_hf.errors import ArchiveError
from reasonknee_hf.hub.zips.archive_names import next_part
from reasonknee_hf.hub.zips.directory import (
    LOCAL,
    LOCAL_HEADER,
    SPANNED_START,
    Directory,
    DirectoryError,
    EndRecordMissingError,
    Location,
    PartsMismatchError,
    SpannedArchiveError,
)
from reasonknee_hf.hub.zips.ranges import Parts, Plan, RangePiece, Request, execute, plan_requests

# Takes the directory of 10,000 members along with the end record.
TAIL = 1024 * 1024
# A million entries with long names. Anything above is not fetched on the word of an end record.
MAX_DIRECTORY = 256 * 1024 * 1024

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_FULL32 = 0xFFFFFFFF
_MOST_END_RECORDS = 64

_SPANNED = (
    "was written in the archiver's spanning mode (`zip -s`), where each part is a disk of its own; only "
    "plain cuts of one finished zip can be read. Join it with `zip -s 0 {last} --out joined.zip` and use "
    "joined.zip"
)


@dataclass(frozen=True)
class Opened:
    """What is known of an opened archive: its directory, and the bytes of every part."""

    directory: Directory
    sizes: tuple[int, ...]


def refuse_incomplete(parts: Parts) -> None:
    """Raises [`ArchiveError`] for parts whose names alone tell that they cannot be read."""
    if parts.set.spanned:
        raise ArchiveError(f"{parts.name} {_SPANNED.format(last=parts.paths[-1])}")
    if parts.set.missing:
        raise ArchiveError(
            f"{', '.join(parts.set.missing)} of {parts.tree.name} missing: it belongs to the same archive as "
            f"{', '.join(parts.paths)}. Put it beside them"
        )


def listed_sizes(parts: Parts) -> list[int | None]:
    """The size of every part as far as the listing tells."""
    entries = parts.tree.entries()
    return [entries[path].size if path in entries else parts.tree.size(path) for path in parts.paths]


def fetch_directory(
    parts: Parts, listed: Sequence[int | None], *, encoding: str | None = None
) -> tuple[Opened, bytes]:
    """Reads the end of the archive: one request where the last part holds all of the directory.

    Args:
        parts: All of them.
        listed: Their sizes as far as the listing tells.
        encoding: See [`Directory`].

    Returns:
        What is known now, and the bytes of the directory.

    Raises:
        ArchiveError: The parts are not, or not all, of one zip archive. The message says which and why.
    """
    sizes = _needed_sizes(parts, listed)
    plan = _tail_plan(sizes)
    ((_, tail),) = execute(plan, partial(parts.fetch, checked_later=True))
    with contextlib.suppress(DirectoryError):
        # A directory that fits to the last byte is proof enough that these were the bytes that were asked
        # for.
        return _read(tail, parts, sizes, encoding, checked_later=True)
    try:
        return parts.checked(plan.requests, partial(_read, parts=parts, sizes=sizes, encoding=encoding))
    except DirectoryError as error:
        raise _explained(parts, error, sizes) from error


def _explained(parts: Parts, error: DirectoryError, sizes: Sequence[int | None]) -> ArchiveError:
    """The error to raise instead of `error`: names the parts, what is wrong with them and what to do."""
    # The first bytes of every part. Asked for only when opening failed.
    heads = [
        parts.fetch(Request(number, 0, min(4, size))) if size else b"" for number, size in enumerate(sizes)
    ]
    name, following = parts.name, next_part(parts.paths[-1])
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
            f"{name}: {error}. A part is missing{following}, cut short, too long, in the wrong place or not of this "
            f"archive; compare with the published names and sizes: {listing}"
        )
    if not isinstance(error, EndRecordMissingError):
        return ArchiveError(f"{name}: {error}")
    if heads[0][:2] == b"PK":
        return ArchiveError(
            f"{name}: {parts.paths[0]} begins like a zip, but {parts.paths[-1]} does not end like one: it "
            "was cut short" + (f", or a later part is missing{following}" if following else "")
        )
    return ArchiveError(f"{name} is no zip archive: it neither begins nor ends like one")


def _needed_sizes(parts: Parts, listed: Sequence[int | None]) -> list[int | None]:
    """Sizes such that at most one is left open, which then follows from the directory."""
    size = parts.tree.size
    last = size(parts.paths[-1]) if listed[-1] is None else listed[-1]
    sizes = [*listed[:-1], last]
    if sizes.count(None) > 1 or last < TAIL:
        return [
            size(path) if known is None else known for path, known in zip(parts.paths, sizes, strict=True)
        ]
    return sizes


def _tail_plan(sizes: Sequence[int | None]) -> Plan:
    """Asks for the last bytes of all parts together."""
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return plan_requests([(max(0, sum(known) - TAIL), sum(known))], known)
    return Plan((Request(len(sizes) - 1, known[-1] - TAIL, known[-1]),), (RangePiece(0, 0, TAIL, 0),), 1)


def _read(
    tail: bytes,
    parts: Parts,
    sizes: Sequence[int | None],
    encoding: str | None,
    *,
    checked_later: bool = False,
) -> tuple[Opened, bytes]:
    """The directory of the archive that ends with `tail`, once it is proved to fit the parts."""
    known = [size for size in sizes if size is not None]
    complete = len(known) == len(sizes)
    location = locate_directory(tail, sum(known) if complete else None)
    rest = location.total - sum(known)
    if rest < 0:
        raise PartsMismatchError(
            f"its end record speaks of {location.total} bytes but the parts of known size alone hold {sum(known)}"
        )
    known = [rest if size is None else size for size in sizes]
    tail_start = location.total - len(tail)
    stop = location.start + location.size
    data = tail[max(0, location.start - tail_start) : max(0, stop - tail_start)]
    if location.start < tail_start:
        span = (location.start, min(stop, tail_start))
        data = parts.spans(known, [span], checked_later=checked_later)[0] + data
    opened = Opened(Directory(data, location, encoding=encoding), tuple(known))
    _prove(parts, opened)
    return opened, data


def _prove(parts: Parts, opened: Opened) -> None:
    """Checks that local headers stand where the directory says, in every part where that is not certain yet.

    The last part holds the end record, and the sizes add up: so with two parts everything is in its place.
    More parts could still be swapped, and bytes in front of the archive could as well be bytes too many
    elsewhere.
    """
    directory, sizes = opened.directory, opened.sizes
    prefix = directory.location.prefix
    if len(sizes) <= 2 and not prefix:
        return
    starts = [0, *itertools.accumulate(sizes)]
    found = {directory.first_from(prefix), *map(directory.first_from, starts[1:-1])}
    probes = [directory[index] for index in sorted(index for index in found if index is not None)]
    spans = [(probe.header, probe.header + LOCAL_HEADER.size + len(probe.raw_name)) for probe in probes]
    if any(stop > directory.location.start for _, stop in spans):
        raise DirectoryError("its directory speaks of members behind their own end")
    for probe, header in zip(probes, parts.spans(sizes, spans), strict=True):
        if not probe.begins(header):
            part = parts.paths[bisect.bisect_right(starts, probe.header) - 1]
            raise PartsMismatchError(
                f"there are {prefix} bytes more than its end record speaks of, and they do not stand in front"
                if prefix
                else f"no member begins where its directory says in {part}"
            )


# --- the end record -------------------------------------------------------------------------------------------


def locate_directory(tail: bytes, total: int | None) -> Location:
    """Finds the end record in the last bytes of a file, and with it the directory.

    Args:
        tail: The last bytes of the file, all of it where it is short. 66 kB are enough for any archive
            without bytes behind its end.
        total: Bytes of the file. `None` where only the size of its last part is known: it then follows from
            the end record, on the assumption that nothing stands in front of the archive.

    Raises:
        EndRecordMissingError: There is no end record.
        SpannedArchiveError: The end record carries disk numbers.
        PartsMismatchError: The file is shorter than the end record says.
        DirectoryError: The end record contradicts itself.
    """
    problem: DirectoryError = EndRecordMissingError("no end record of a zip was found in its last bytes")
    locations: list[tuple[tuple[bool, bool, bool, int], Location]] = []
    for position, stop in itertools.islice(_end_records(tail), _MOST_END_RECORDS):
        try:
            location = _read_end(tail, position, total)
        except DirectoryError as error:  # noqa: PERF203 - the candidates are few
            if isinstance(problem, EndRecordMissingError):
                problem = error
        else:
            # The signature may stand in a comment, and some archives have bytes behind their end. So the
            # record counts whose comment ends with the file, and whose directory is not empty and where it
            # says.
            doubts = (stop != len(tail), location.prefix != 0, location.count == 0, -position)
            locations.append((doubts, location))
    if not locations:
        raise problem
    return min(locations, key=lambda found: found[0])[1]


def _end_records(tail: bytes) -> Iterator[tuple[int, int]]:
    """Position of each possible end record, and of the end of its comment."""
    position = tail.rfind(b"PK\x05\x06")
    while position >= 0:
        if position + _END.size <= len(tail):
            stop = position + _END.size + _END.unpack_from(tail, position)[7]
            if stop <= len(tail):
                yield position, stop
        position = tail.rfind(b"PK\x05\x06", 0, position)


def _read_end(tail: bytes, position: int, total: int | None) -> Location:
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, position)
    end, exact = position, False
    record = _find_end64(tail, position - _LOCATOR.size, total)
    if record is not None:
        _, _, _, _, disk, first_disk, here, count, size, offset = _END64.unpack_from(tail, record)
        end, exact = record, True
    elif _FULL32 in (size, offset):
        raise DirectoryError("its end record points to a ZIP64 record that is not there")
    if disk or first_disk or here != count:
        raise SpannedArchiveError(
            f"its end record says: disk {disk}, directory from disk {first_disk}, {here} of {count} entries"
        )
    end_from_back = len(tail) - end  # bytes from the end of the directory to the end of the file
    if total is None:
        total = offset + size + end_from_back
    start = total - end_from_back - size
    prefix = start - offset
    if prefix < 0:
        raise PartsMismatchError(
            f"its end record speaks of {total - prefix} bytes but there are {total}, {-prefix} too few"
        )
    if size < 46 * count or size > MAX_DIRECTORY:
        raise DirectoryError(f"its end record announces {count} entries in a directory of {size} bytes")
    tail_start = total - len(tail)
    if size and start >= tail_start and not tail.startswith(b"PK\x01\x02", start - tail_start):
        raise DirectoryError("its end record points to something that is no directory")
    return Location(start, size, count, exact, prefix, total)


def _find_end64(tail: bytes, locator: int, total: int | None) -> int | None:
    """Position of the ZIP64 end record in `tail`, `None` where the archive has none."""
    if locator < 0 or not tail.startswith(b"PK\x06\x07", locator):
        return None
    _, _, offset, disks = _LOCATOR.unpack_from(tail, locator)
    if disks > 1:
        raise SpannedArchiveError(f"its end record counts {disks} disks")
    usual = locator - _END64.size
    candidates = [usual]
    if total is not None:  # the record may be longer than its fixed part, and then begins earlier
        candidates.append(offset - (total - len(tail)))
    for record in candidates:
        if 0 <= record <= usual and tail.startswith(b"PK\x06\x06", record):
            length = _END64.unpack_from(tail, record)[1]
            if record + 12 + length == locator:
                return record
    return None
