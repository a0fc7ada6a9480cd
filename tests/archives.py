"""Zip archives for tests, and a tree that counts what is asked of it."""

from __future__ import annotations

import io
import itertools
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reasonknee_hf.errors import FileMissingError
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet


class CountingTree:
    """A [`Tree`] over bytes in memory.

    Args:
        files: Path -> content.
        sha: As of a Hub tree; `None` as of a folder.
        unlisted: Paths whose size the listing does not tell.

    Attributes:
        requests: `(path, start, stop)` of every range that was read.
        asked_sizes: Paths whose size was asked for one by one.
        most_running: Requests that were running at the same time.
        delay: Seconds that every request takes.
    """

    def __init__(
        self, files: Mapping[str, bytes], *, sha: str | None = None, unlisted: Sequence[str] = ()
    ) -> None:
        self.files = dict(files)
        self.sha = sha
        self.unlisted = set(unlisted)
        self.name = "tree of the test"
        self.identity = f"test/tree@{sha}"
        self.requests: list[tuple[str, int, int]] = []
        self.asked_sizes: list[str] = []
        self.running = self.most_running = 0
        self.delay = 0.0
        self._lock = threading.Lock()

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def entries(self) -> Mapping[str, FileEntry]:
        return {
            path: FileEntry(path, None if path in self.unlisted else len(content))
            for path, content in sorted(self.files.items())
        }

    def entry(self, path: str) -> FileEntry:
        if path not in self.files:
            raise FileMissingError(path)
        return self.entries()[path]

    def size(self, path: str) -> int:
        self.asked_sizes.append(path)
        if path not in self.files:
            raise FileMissingError(path)
        return len(self.files[path])

    def read(self, path: str) -> bytes:
        return self.files[path]

    def ranges(self, path: str, spans, *, checked_later: bool = False) -> list[bytes]:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        answers = []
        time.sleep(self.delay)
        for start, stop in spans:
            assert 0 <= start < stop <= len(self.files[path]), (path, start, stop)
            with self._lock:
                self.requests.append((path, start, stop))
            answers.append(self.files[path][start:stop])
        with self._lock:
            self.running -= 1
        return answers

    def checked_ranges(self, spans, check):
        return check([self.ranges(path, [(start, stop)])[0] for path, start, stop in spans])

    def stream(self, path: str, start: int = 0, stop: int | None = None):
        yield self.files[path][start:stop]

    def url(self, path: str) -> str:
        return f"counting://{path}"

    @property
    def sent(self) -> int:
        """Bytes of all answers so far."""
        return sum(stop - start for _, start, stop in self.requests)

    def forget(self) -> None:
        """Empties the records."""
        self.requests.clear()
        self.asked_sizes.clear()


def make_zip(
    members: Mapping[str, bytes], *, compression: int = zipfile.ZIP_DEFLATED, comment: bytes = b""
) -> bytes:
    """A zip as the standard library writes it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2025, 5, 15, 0, 0, 0)), content, compression)
        archive.comment = comment
    return target.getvalue()


def cut(data: bytes, *positions: int) -> dict[str, bytes]:
    """The pieces of `data` as `masks_aa`, `masks_ab`, …"""
    bounds = [0, *sorted(positions), len(data)]
    return {
        f"masks_a{chr(ord('a') + number)}": data[start:stop]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds))
    }


def open_cut(data: bytes, *positions: int, **options) -> CutArchive:
    """An archive over a counting tree that holds `data` in pieces."""
    files = cut(data, *positions)
    return CutArchive(CountingTree(files), PartSet("masks", tuple(files)), **options)


def contents(archive: CutArchive) -> dict[str, bytes]:
    """Everything that can be read."""
    return dict(archive.read_many(archive.names()))


@dataclass
class Entry:
    """One entry as [`raw_zip`] writes it. What is `None` follows from the rest.

    Args:
        name: Raw bytes.
        content: Unpacked.
        method: 0 or 8, or any number to claim.
        flags: General purpose flags; 0x8 moves the local numbers to a data descriptor.
        local_extra: Extra field of the local header only.
        extra: Extra field of the directory only.
        attributes: External attributes.
        disk: Disk number where it starts.
        zip64: Write 64-bit numbers although nobody needs them.
        size: Claimed size.
        crc: Claimed CRC.
        at: Claimed offset of the local header.
        gap: Bytes of rubbish in front of the local header.
    """

    name: bytes
    content: bytes = b""
    method: int = 8
    flags: int = 0
    local_extra: bytes = b""
    extra: bytes = b""
    attributes: int = 0
    disk: int = 0
    zip64: bool = False
    size: int | None = None
    crc: int | None = None
    at: int | None = None
    gap: int = 0


def raw_zip(
    entries: Sequence[Entry],
    *,
    prefix: bytes = b"",
    comment: bytes = b"",
    trailing: bytes = b"",
    zip64: bool = False,
    count: int | None = None,
    disk: int = 0,
) -> bytes:
    """A zip written by hand, for layouts that the standard library does not write."""
    body, directory = bytearray(), bytearray()
    for entry in entries:
        body += b"\xa5" * entry.gap
        crc = zlib.crc32(entry.content) if entry.crc is None else entry.crc
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(entry.content) + packer.flush() if entry.method == 8 else entry.content
        size = len(entry.content) if entry.size is None else entry.size
        offset = len(body) if entry.at is None else entry.at
        later = bool(entry.flags & 0x8)
        local = (0, 0, 0) if later else (crc, len(packed), size)
        body += struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, entry.flags, entry.method, 0, 0x5AA3, *local,
                            len(entry.name), len(entry.local_extra))  # fmt: skip
        body += entry.name + entry.local_extra + packed
        if later:
            body += struct.pack("<4s3L", b"PK\x07\x08", crc, len(packed), size)
        numbers, extra = (len(packed), size, offset), entry.extra
        if entry.zip64:
            extra = struct.pack("<2H3Q", 1, 24, size, len(packed), offset) + extra
            numbers = (0xFFFFFFFF,) * 3
        directory += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 0x31E, 20, entry.flags, entry.method, 0,
                                 0x5AA3, crc, numbers[0], numbers[1], len(entry.name), len(extra), 0, entry.disk, 0,
                                 entry.attributes, numbers[2])  # fmt: skip
        directory += entry.name + extra
    count = len(entries) if count is None else count
    start, size = len(body), len(directory)
    end = bytearray()
    if zip64:
        end += struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, disk, disk, count, count, size, start)
        end += struct.pack("<4sLQL", b"PK\x06\x07", 0, len(prefix) + start + size, 1)
        count, size, start = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    end += (
        struct.pack("<4s4H2LH", b"PK\x05\x06", disk, disk, count, count, size, start, len(comment)) + comment
    )
    return prefix + bytes(body + directory + end) + trailing
