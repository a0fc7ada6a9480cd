"""A version that `convert` or `push` wrote, as a release again: the same rows, volumes and masks by key.

Its tables become split tables and records as they were published. Of several versions in one place the rows are put
together, each once.
"""

from __future__ import annotations

import csv
import functools
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reasonknee_hf.dataset.contract import Description
from reasonknee_hf.dataset.json_text import as_json
from reasonknee_hf.dataset.published import (
    Manifest,
    Place,
    Version,
    config_of,
    open_version,
    question_rows,
    tables_of,
    volume_places,
    volume_rows,
)
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import SIDES, Scan, scan_from_image_path

logger = logging.getLogger(__name__)

_RICHEST = ("full", "records", "high_fidelity", "bench")
_SCAN = ("patient_id", "visit", "study", "series", "knee_side")
_MEMBERS = ("image", "prompt", "cot", "answer", "final_diagnosis", "other")


class PublishedRelease(Release):
    """A release whose volumes and masks lie in the tables of a published version, or beside them."""

    def __init__(self, dataset: Description, version: Version, **options: Any) -> None:
        self._urls = version.urls()
        self._lacking = frozenset(version.kept["lacking"])
        self.published_in = version.tree
        self.identity = version.identity
        super().__init__(dataset, version.fs, **options)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_urls": self._urls, "_lacking": self._lacking, "published_in": self.published_in,
        }  # fmt: skip

    def splits_without(self, columns: Collection[str]) -> frozenset[str]:
        """The splits that were written without the columns that give the answer away."""
        return self._lacking if columns else frozenset()

    def find_image(self, scan: Scan) -> str | None:
        """URL of the volume under `images=` or in the version; `None` if it is in neither."""
        return super().find_image(scan) or self._urls.get(scan.scan_id, (None, None))[0]

    def find_mask(self, scan: Scan) -> str | None:
        """URL of the mask; `None` if the version has none."""
        return self._urls.get(scan.scan_id, (None, None))[1]

    def mask_url(self, scan: Scan) -> str | None:
        """The same."""
        return self.find_mask(scan)


def open_published(dataset: Description, tree: Tree, **options: Any) -> PublishedRelease:
    """Opens a published version as a release.

    Args:
        dataset: What it is a version of.
        tree: Its files.
        options: As in [`Release`].

    Raises:
        ReleaseError: Its card names nothing that a manifest tells.
    """
    version = open_version(dataset, tree, _write)
    for split, count in version.kept["left"].items():
        logger.warning(
            "%s: %d rows of %s that only its version without answers has are left out; plain `datasets` loads them",
            *(tree.name, count, split),
        )
    if options.get("high_fidelity") is None:
        options["high_fidelity"] = version.kept["experts"] or None
    return PublishedRelease(dataset, version, **options)


def _write(tree: Tree, manifests: Sequence[Manifest], out: Path) -> dict[str, Any]:
    """Writes tables of scans, and records, in the layout of a release; gives the places of volumes."""
    scans: dict[str, dict[str, Scan]] = {}
    places: dict[str, list[Place | None]] = {}
    for one in (one for one in manifests if one["kind"] == "volumes"):
        for split, path, part in tables_of(one):
            for row in _volume_rows(tree, path, part):
                image = _image_path(row)
                scan = scan_from_image_path(image, split)
                if scan is not None:
                    scans.setdefault(split, {})[image] = scan
                    places[scan.scan_id] = volume_places(path, part, row)
    asked = [one for one in manifests if one["kind"] == "questions"]
    asked.sort(key=lambda one: _RICHEST.index(config_of(one)))
    for folder in ("data/split_files", "data/generate_data"):
        (out / folder).mkdir(parents=True)
    experts: set[str] = set()
    left: dict[str, int] = {}
    lacking = []
    for split in dict.fromkeys(split for one in asked for split, _, _ in tables_of(one)):
        versions = [one for one in asked if any(split == name for name, _, _ in tables_of(one))]
        if config_of(versions[0]) == "bench":
            lacking.append(split)
        with (out / layout.annotation_file(split)).open("w", encoding="utf-8") as file:
            file.write("[")
            rows = _rows(tree, versions, split, experts, left)
            for number, (image, scan, record) in enumerate(rows):
                file.write(",\n" * (number > 0) + record)
                if scan is not None:
                    scans.setdefault(split, {}).setdefault(image, scan)
            file.write("]")
    for split, listed in scans.items():
        with (out / layout.split_table(split)).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(layout.SPLIT_HEADER)
            for image, scan in listed.items():
                _, mask = places.get(scan.scan_id) or [None, None]
                label = "" if mask is None else f"../data/masks/{scan.scan_id}.nii.gz"
                side = SIDES.index(scan.knee_side) + 1
                told = [scan.patient_id, scan.visit, scan.study, scan.series, side]
                table.writerow([*told, "-", f"..{image}", label])
    labels = next((one["labels"] for one in manifests if one.get("labels")), None)
    if labels:
        (out / layout.LABELS_FILE).parent.mkdir(parents=True, exist_ok=True)
        (out / layout.LABELS_FILE).write_text(json.dumps(labels), "utf-8")
    return {"places": places, "lacking": lacking, "left": left, "experts": sorted(experts)}


def _rows(
    tree: Tree, versions: Sequence[Mapping[str, Any]], split: str, experts: set[str], left: dict[str, int]
) -> Iterator[tuple[str, Scan | None, str]]:
    """Image, scan and record of each row of a split that some versions hold, the richest version first.

    Args:
        tree: Where they lie.
        versions: Their manifests.
        split: Which split.
        experts: Gets the ids of the scans that a version `high_fidelity` holds.
        left: Gets the number of rows that only a version without answers holds, where others have answers.
    """
    seen: set[tuple[str, Any]] = set()
    scan_of = functools.cache(lambda image: scan_from_image_path(image, split))
    for one in versions:
        mine = set()
        tables = [(path, part) for name, path, part in tables_of(one) if name == split]
        for image, prompt, record in _records(tree, tables):
            scan = scan_of(image)
            if scan is not None and config_of(one) == "high_fidelity":
                experts.add(scan.scan_id)
            key = (image if scan is None else scan.scan_id, prompt)
            if key in seen:
                continue
            if config_of(one) == "bench" and config_of(versions[0]) != "bench":
                left[split] = left.get(split, 0) + 1
                continue
            mine.add(key)
            yield image, scan, record
        seen |= mine


def _volume_rows(tree: Tree, path: str, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The columns of a table of volumes that tell scans, and where each volume lies.

    Where the manifest tells all volumes the table is not opened: an id names all that a scan is.
    """
    spans: Mapping[str, Any] = part.get("spans") or {}
    named = [row for scan_id in spans if (row := _told_by_id(scan_id)) and "image" in spans[scan_id]]
    return iter(named) if len(named) == part["rows"] else volume_rows(tree, path, _SCAN)


def _told_by_id(scan_id: str) -> dict[str, Any] | None:
    told = dict(zip(_SCAN, scan_id.split("_"), strict=False)) | {"scan_id": scan_id}
    side = told.get("knee_side")
    if side not in ("1", "2"):
        return None
    told["knee_side"] = SIDES[int(side) - 1]
    scan = scan_from_image_path(_image_path(told))
    return told if scan is not None and scan.scan_id == scan_id else None


def _image_path(row: Mapping[str, Any]) -> str:
    side = row["knee_side"]
    digit = 1 + (SIDES.index(side) if isinstance(side, str) else side)
    return f"/data/images/{row['patient_id']}/{row['visit']}/{row['study']}_{row['series']}_{digit}.nii.gz"


def _records(tree: Tree, tables: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Any, str]]:
    """The path of the volume, the prompt and the record, as JSON, of each row of some tables."""
    for path, part in tables:
        for row in question_rows(tree, path, part, {*_MEMBERS, *_SCAN}):
            image = row["image"] if "image" in row else _image_path(row)
            yield str(image), row.get("prompt"), _record(row | {"image": image})


def _record(row: Mapping[str, Any]) -> str:
    texts = (name for name in ("image", "prompt", "cot", "answer") if row.get(name) is not None)
    members = [f'"{name}": {as_json(row[name])}' for name in texts]
    if row.get("final_diagnosis") is not None:
        members.append(f'"final_diagnosis": {row["final_diagnosis"]}')
    if row.get("other") is not None:
        members.append(row["other"].strip()[1:-1])
    return "{" + ", ".join(members) + "}"
