"""Volumes and masks themselves: readable, not empty, on one grid; and boxes against masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from datasets.utils import tqdm

from reasonknee_hf.errors import (
    ArchiveError,
    FileMissingError,
    GridMismatchError,
    IntegrityError,
    ReleaseError,
    VolumeDataError,
    VolumeFormatError,
)
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.checks.annotation_checks import Digests
from reasonknee_hf.knee.checks.box_evidence import (
    DECLARED,
    Boxes,
    BoxEvidence,
    label_boxes,
    outside,
    question_labels,
    union,
    weigh,
)
from reasonknee_hf.knee.checks.file_checks import Files
from reasonknee_hf.knee.checks.table_checks import Tables
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.verify.findings import Findings
from reasonknee_hf.volumes.header import corner_distance
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.voxels import Array

_UNREADABLE = (
    VolumeDataError,
    VolumeFormatError,
    GridMismatchError,
    FileMissingError,
    ArchiveError,
    IntegrityError,
)
_TOLERANCE = 0.1  # of the shortest edge of a voxel; published masks are within 0.003 of it
_MAPPING = "question_subregion_mapping"


@dataclass
class _Compared:
    """Boxes that lie beside what the mask says, one entry each."""

    names: list[str] = field(default_factory=list)
    published: list[list[int]] = field(default_factory=list)
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    structures: list[list[int] | None] = field(default_factory=list)


def check_volumes(
    release: Release,
    tables: Tables,
    files: Files,
    digests: Mapping[tuple[str, str], Digests],
    limit_scans: int | None,
    found: Findings,
) -> tuple[int, BoxEvidence | None]:
    """Reads volumes and masks, each once, and compares boxes with masks.

    Args:
        release: For the names of labels.
        tables: The scans.
        files: Where their volumes and masks are.
        digests: Their boxes.
        limit_scans: Read so many scans only, spread evenly over the tables; all by default.
        found: Where defects go.

    Returns:
        How many scans were read, and what the boxes show.
    """
    scans = [scan for scan in tables if scan.scan_id in files.volumes or scan.scan_id in files.masks]
    if limit_scans is not None and limit_scans < len(scans):
        left = len(scans) - limit_scans
        found.not_checked.append(f"volumes and masks of {left:,} of {len(scans):,} scans: by request")
        scans = [scans[index * len(scans) // limit_scans] for index in range(limit_scans)]
    labels, mapping = _names(release, found)
    structures = question_labels(labels, mapping)
    places = {split: _places_by_scan(digest) for (split, kind), digest in digests.items() if kind == "all"}
    compared = _Compared()
    same: dict[str, dict[str, list[tuple[Scan, str]]]] = {"volume": {}, "mask": {}}
    for scan in tqdm(scans, desc="volumes", unit="scan", leave=False):
        volume = _open(files, scan, "volume", found, same)
        mask = _open(files, scan, "mask", found, same)
        shape = None if volume is None else volume.shape
        boxes: dict[int, list[int]] = {}
        if mask is not None:
            shape = shape or mask.shape
            boxes = label_boxes(mask.array())
            unnamed = sorted(boxes.keys() - set(labels.values()))
            if unnamed and labels:
                found.add("label-unnamed", f"{scan.scan_id}: {', '.join(map(str, unnamed[:8]))}")
            if volume is not None:
                _check_grid(scan, volume, mask, found)
        if shape is not None and scan.split in places:
            digest = digests[scan.split, "all"]
            for place in places[scan.split].get(scan.scan_id, ()):
                known = structures.get(digest.question(place) or 0) if mask is not None else None
                _compare(digest, place, shape, boxes, known, compared, found)
    for groups in same.values():
        files.report_identical(groups.values(), found)
    return len(scans), _check_boxes(compared, found)


# --- one scan ----------------------------------------------------------------------------------------------


def _open(
    files: Files,
    scan: Scan,
    kind: str,
    found: Findings,
    same: dict[str, dict[str, list[tuple[Scan, str]]]],
) -> KneeVolume | None:
    """The volume or mask of a scan with its voxels read; `None` if it is not there or broken."""
    held = (files.volumes if kind == "volume" else files.masks).get(scan.scan_id)
    if held is None or not held.usable:
        return None
    volume = KneeVolume(held.url, mask=kind == "mask", label=scan.scan_id, axes=layout.BOX_AXES)
    try:
        array, _ = volume.array(), volume.affine
    except _UNREADABLE as error:
        found.add(f"{kind}-broken", str(error))
        return None
    for note in volume.header.notes:
        found.add("header-note", f"{scan.scan_id}: {held.path}: {note}")
    if _is_empty(array, kind):
        found.add(f"{kind}-empty", f"{scan.scan_id}: {held.path}")
    else:
        checksum = crc32(array.ravel(order="K").view(np.uint8).data)
        content = f"{array.shape} {array.dtype} {checksum:08x}"
        same[kind].setdefault(content, []).append((scan, held.path))
    return volume


def _is_empty(array: Array, kind: str) -> bool:
    """No label in a mask; no two different values in a volume, where NaN is no value."""
    if kind == "mask":
        return not array.any()
    return not np.fmin.reduce(array, axis=None) < np.fmax.reduce(array, axis=None)


def _check_grid(scan: Scan, volume: KneeVolume, mask: KneeVolume, found: Findings) -> None:
    if volume.shape != mask.shape:
        found.add("grid-mismatch", f"{scan.scan_id}: volume {volume.shape}, mask {mask.shape}")
        return
    off = corner_distance(volume.affine, mask.affine, volume.shape)
    if off > _TOLERANCE:
        found.add("grid-mismatch", f"{scan.scan_id}: corners are up to {off:.2f} voxel edges apart")


def _compare(
    digest: Digests,
    place: int,
    shape: tuple[int, int, int],
    boxes: Mapping[int, list[int]],
    known: frozenset[int] | None,
    compared: _Compared,
    found: Findings,
) -> None:
    """Puts a record's box beside the box of its structure, `None` where that is not known or absent."""
    published = digest.boxes[place].tolist()
    if max(published) < 0:
        return
    name = f"{digest.name(place)} ({digest.path}, byte {digest.offsets[place]})"
    parts = [boxes[label] for label in sorted(known or ()) if label in boxes]
    if known and not parts:
        found.add("structure-absent", f"{name}: {published}")
    compared.names.append(name)
    compared.published.append(published)
    compared.shapes.append(shape)
    compared.structures.append(union(parts) if parts else None)


# --- all scans ---------------------------------------------------------------------------------------------


def _check_boxes(compared: _Compared, found: Findings) -> BoxEvidence | None:
    """Settles how boxes are written, then reports those that are wrong even so."""
    published = _array(compared.published)
    beside = [place for place, box in enumerate(compared.structures) if box is not None]
    structures = _array([box for box in compared.structures if box is not None])
    evidence = weigh(published[beside], structures)
    if evidence is None:
        found.not_checked.append("boxes against masks: no box has a structure that a mask shows")
    conclusive = evidence is not None and evidence.conclusive
    convention = evidence.best if evidence is not None and conclusive else DECLARED
    if evidence is not None and convention != DECLARED:
        found.add("box-convention", str(evidence), count=evidence.ranking[0][1])
    boxes = convention.read(published)
    leaves = outside(boxes, np.array(compared.shapes, np.int64).reshape(-1, 3))
    for place in np.flatnonzero(leaves).tolist():
        shape = compared.shapes[place]
        found.add("box-outside", f"{compared.names[place]}: {compared.published[place]} in shape {shape}")
    if not conclusive:
        if evidence is not None:
            found.not_checked.append(f"single boxes against masks: {evidence}")
        return evidence
    off = np.abs(boxes[beside] - structures).max(axis=1, initial=0)
    for index in np.flatnonzero(off).tolist():
        place = beside[index]
        if not leaves[place]:
            found.add(
                "box-not-structure",
                f"{compared.names[place]}: {compared.published[place]}, the mask has "
                f"{convention.write(structures[index : index + 1])[0].tolist()}",
            )
    return evidence


def _array(boxes: list[list[int]]) -> Boxes:
    return np.array(boxes, np.int64).reshape(-1, 6)


def _places_by_scan(digest: Digests) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place in range(len(digest)):
        places.setdefault(digest.scan(place).scan_id, []).append(place)
    return places


def _names(release: Release, found: Findings) -> tuple[dict[str, int], Mapping[str, object]]:
    """Label names and the mapping of questions to them, as far as the release has them."""
    labels: dict[str, int] = {}
    mapping: Mapping[str, object] = {}
    try:
        labels = release.labels
        mapping_path = f"{layout.QUESTION_FOLDER}/{_MAPPING}.json"
        if mapping_path in release.tree.entries():
            mapping = release.read_json(mapping_path)
    except (ReleaseError, IntegrityError, TypeError, ValueError) as error:
        found.add("table-broken", str(error))
    return labels, mapping
