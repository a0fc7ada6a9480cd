"""What the central directory of a zip says, and from the bytes of an entry to a member's content. Pure.

The directory is the truth; a member's local header is only read to learn where its data begins. The standard
library's `zipfile` is not used: it needs a seekable file, reads byte ranges that depend on what it found
before, takes archives apart that carry disk numbers, fails on names that are no UTF-8, and keeps an object of
500 bytes for each member.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import ArchiveError, IntegrityError
from reasonknee_hf.hub.zips.archive_names import decode_name, is_shadow, normalise_name, unsafe_reason

LOCAL = b"PK\x03\x04"
SPANNED_START = b"PK\x07\x08"
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_EXTRA = struct.Struct("<2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF

# Above this a member is refused: it has to fit in memory, several at once.
MAX_MEMBER = 2 * 1024**3

STORED, DEFLATED = 0, 8
_METHODS = {
    1: "shrink",
    6: "implode",
    9: "deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "zstd",
    95: "xz",
    98: "PPMd",
}
_ENCRYPTED = 0x1 | 0x40 | 0x2000
# Deflate cannot do better than 258 bytes for 2 bits.
_BEST_RATIO = 1032


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


class DirectoryError(ArchiveError, IntegrityError):
    """The end record or the directory contradicts itself. The message leaves the archive's name to others.

    It is an [`IntegrityError`] too, so that an endpoint whose copy is damaged is not the last one that is asked.
    """


class SpannedArchiveError(DirectoryError):
    """The parts were made by the archiver's spanning mode."""


class EndRecordMissingError(DirectoryError):
    """No end record was found where the archive should end."""


class PartsMismatchError(DirectoryError):
    """The directory speaks of more bytes than there are."""


@dataclass(frozen=True)
class ArchiveMember:
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

    @property
    def unsafe(self) -> str | None:
        """Why the name must not become a path; `None` where it may."""
        return unsafe_reason(self.name)

    def refuse_unreadable(self, where: str) -> None:
        """Raises [`ArchiveError`] for a member that cannot or must not be read, before anything is fetched for it.

        Args:
            where: Name of the archive, for messages.
        """
        label = f"member {self.name!r} of {where}"
        if self.kind == "link":
            raise ArchiveError(
                f"{label} is a link, not a file. Links are not followed: ask for what it points to"
            )
        if self.kind == "folder":
            raise ArchiveError(f"{label} is a folder")
        if self.flags & _ENCRYPTED:
            raise ArchiveError(
                f"{label} is encrypted, which is not supported. Unpack it with its password first"
            )
        if self.method not in (STORED, DEFLATED):
            method = _METHODS.get(self.method, "an unknown method")
            raise ArchiveError(
                f"{label} is compressed with {method} (method {self.method}); only stored and deflated members "
                f"can be read. Write the archive again with plain deflate"
            )
        if self.size > MAX_MEMBER:
            raise ArchiveError(f"{label} announces {self.size} bytes, over the limit of {MAX_MEMBER}")
        possible = self.compressed_size if self.method == STORED else self.compressed_size * _BEST_RATIO
        if self.size > possible or (self.method == STORED and self.size != possible):
            raise ArchiveError(
                f"{label} announces {self.size} bytes packed into {self.compressed_size}, which cannot be"
            )

    def begins(self, answer: bytes) -> bool:
        """Whether `answer` begins with a local header that carries the name of this member."""
        if len(answer) < LOCAL_HEADER.size or not answer.startswith(LOCAL):
            return False
        name_length = LOCAL_HEADER.unpack_from(answer)[-2]
        return name_length == len(self.raw_name) and answer.startswith(self.raw_name, LOCAL_HEADER.size)

    def unpack(self, answer: bytes, where: str) -> bytes:
        """The content, from the bytes of the archive from the local header on.

        Nothing but its length is taken from that header: size and CRC of the directory prove that it is the right
        member. Never allocates more than the announced size, whatever the packed bytes would unfold to.

        Raises:
            IntegrityError: There is no local header, or the bytes do not unfold to what the directory announces, in
                size or CRC-32.
        """
        if len(answer) < LOCAL_HEADER.size or not answer.startswith(LOCAL):
            raise IntegrityError(
                f"{where} holds no member where its directory says {self.name!r} begins (byte {self.header}): "
                f"the parts are in the wrong order, belong to different archives, or are damaged"
            )
        *_, name_length, extra_length = LOCAL_HEADER.unpack_from(answer)
        start = LOCAL_HEADER.size + int(name_length) + int(extra_length)
        packed = memoryview(answer)[start : start + self.compressed_size]
        label = f"member {self.name!r} of {where} is damaged"
        if len(packed) < self.compressed_size:
            raise IntegrityError(f"{label}: it reaches into what follows it")
        codec = inflater()
        if self.method == STORED:
            content = bytes(packed)
        else:
            packer = codec.decompressobj(-15)
            try:
                # One byte more than announced is enough to see that there would be more.
                content = packer.decompress(packed, self.size + 1)
            except codec.error as error:
                raise IntegrityError(f"{label}: {error}") from error
            if not packer.eof and len(content) <= self.size:
                raise IntegrityError(f"{label}: its data ends after {len(content)} of {self.size} bytes")
        crc = int(codec.crc32(content))
        if len(content) != self.size or crc != self.crc:
            raise IntegrityError(
                f"{label}: {len(content)} bytes with CRC {crc:08x}, the directory says {self.size} with "
                f"{self.crc:08x}"
            )
        return content


@lru_cache(maxsize=1)
def inflater() -> Any:
    """The module that inflates: `isal.isal_zlib` where it is installed, else `zlib`."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


_KINDS = ("file", "folder", "link", "shadow")
_ROW = np.dtype("i8, i8, i8, u4, u2, u2, u1")
_ROW.names = ("header", "packed", "size", "crc", "method", "flags", "kind")


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
        rows: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self._raw: list[bytes | None] = []  # only where encoding the name does not give it back
        position = 0
        while position < len(data):
            row, position = self._read_entry(data, position, encoding)
            rows.append(row)
        count = len(rows)
        if count != location.count and (location.count_is_exact or count % 65536 != location.count):
            raise DirectoryError(
                f"its directory holds {count} entries, its end record announces {location.count}"
            )
        self._rows = np.array(rows, dtype=_ROW)
        self._rows["header"] += location.prefix

    def _read_entry(self, data: bytes, position: int, encoding: str | None) -> tuple[tuple[int, ...], int]:
        """What `_ROW` keeps of the entry, and where the entry ends."""
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
        return (header, packed, size, crc, method, flags, _kind(name, attributes)), stop

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> ArchiveMember:
        name, raw = self.names[index], self._raw[index]
        header, packed, size, crc, method, flags, kind = self._rows[index].item()
        raw = name.encode() if raw is None else raw
        return ArchiveMember(name, raw, size, packed, crc, method, flags, header, _KINDS[kind])

    def __iter__(self) -> Iterator[ArchiveMember]:
        return (self[index] for index in range(len(self)))

    @property
    def repeated(self) -> int:
        """How many real members share their name with a later one."""
        return int(np.count_nonzero(self._rows["kind"] == 0)) - len(self.files)

    @cached_property
    def files(self) -> dict[str, int]:
        """Name of every real member -> its entry. Of entries with the same name the last counts."""
        return {self.names[index]: int(index) for index in np.flatnonzero(self._rows["kind"] == 0)}

    @cached_property
    def _sorted_headers(self) -> npt.NDArray[np.int64]:
        return np.unique(np.append(self._rows["header"], self.location.start))

    def room(self, header: int) -> int:
        """Bytes from a local header to whatever comes next: another header, or the directory."""
        after = int(np.searchsorted(self._sorted_headers, header, side="right"))
        following = self._sorted_headers[after] if after < len(self._sorted_headers) else self.location.start
        return max(0, int(following) - header)

    def first_from(self, offset: int) -> int | None:
        """The entry whose local header is the first at or behind `offset`."""
        headers = self._rows["header"]
        behind = np.flatnonzero(headers >= offset)
        return int(behind[np.argmin(headers[behind])]) if len(behind) else None


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
