"""From the spellings of a path in published tables to the file of the release that is meant.

Published paths only make sense on their author's machine: relative to a script's folder, absolute, with
backslashes, percent-encoded. What they share with the release is their end. Independent of the working
directory and of the operating system.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from urllib.parse import unquote

from reasonknee_hf.errors import AmbiguousPathError, FileMissingError

_SHOWN = 4
_SCRIPT_DEPTH = 2  # of the published scripts, such as code/zero_shot/, whether or not the listing holds them


class PathResolver:
    """Resolves published paths to files of one listing by the longest end that they share.

    A published path and a file match as far as they agree from the end backwards, folder by folder. Of all
    files the one with the longest match is meant, if there is exactly one; `.` and inner `..` are resolved
    before, and a path is taken literally before it is percent-decoded (once; a plus sign stays a plus sign).

    Where both sides go on beyond the match they disagree on a folder. That is accepted for another root
    (`/mnt/x/images/a.nii.gz` for `data/images/a.nii.gz`), but not where another file could be meant:

    - a folder with a digit in its name would be left out: those tell patients and visits apart, and
      `9000002/00M/a.nii.gz` must never give `9000001/00M/a.nii.gz`;
    - both begin at the same root and differ below it: `data/masks/a.nii.gz` must never give
      `data/images/a.nii.gz`.

    Args:
        paths: All files of the release, relative to its root, with forward slashes.
        where: What holds them, for messages.
    """

    def __init__(self, paths: Iterable[str], where: str = "the release") -> None:
        self._where = where
        self._paths = frozenset(paths)
        self._by_end: dict[str, str | None] = {}  # None: several files share this end
        self._known: dict[str, str | None] = {}
        self._depth = 0
        for path in self._paths:
            key = _key(path)
            self._depth = max(self._depth, key.count("/"))
            for end in _ends(key):
                self._by_end[end] = path if end not in self._by_end else None

    def resolve(self, published: str) -> str:
        """The file that `published` means.

        Raises:
            FileMissingError: No file of the release fits.
            AmbiguousPathError: Several fit equally well, or `published` climbs out of the release.
        """
        path = self.find(published)
        if path is None:
            raise FileMissingError(
                f"{published!r} is not among the {len(self._paths):,} files of {self._where}"
                f"{self._hint(published)}"
            )
        return path

    def find(self, published: str) -> str | None:
        """The file that `published` means; `None` if there is none.

        Raises:
            AmbiguousPathError: Several fit equally well, or `published` climbs out of the release.
        """
        try:
            return self._known[published]
        except KeyError:
            self._known[published] = path = self._find(published)
            return path

    def _find(self, published: str) -> str | None:
        literal = published.removeprefix("./")
        if literal in self._paths:
            return literal
        spellings = dict.fromkeys(self._clean(spelling) for spelling in (published, unquote(published)))
        matches = [(end, spelling) for spelling in spellings if (end := self._longest(spelling))]
        if not matches:
            return None
        end, spelling = max(
            matches, key=lambda match: match[0].count("/")
        )  # the literal one if they are equal
        path = self._by_end[end]
        if path is None:
            exact = [p for p in self._paths if _key(p) == end] if end == spelling else []
            if len(exact) != 1:
                raise self._ambiguous(published, end)
            path = exact[0]
        return None if _contradicts(spelling, _key(path), end) else path

    def _clean(self, published: str) -> str:
        """`published` with forward slashes only and without `.` and `..`."""
        text = _key(published.replace("\\", "/"))
        parts: list[str] = []
        # Relative to some folder of the release; from none of them can a path climb further than to the root.
        climbs_left = 0 if text.startswith("/") else max(self._depth, _SCRIPT_DEPTH)
        for part in text.split("/"):
            if part in ("", "."):
                continue
            if part != "..":
                parts.append(part)
                climbs_left = 0
            elif parts:
                parts.pop()
            elif climbs_left:
                climbs_left -= 1
            else:
                raise AmbiguousPathError(
                    f"{published!r} climbs out of {self._where}. Published paths must lie inside it; "
                    "correct the table."
                )
        return "/".join(parts)

    def _longest(self, path: str) -> str | None:
        return next((end for end in _ends(path) if end in self._by_end), None)

    def _ambiguous(self, published: str, end: str) -> AmbiguousPathError:
        fitting = sorted(path for path in self._paths if f"/{_key(path)}".endswith(f"/{end}"))
        more = f" and {len(fitting) - _SHOWN} more" if len(fitting) > _SHOWN else ""
        return AmbiguousPathError(
            f"{published!r} fits {len(fitting)} files of {self._where} equally well: "
            f"{', '.join(fitting[:_SHOWN])}{more}. Write more of the folders above it, up to the root."
        )

    def _hint(self, published: str) -> str:
        name = _key(published.replace("\\", "/")).rpartition("/")[2]
        alike = sorted(path for path in self._paths if _key(path).rpartition("/")[2] in (name, unquote(name)))
        return f"; of the same name are only {', '.join(alike[:_SHOWN])}." if alike else "."


def _key(path: str) -> str:
    """One form for the several codings that Unicode has for letters with accents."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def _ends(path: str) -> Iterable[str]:
    """`a/b/c`, `b/c`, `c`."""
    while path:
        yield path
        path = path.partition("/")[2]


def _contradicts(published: str, path: str, end: str) -> bool:
    """Whether `published` and `path`, which share `end`, name different files all the same."""
    wanted, held = (full[: len(full) - len(end)].split("/")[:-1] for full in (published, path))
    if not wanted or not held:
        return False  # one of them is wholly contained in the other
    if any(character.isdigit() for folder in held for character in folder):
        return True
    below_root = wanted[wanted.index(held[0]) + 1 :] if held[0] in wanted else []
    return bool(below_root) and len(held) > 1
