"""What a place holds before a conversion is added, which of it is proven to be ours, and what nobody needs after.

What this package wrote is said beside it, by parts with rows, bytes and hash. What no manifest names is others' work.
Each call that writes a config keeps `{config}/reasonknee-{hash of its options}.json`. Calls with other options, at the
same time or later, have files of their own, so none overwrites what another says.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.utils import glob_translate

from reasonknee_hf.dataset.contract import MANIFEST
from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.places import Place, Store, hash_of
from reasonknee_hf.publish.rules import front_matter, read_metadata

CARD, DESCRIPTION, EVALUATION = "README.md", "croissant.json", "eval.yaml"
_AUTHOR = "reasonknee_hf"


class Part(NamedTuple):
    """One written file: its path below the root, rows (`None` for what is no table), bytes, and hash.

    `spans` are the places of volumes in a table: scan → column → first byte, bytes, name.
    """

    path: str
    rows: int | None
    size: int
    sha256: str
    spans: Mapping[str, Any] | None = None


@dataclass
class Manifest:
    """What one call wrote of one config.

    Args:
        path: Of the manifest itself, below the root.
        config: The config.
        of: Name of the conversion, which is that of its questions: `full` for `full_volumes`.
        kind: `questions`, `volumes` or `crops`.
        provenance: Source and options.
        parts: Path → part.
        patterns: Globs by which the card names them.
        left: Those of the parts that an earlier call wrote and this one does not need.
        labels: Structure name → label id of the masks.
        dataset: Short name of the dataset that it is a version of.
    """

    path: str
    config: str
    of: str
    kind: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    labels: Mapping[str, int] = field(default_factory=dict)
    dataset: str | None = None

    def add(self, parts: Iterable[Part]) -> None:
        """Names further files."""
        for part in parts:
            self.parts[part.path] = part
            self.left.discard(part.path)

    @property
    def entries(self) -> set[str]:
        """Configs of a card that stand for it: a config of volumes has a second one."""
        return {self.config} if self.kind == "questions" else {self.config, f"{self.config}_bytes"}

    @property
    def text(self) -> str:
        """The manifest as it is written."""
        parts = {
            part.path: {"rows": part.rows, "bytes": part.size, "sha256": part.sha256}
            | ({"spans": part.spans} if part.spans else {})
            for _, part in sorted(self.parts.items())
        }
        told = {
            "written_by": _AUTHOR, "dataset": self.dataset, "config": self.config, "of": self.of, "kind": self.kind,
            "provenance": self.provenance, "patterns": sorted(self.patterns), "labels": self.labels, "files": parts,
        }  # fmt: skip
        return json.dumps(told, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: str, text: str) -> Manifest | None:
        """The manifest that a file holds; `None` if it is none of ours."""
        try:
            told = json.loads(text)
            if told["written_by"] != _AUTHOR or told["config"] != path.split("/")[0]:
                return None
            parts = {
                name: Part(name, one["rows"], one["bytes"], one["sha256"], one.get("spans"))
                for name, one in told["files"].items()
            }
            return cls(
                path,
                told["config"],
                told["of"],
                told["kind"],
                told["provenance"],
                parts,
                set(told["patterns"]),
                dataset=told.get("dataset"),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def manifests(names: Iterable[str], read: Callable[[str], str]) -> list[Manifest]:
    """All manifests of a place.

    Args:
        names: Its files.
        read: Gives the text of one.
    """
    found = (Manifest.read(name, read(name)) for name in sorted(names) if MANIFEST.fullmatch(name))
    return [one for one in found if one is not None]


def proven(store: Store, part: Part, names: Collection[str]) -> bool:
    """Whether a file is there as it was written, `names` being all that are there."""
    return (
        part.path in names and store.size(part.path) == part.size and store.sha256(part.path) == part.sha256
    )


def part_of(root: Path, path: str, rows: int | None, spans: Mapping[str, Any] | None = None) -> Part:
    """What a manifest says of a local file."""
    with (root / path).open("rb") as file:
        return Part(path, rows, (root / path).stat().st_size, hash_of(file), spans)


# --- a place ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A folder or a repository as it is.

    Args:
        place: What `load_dataset` is given: a repository id or a folder.
        names: All files.
        card, description, evaluation: Texts of `README.md`, `croissant.json` and `eval.yaml`; empty if there is none.
        manifests: What this package says that it wrote.
    """

    place: str
    names: frozenset[str] = frozenset()
    card: str = ""
    description: str = ""
    evaluation: str = ""
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
        evaluation = text(EVALUATION) if EVALUATION in names else ""
        return cls(place, names, text(CARD), text(DESCRIPTION), evaluation, tuple(manifests(names, text)))

    @classmethod
    def of_place(cls, place: Place) -> Standing:
        """What a folder, or another place of fsspec, holds."""
        return cls.read(place.shown, place.names(), place.text)

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
                *(n for n, part in one.parts.items() if n not in new and proven(store, part, standing.names)),
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
