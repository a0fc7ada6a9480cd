"""What a place holds before a conversion is added, which of it is proven to be ours, and what nobody needs after."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fsspec.utils import glob_translate

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.config_facts import Store
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.manifest import Manifest, manifests, proven
from reasonknee_hf.publish.rules import front_matter, read_metadata

CARD, DESCRIPTION = "README.md", "croissant.json"


@dataclass(frozen=True)
class Standing:
    """A folder or a repository as it is.

    Args:
        place: What `load_dataset` is given: a repository id or a folder.
        names: All files.
        card, description: Texts of `README.md` and `croissant.json`; empty if there is none.
        manifests: What this package says that it wrote.
    """

    place: str
    names: frozenset[str] = frozenset()
    card: str = ""
    description: str = ""
    manifests: tuple[Manifest, ...] = ()

    @classmethod
    def read(cls, place: str, names: Iterable[str], text: Callable[[str], str]) -> Standing:
        """What is there.

        Args:
            place: For people and cards.
            names: All files.
            text: Gives the text of a file; empty if there is none.
        """
        names = frozenset(names)
        return cls(place, names, text(CARD), text(DESCRIPTION), tuple(manifests(names, text)))

    def of(self, name: str) -> list[Manifest]:
        """What was written by conversions of that name: questions, volumes, crops."""
        return [one for one in self.manifests if one.of == name]

    def entries(self, written: Sequence[Manifest]) -> set[str]:
        """Configs of the card that some manifests prove: the card names no other files for them."""
        named = patterns(self.card)
        globs: dict[str, set[str]] = {}
        for one in written:
            for entry in one.entries:
                globs.setdefault(entry, set()).update(one.patterns)
        return {entry for entry, mine in globs.items() if set(named.get(entry, ())) <= mine}

    @property
    def configs(self) -> list[str]:
        """Configs that the card lists."""
        return [str(one.get("config_name")) for one in _configs(self.card)]


def deleted_entries(standing: Standing, names: Sequence[str], job: Job) -> list[str]:
    """The configs to remove, with those that were written beside them.

    Raises:
        PublishError: One is not there, or is the one that is being written.
    """
    there = {*standing.configs, *(one.config for one in standing.manifests)}
    gone: list[str] = []
    for name in names:
        if any(one.config == name for one in standing.of(job.name)):
            raise PublishError(f"The config {name} cannot be pushed and deleted by one call.")
        if name not in there:
            raise PublishError(
                f"{standing.place} has no config {name!r} to delete. Its configs: {', '.join(sorted(there)) or 'none'}."
            )
        written = [one for one in standing.manifests if name in (one.of, one.config)]
        gone += [name, *sorted(standing.entries(written))]
    return list(dict.fromkeys(gone))


def stale_files(
    standing: Standing, card: str, job: Job, written: Iterable[str], store: Store, deleted: Sequence[str] = ()
) -> list[str]:
    """Files that we wrote, or that are to be deleted, and that no config of the new card names.

    Args:
        standing: What was there before.
        card: The card now.
        job: What was written.
        written: Its files.
        store: Tells whether files are still as we wrote them: others' work under our names stays.
        deleted: Configs that are to go.
    """
    old = patterns(standing.card)
    gone = [glob for name in deleted for glob in old.get(name, ())]
    kept = [glob for globs in patterns(card).values() for glob in globs]
    new = set(written)
    listed: set[str] = set()
    for one in standing.manifests:
        if one.config in deleted:
            listed |= {one.path, *one.parts}
        elif one.of == job.name:
            listed |= {
                one.path,
                *(n for n, part in one.parts.items() if n not in new and proven(store, part)),
            }
    return [
        name
        for name in sorted(standing.names - new)
        if (name in listed or any(matches(name, glob) for glob in gone))
        and not any(matches(name, glob) for glob in kept)
    ]


def patterns(card: str) -> dict[str, list[str]]:
    """Config → globs of its files, as a card gives them."""
    found: dict[str, list[str]] = {}
    for one in _configs(card):
        entries = one.get("data_files")
        entries = entries if isinstance(entries, list) else [entries] if entries else []
        for entry in entries:
            paths = entry.get("path") if isinstance(entry, dict) else entry
            base = str(one.get("data_dir") or "").strip("/")
            for path in paths if isinstance(paths, list) else [paths]:
                found.setdefault(str(one.get("config_name")), []).append(
                    f"{base}/{path}" if base else str(path)
                )
        if not entries and one.get("data_dir"):
            found.setdefault(str(one.get("config_name")), []).append(f"{one['data_dir'].strip('/')}/**")
    return found


def _configs(card: str) -> list[dict[str, Any]]:
    return list(read_metadata(front_matter(card)[0]).get("configs") or ())


def matches(name: str, pattern: str) -> bool:
    """Whether a path fits a glob of a card, by the rules by which `datasets` finds files.

    Raises:
        PublishError: `pattern` is none that `datasets` could read.
    """
    return _regex(pattern).match(name) is not None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(glob_translate(posixpath.normpath(pattern)))
    except ValueError as error:
        raise PublishError(
            f"The card names files by {pattern!r}, which nothing can read: {error}."
        ) from error
