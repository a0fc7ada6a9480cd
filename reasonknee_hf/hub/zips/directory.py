"""The central directory of a zip: where it lies, and what it says. Pure: bytes in, entries out.

The directory is the truth; a member's local header is only read to learn where its data begins. The standard
library's `zipfile` is not used: it needs a seekable file, reads byte ranges that depend on what it found
before, takes archives apart that carry disk numbers, fails on names that are no UTF-8, and keeps an object of
500 bytes for each member.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import ArchiveError
from reasonknee_hf.hub.zips.member_names import decode_name, is_shadow, normalise_name, unsafe_reason

LOCAL = b"PK\x03\x04"
SPANNED_START = b"PK\x07\x08"
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_EXTRA = struct.Struct("<2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF

_MOST_END_RECORDS = 64
# A million entries with long names. Anything above is not fetched on the word of an end record.
MAX_DIRECTORY = 256 * 1024 * 1024


@dataclass(frozen=True)
class Location:
    """Where the directory of an archive lies, and how far the offsets in it are off.

    Args:
        start: Offset of the first byte of the directory in the file.
        size: Bytes of the directory.
        count: Entries that the end record announces.
        count_is_exact: Whether `count` is the whole number and not its lower 16 bits.
        prefix: Bytes in front of the archive; every offset in the directory is short by this.
        total: Bytes of the file.
    """

    start: int
    size: int
    count: int
    count_is_exact: bool
    prefix: int
    total: int


class DirectoryError(ArchiveError):
    """The end record or the directory contradicts itself. The message leaves the archive's name to others."""


class SpannedArchiveError(DirectoryError):
    """The parts were made by the archiver's spanning mode."""


class EndRecordMissingError(DirectoryError):
    """No end record was found where the archive should end."""


class PartsMismatchError(DirectoryError):
    """The directory speaks of more bytes than there are."""


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


@dataclass(frozen=True)
class Member:
    """One entry of the directory.

    Args:
        name: Normalised: forward slashes; may still be unsafe as a path, see `unsafe`.
        raw_name: The bytes that stand in the archive.
        size: Bytes of the content.
        compressed_size: Bytes that the content takes in the archive.
        crc: CRC-32 of the content.
        method: Compression method; 0 is stored, 8 deflate.
        flags: General purpose flags.
        header: Offset of the local header in the whole archive, from its very first byte.
        kind: `"file"`, `"folder"`, `"link"` or `"shadow"` (what archivers add for themselves).
        unsafe: Why the name must not become a path; `None` where it may.
    """

    name: str
    raw_name: bytes
    size: int
    compressed_size: int
    crc: int
    method: int
    flags: int
    header: int
    kind: str
    unsafe: str | None


_KINDS = ("file", "folder", "link", "shadow")


class Directory:
    """All entries of an archive, compact: 8,000 of them take less than 2 MB with the look-up table.

    Args:
        data: The bytes of the directory.
        location: Where they were found.
        encoding: Code page of names that are not flagged as UTF-8, see [`decode_name`].

    Raises:
        SpannedArchiveError: An entry starts on another disk.
        DirectoryError: The bytes are no directory, or not the one announced.
    """

    def __init__(self, data: bytes, location: Location, *, encoding: str | None = None) -> None:
        self.location = location
        numbers: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self._raw: list[bytes | None] = []  # only where encoding the name does not give it back
        position = 0
        while position < len(data):
            numbers.append(self._read_entry(data, position, encoding))
            position += numbers[-1][-1]
        count = len(numbers)
        if count != location.count and (location.count_is_exact or count % 65536 != location.count):
            raise DirectoryError(
                f"its directory holds {count} entries, its end record announces {location.count}"
            )
        table = np.array(numbers, dtype=np.uint64).reshape(count, 8)
        self._header = table[:, 0].astype(np.int64) + location.prefix
        self._packed, self._size = table[:, 1].astype(np.int64), table[:, 2].astype(np.int64)
        self._crc, self._method = table[:, 3].astype(np.uint32), table[:, 4].astype(np.uint16)
        self._flags, self._kind = table[:, 5].astype(np.uint16), table[:, 6].astype(np.uint8)

    def _read_entry(self, data: bytes, position: int, encoding: str | None) -> tuple[int, ...]:
        """Header offset, packed size, size, CRC, method, flags, kind, bytes of the entry."""
        if not data.startswith(b"PK\x01\x02", position) or position + _ENTRY.size > len(data):
            raise DirectoryError(
                f"its directory is damaged at entry {len(self.names)}, byte {position} of {len(data)}"
            )
        (_, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length, disk,
         _, attributes, header) = _ENTRY.unpack_from(data, position)  # fmt: skip
        name_start = position + _ENTRY.size
        extra_start = name_start + name_length
        stop = extra_start + extra_length + comment_length
        if stop > len(data):
            raise DirectoryError(f"its directory is cut off inside entry {len(self.names)}")
        raw = data[name_start:extra_start]
        unicode_extra = None
        if extra_length:
            for kind, field in _extra_fields(data[extra_start : extra_start + extra_length]):
                if kind == 0x0001:
                    size, packed, header, disk = _read_zip64(field, size, packed, header, disk)
                elif kind == 0x7075:
                    unicode_extra = field
        if disk not in (0, _FULL16):
            raise SpannedArchiveError(f"entry {len(self.names)} of its directory starts on disk {disk}")
        if max(header, packed, size) >= 1 << 62:
            raise DirectoryError(f"entry {len(self.names)} of its directory announces absurd sizes")
        name = normalise_name(decode_name(raw, flags, encoding=encoding, unicode_extra=unicode_extra))
        self.names.append(name)
        self._raw.append(None if name.encode("utf-8", "surrogatepass") == raw else raw)
        return header, packed, size, crc, method, flags, _kind(name, attributes), stop - position

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Member:
        name, raw = self.names[index], self._raw[index]
        return Member(
            name=name,
            raw_name=name.encode() if raw is None else raw,
            size=int(self._size[index]),
            compressed_size=int(self._packed[index]),
            crc=int(self._crc[index]),
            method=int(self._method[index]),
            flags=int(self._flags[index]),
            header=int(self._header[index]),
            kind=_KINDS[self._kind[index]],
            unsafe=unsafe_reason(name),
        )

    def __iter__(self) -> Iterator[Member]:
        return (self[index] for index in range(len(self)))

    @property
    def repeated(self) -> int:
        """How many real members share their name with a later one."""
        return int(np.count_nonzero(self._kind == 0)) - len(self.files)

    @cached_property
    def files(self) -> dict[str, int]:
        """Name of every real member -> its entry. Of entries with the same name the last counts."""
        return {self.names[index]: int(index) for index in np.flatnonzero(self._kind == 0)}

    @cached_property
    def raw_names(self) -> dict[bytes, int]:
        """Bytes of every name, as they stand in the archive -> the last entry of that name."""
        return {self[index].raw_name: index for index in range(len(self))}

    @cached_property
    def _sorted_headers(self) -> npt.NDArray[np.int64]:
        return np.unique(np.append(self._header, self.location.start))

    def room(self, header: int) -> int:
        """Bytes from a local header to whatever comes next: another header, or the directory."""
        after = int(np.searchsorted(self._sorted_headers, header, side="right"))
        following = self._sorted_headers[after] if after < len(self._sorted_headers) else self.location.start
        return max(0, int(following) - header)

    def first_from(self, offset: int) -> int | None:
        """The entry whose local header is the first at or behind `offset`."""
        behind = np.where(self._header >= offset, self._header, np.iinfo(np.int64).max)
        index = int(np.argmin(behind)) if len(self) else 0
        return index if len(self) and self._header[index] >= offset else None


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, position)
        position += _EXTRA.size
        yield kind, extra[position : position + length]
        position += length


def _read_zip64(field: bytes, size: int, packed: int, header: int, disk: int) -> tuple[int, int, int, int]:
    """The 64-bit numbers that stand for those which are all ones, in their fixed order."""
    values = [size, packed, header]
    position = 0
    for index, value in enumerate(values):
        if value == _FULL32 and position + 8 <= len(field):
            values[index] = int.from_bytes(field[position : position + 8], "little")
            position += 8
    if disk == _FULL16 and position + 4 <= len(field):
        disk = int.from_bytes(field[position : position + 4], "little")
    return values[0], values[1], values[2], disk


def _kind(name: str, attributes: int) -> int:
    if (attributes >> 16) & 0o170000 == 0o120000:
        return _KINDS.index("link")
    if is_shadow(name):
        return _KINDS.index("shadow")
    return _KINDS.index("folder" if name.endswith("/") else "file")
