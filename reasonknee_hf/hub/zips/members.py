"""From the bytes of an entry to the content of the member: checked, and never larger than announced."""

from __future__ import annotations

import zlib
from typing import Any

from reasonknee_hf.errors import ArchiveError, IntegrityError
from reasonknee_hf.hub.zips.directory import LOCAL, LOCAL_HEADER, Member

# Above this a member is refused unless the caller raises the limit: it has to fit in memory, several at once.
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
    99: "AES",
}
_ENCRYPTED = 0x1 | 0x40 | 0x2000
# Deflate cannot do better than 258 bytes for 2 bits.
_BEST_RATIO = 1032


def check_readable(member: Member, where: str, *, max_member: int = MAX_MEMBER) -> None:
    """Raises [`ArchiveError`] for a member that cannot or must not be read, before anything is fetched for
    it.

    Args:
        member: Entry of the directory.
        where: Name of the archive, for messages.
        max_member: Largest size that is accepted.
    """
    label = f"member {member.name!r} of {where}"
    if member.kind == "link":
        raise ArchiveError(
            f"{label} is a link, not a file. Links are not followed: ask for what it points to"
        )
    if member.kind == "folder":
        raise ArchiveError(f"{label} is a folder")
    if member.flags & _ENCRYPTED:
        raise ArchiveError(f"{label} is encrypted, which is not supported. Unpack it with its password first")
    if member.method not in (STORED, DEFLATED):
        method = _METHODS.get(member.method, "an unknown method")
        raise ArchiveError(
            f"{label} is compressed with {method} (method {member.method}); only stored and deflated members "
            f"can be read. Write the archive again with plain deflate"
        )
    if member.size > max_member:
        raise ArchiveError(
            f"{label} announces {member.size} bytes, over the limit of {max_member} (`max_member`)"
        )
    possible = member.compressed_size if member.method == STORED else member.compressed_size * _BEST_RATIO
    if member.size > possible or (member.method == STORED and member.size != possible):
        raise ArchiveError(
            f"{label} announces {member.size} bytes packed into {member.compressed_size}, which cannot be"
        )


def is_local_header(answer: bytes, member: Member) -> bool:
    """Whether `answer` begins with a local header that carries the name of `member`."""
    if len(answer) < LOCAL_HEADER.size or not answer.startswith(LOCAL):
        return False
    name_length = LOCAL_HEADER.unpack_from(answer)[-2]
    return name_length == len(member.raw_name) and answer.startswith(member.raw_name, LOCAL_HEADER.size)


def data_offset(answer: bytes, member: Member, where: str) -> int:
    """Where the data begins in `answer`, the bytes from the member's local header on.

    Nothing else is taken from there: size and CRC of the directory prove that it is the right member.

    Raises:
        ArchiveError: There is no local header: the parts are in the wrong order, of different archives, or
            the directory is damaged.
    """
    if len(answer) >= LOCAL_HEADER.size and answer.startswith(LOCAL):
        *_, name_length, extra_length = LOCAL_HEADER.unpack_from(answer)
        return LOCAL_HEADER.size + int(name_length) + int(extra_length)
    raise ArchiveError(
        f"{where} holds no member where its directory says {member.name!r} begins (byte {member.header}): "
        f"the parts are in the wrong order, belong to different archives, or are damaged"
    )


def unpack(packed: bytes | memoryview, member: Member, where: str) -> bytes:
    """The content of a member.

    Never allocates more than the announced size, whatever the packed bytes would unfold to.

    Raises:
        IntegrityError: The bytes do not unfold to what the directory announces, in size or CRC-32.
    """
    if member.method == STORED:
        content = bytes(packed)
    else:
        content = _inflate(packed, member, where)
    crc = _crc32(content)
    if len(content) != member.size or crc != member.crc:
        raise IntegrityError(
            f"member {member.name!r} of {where} is damaged: {len(content)} bytes with CRC {crc:08x}, the "
            f"directory says {member.size} with {member.crc:08x}"
        )
    return content


def _inflate(packed: bytes | memoryview, member: Member, where: str) -> bytes:
    inflater, error_class = _inflater()
    try:
        # One byte more than announced is enough to see that there would be more.
        content: bytes = inflater.decompress(packed, member.size + 1)
    except error_class as error:
        raise IntegrityError(f"member {member.name!r} of {where} is damaged: {error}") from error
    if not inflater.eof and len(content) <= member.size:
        raise IntegrityError(
            f"member {member.name!r} of {where} is damaged: its data ends after {len(content)} of "
            f"{member.size} bytes"
        )
    return content


def _inflater() -> tuple[Any, Any]:
    """A decompressor of raw deflate, and the class of its errors."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj(-15), zlib.error
    return isal_zlib.decompressobj(-15), isal_zlib.error


def _crc32(content: bytes) -> int:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32(content)
    return int(isal_zlib.crc32(content))
