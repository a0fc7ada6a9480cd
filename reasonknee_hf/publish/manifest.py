"""What this package wrote, said beside it: parts with rows, bytes and hash. What no manifest names is others' work.

Each call that writes a config keeps `{config}/reasonknee-{hash of its options}.json`. Calls with other options, at the
same time or later, have files of their own, so none overwrites what another says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reasonknee_hf.dataset.contract import MANIFEST
from reasonknee_hf.publish.config_facts import Store, hash_of

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
            "written_by": _AUTHOR, "config": self.config, "of": self.of, "kind": self.kind,
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


def proven(store: Store, part: Part) -> bool:
    """Whether a file is there as it was written."""
    return (
        part.path in store.names()
        and store.size(part.path) == part.size
        and store.sha256(part.path) == part.sha256
    )


def part_of(root: Path, path: str, rows: int | None, spans: Mapping[str, Any] | None = None) -> Part:
    """What a manifest says of a local file."""
    with (root / path).open("rb") as file:
        return Part(path, rows, (root / path).stat().st_size, hash_of(file), spans)
