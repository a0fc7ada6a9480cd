"""What the names inside a zip mean, and which of them may become paths."""

from __future__ import annotations

import contextlib
import posixpath
import re
import zlib
from collections.abc import Iterable

_UTF8_FLAG = 0x800
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What desktop archivers add beside the real members.
_SHADOWS = frozenset({"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini", ".Spotlight-V100", ".Trashes"})


def decode_name(
    raw: bytes, flags: int, *, encoding: str | None = None, unicode_extra: bytes | None = None
) -> str:
    """The text of a member's name.

    A flagged name is UTF-8. An unflagged one should be code page 437 but seldom is, so the order is: the
    archiver's own Unicode copy, `encoding`, UTF-8, code page 437. The last decodes any bytes, one to one, so
    every member has a name that it can be asked for.

    Args:
        raw: The bytes in the directory.
        flags: General purpose flags of the entry.
        encoding: Code page of unflagged names, e.g. `"gbk"`.
        unicode_extra: Content of the Info-ZIP Unicode path field, where there is one.
    """
    if raw.isascii():
        return raw.decode("ascii")
    candidates = [] if flags & _UTF8_FLAG or encoding is None else [encoding]
    if unicode_extra is not None and unicode_extra[:5] == b"\x01" + zlib.crc32(raw).to_bytes(4, "little"):
        raw, candidates = unicode_extra[5:], []
    for candidate in (*candidates, "utf-8"):
        with contextlib.suppress(UnicodeDecodeError):
            return raw.decode(candidate)
    return raw.decode("cp437")


def normalise_name(name: str) -> str:
    """The name with forward slashes, without empty and `.` steps; a leading or trailing slash stays."""
    name = name.replace("\\", "/")
    if name == "." or "//" in name or name.startswith("./") or "/./" in name or name.endswith("/."):
        rooted, folder = name.startswith("/"), name.endswith(("/", "/."))
        steps = [step for step in name.split("/") if step not in {"", "."}]
        name = "/" * rooted + "/".join(steps) + "/" * (folder and bool(steps))
    return name


def unsafe_reason(name: str) -> str | None:
    """Why a normalised name must not become a path, or `None` where it may."""
    if name[:1] not in {"", "/"} and ":" not in name and ".." not in name and name.isprintable():
        return None  # nearly all names: archives hold thousands
    if not name.strip("/"):
        return "it is empty"
    if name.startswith("/"):
        return "it starts at the root"
    if _DRIVE.match(name):
        return "it names a drive"
    if ".." in name.split("/"):
        return "it climbs out of its folder"
    if _CONTROL.search(name):
        return "it holds control characters"
    return None


def is_shadow(name: str) -> bool:
    """Whether an archiver added this entry for itself (`__MACOSX/._x`, `.DS_Store`, …)."""
    steps = name.rstrip("/").split("/")
    return not _SHADOWS.isdisjoint(steps) or steps[-1].startswith("._")


def parent_folders(names: Iterable[str]) -> set[str]:
    """Every folder that some name lies in, at any depth, without final slashes."""
    folders: set[str] = set()
    for name in names:
        end = name.rfind("/")
        while end > 0 and name[:end] not in folders:
            folders.add(name[:end])
            end = name.rfind("/", 0, end)
    return folders


def common_folder(names: Iterable[str]) -> str:
    """The longest folder that all names lie in, with a final slash; empty where there is none."""
    folders = {posixpath.dirname(name) for name in names}
    folder = posixpath.commonpath(folders) if folders else ""
    return folder + "/" if folder else ""
