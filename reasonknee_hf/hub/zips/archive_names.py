"""What names say: which files of a listing are pieces of one zip, and which members may become paths. Pure."""

from __future__ import annotations

import contextlib
import posixpath
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# What is cut but is no zip.
_OTHER_ARCHIVES = re.compile(
    r"\.(tar|tgz|tbz2?|txz|gz|bz2|xz|zst|7z|rar|lz4|safetensors|bin|gguf)$", re.IGNORECASE
)
_LETTERS = re.compile(r"(?P<stem>.+?)(?P<joint>[._-](?:part)?)(?P<number>[a-z]{2,4})")
_DIGITS = re.compile(r"(?P<stem>.+?)(?P<joint>[._-](?:part)?)(?P<number>\d{1,4})")
_SPANNED = re.compile(r"(?P<stem>.+)\.z(?P<number>\d{2,3})", re.IGNORECASE)
_ZIP = re.compile(r"(?P<stem>.+)\.zip", re.IGNORECASE)


@dataclass(frozen=True)
class PartSet:
    """The parts of one archive.

    Args:
        mount: The folder that the archive's members appear in: path of the parts without what numbers them.
        paths: The parts in order, first byte first.
        missing: Paths of parts that must exist judging by the numbers of the others.
        spanned: The parts carry the names of the archiver's own spanning mode, which is not a plain cut.
    """

    mount: str
    paths: tuple[str, ...]
    missing: tuple[str, ...] = ()
    spanned: bool = False


def find_part_sets(paths: Iterable[str], sizes: Mapping[str, int | None] | None = None) -> dict[str, PartSet]:
    """Finds every zip archive in a listing, whole or cut, by the names of the files.

    Known are the names of `split` (`X_aa`, `X_ab`, …; also `X.zip.aa` and `X.zip_aa`), numbered parts
    (`X.zip.001`, `X.zip.1`, `X.001`, `X_1`; counted from 0 or 1, in the order of the numbers), a whole `X.zip`,
    and the spanning mode of archivers (`X.z01`, …, `X.zip`).

    Args:
        paths: Posix paths of the files.
        sizes: Their bytes. Where given, `X_1`, `X_2`, … are an archive only if all but the last are equally large.

    Returns:
        The sets by their mount. Where several kinds share one mount, spanned parts come first (a `.zip`
        beside `.z01` is only their last piece), then a whole zip, then letters, then digits.
    """
    spanned: dict[str, dict[int, str]] = defaultdict(dict)
    whole: dict[str, str] = {}
    cut: dict[tuple[bool, str, str], dict[str, str]] = defaultdict(dict)  # digits?, folder/stem, joint
    for path in sorted(paths):
        folder, base = posixpath.split(path)
        if match := _ZIP.fullmatch(base):
            whole[posixpath.join(folder, match["stem"])] = path
        elif match := _SPANNED.fullmatch(base):
            spanned[posixpath.join(folder, match["stem"])][int(match["number"])] = path
        else:
            for pattern in (_LETTERS, _DIGITS):
                match = pattern.fullmatch(base)
                if match and not _OTHER_ARCHIVES.search(match["stem"]):
                    stem = posixpath.join(folder, match["stem"])
                    cut[pattern is _DIGITS, stem, match["joint"]][match["number"]] = path

    found: dict[str, PartSet] = {}
    for mount, numbered in spanned.items():
        last = [whole[mount]] if mount in whole else []
        found[mount] = PartSet(
            mount, (*(numbered[number] for number in sorted(numbered)), *last), spanned=True
        )
    for mount, path in whole.items():
        found.setdefault(mount, PartSet(mount, (path,)))
    for (digits, stem, joint), texts in sorted(cut.items()):
        zipped = _ZIP.fullmatch(posixpath.basename(stem)) is not None
        mount = stem[:-4] if zipped else stem
        # Numbers with zeros in front are all of one width; others grow: 9, 10.
        widths = {len(text) for text in texts if not digits or (text[0] == "0" and len(text) > 1)} or {1}
        for width in sorted(widths):
            numbers = {text: int(text) if digits else _from_letters(text) for text in texts}
            numbered = {n: texts[text] for text, n in numbers.items() if text == _label(n, width, digits)}
            if zipped or _looks_cut(numbered, joint, width, digits, sizes):
                found.setdefault(mount, _numbered_set(mount, stem + joint, numbered, width, digits))
    return dict(sorted(found.items()))


def _looks_cut(
    numbered: Mapping[int, str], joint: str, width: int, digits: bool, sizes: Mapping[str, int | None] | None
) -> bool:
    """Whether these numbers are pieces and not, say, the ends of `notes.md` and `slice_07`."""
    if not digits:
        # `X_ab` without its `X_aa` is a set with a hole; `X.py` alone is a program.
        return 0 in numbered or (joint == "_" and width == 2 and min(numbered) <= 2)
    if joint == ".":
        return width == 3 and bool({0, 1} & numbered.keys())
    order = sorted(numbered)
    if len(order) < 2 or order[0] > 1 or order[-1] - order[0] != len(order) - 1:
        return False
    if sizes is None:
        return True
    *first, last = (sizes.get(numbered[number]) or 0 for number in order)
    return set(first) == {first[0]} and 0 < last < first[0]


def _numbered_set(mount: str, prefix: str, numbered: Mapping[int, str], width: int, digits: bool) -> PartSet:
    first = 1 if digits and 0 not in numbered else 0
    wanted = range(first, max(numbered) + 1)
    if len(wanted) > 10 * len(numbered) + 10:  # a far-off number is another file, not thousands of holes
        wanted = range(first, first + len(numbered))
    return PartSet(
        mount,
        tuple(numbered[n] for n in wanted if n in numbered),
        missing=tuple(prefix + _label(n, width, digits) for n in wanted if n not in numbered),
    )


def next_part(path: str) -> str | None:
    """The name that a part after `path` would have, for messages. `None` where the name carries no number."""
    if _ZIP.fullmatch(path):
        return None
    if match := re.fullmatch(r"(.*[._-](?:part)?)([a-z]{2,4})", path):
        return match[1] + _to_letters(_from_letters(match[2]) + 1, len(match[2]))
    if match := re.fullmatch(r"(.*[._-](?:part)?)(\d{1,4})", path):
        return match[1] + _label(int(match[2]) + 1, len(match[2]), True)
    return None


def _label(number: int, width: int, digits: bool) -> str:
    return f"{number:0{width}d}" if digits else _to_letters(number, width)


def _from_letters(text: str) -> int:
    number = 0
    for letter in text:
        number = number * 26 + ord(letter) - ord("a")
    return number


def _to_letters(number: int, width: int) -> str:
    letters = ""
    for _ in range(width):
        number, digit = divmod(number, 26)
        letters = chr(ord("a") + digit) + letters
    return letters


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
