"""The volumes under `images=` by their headers alone: do they lie on their masks' grids, and are they what is meant?

Users convert volumes themselves. Programs differ in the order of axes and in types, and archives hold other series of
the same visit; shapes often agree all the same.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from datasets.utils import tqdm

from reasonknee_hf.dataset.joining import BROKEN
from reasonknee_hf.knee.checks.file_checks import Files, Held
from reasonknee_hf.knee.checks.table_checks import Tables
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.verify.findings import Findings
from reasonknee_hf.volumes.grid import relation
from reasonknee_hf.volumes.volume import KneeVolume

# Axis codes of a sagittal series by the program that stored it; measured on one series each.
_MADE_BY = {
    "RAS": "dcm2niix default",
    "PSR": "dcm2niix -x i",
    "LAS": "dicom2nifti",
    "PIL": "dicom2nifti without reorientation",
    "LIP": "highdicom",
}
_THICK = 2.0  # mm between slices; 3D DESS has 0.7, and of other sagittal series of a visit the thinnest has 3


def check_images(tables: Tables, files: Files, deep: bool, found: Findings) -> None:
    """Reads the headers of all volumes that were found, and of their masks.

    Args:
        tables: The scans.
        files: Where their volumes and masks are.
        deep: Volumes are read as well, so that what only that shows is reported there.
        found: Where defects go.
    """
    visits: dict[tuple[str, str], list[KneeVolume]] = defaultdict(list)
    masks: dict[str, KneeVolume] = {}
    for scan in tqdm(list(tables), desc="masks", unit="scan", leave=False):
        for mask in _opened(scan, files.masks, "mask", deep, found):
            masks[scan.scan_id] = mask
            visits[scan.patient_id, scan.visit].append(mask)
    for scan in tqdm(list(tables), desc="volumes", unit="scan", leave=False):
        for volume in _opened(scan, files.volumes, "volume", deep, found):
            own = masks.get(scan.scan_id)
            if _check_header(scan, volume, found) and own is not None:
                _check_place(volume, own, visits[scan.patient_id, scan.visit], deep, found)


def _opened(
    scan: Scan, files: Mapping[str, Held], kind: str, quiet: bool, found: Findings
) -> Iterator[KneeVolume]:
    """The volume or mask of a scan, if there is one with a header."""
    held = files.get(scan.scan_id)
    if held is None or not held.usable:
        return
    volume = KneeVolume(held.url, mask=kind == "mask", label=scan.scan_id)
    try:
        notes = volume.header.notes
    except BROKEN as error:
        if not quiet:
            found.add(f"{kind}-broken", str(error))
        return
    for note in () if quiet else notes:
        found.add("header-note", f"{scan.scan_id}: {held.path}: {note}")
    yield volume


def _check_header(scan: Scan, volume: KneeVolume, found: Findings) -> bool:
    """Whether it says where it lies."""
    name = f"{scan.scan_id}: {volume.path}"
    said = _series_of(volume.path or "")
    if said and f"3D_DESS_{scan.knee_side.upper()}" not in said.upper():
        found.add(f"volume-other-{'side' if '3D_DESS' in said.upper() else 'series'}", f"{name} is {said}")
    if volume.header.dtype == np.float64:
        found.add("volume-float64", name)
    if not volume.header.placed:
        found.add("volume-placeless", name)
    return volume.header.placed


def _check_place(
    volume: KneeVolume, mask: KneeVolume, of_visit: Iterable[KneeVolume], deep: bool, found: Findings
) -> None:
    name, codes = f"{volume.label}: {volume.path}", volume.header.codes
    if codes != mask.header.codes:
        maker = _MADE_BY.get(codes or "", "converter unknown")
        axes = f"axes {codes}, the mask {mask.header.codes}"
        found.add("volume-axes", f"{name}: {axes}: {maker}; boxes are remapped")
    if _same_grid(volume, mask):
        return
    knee = next((its for its in of_visit if _same_grid(volume, its)), None)
    series = _other_series(volume)
    if knee is not None:
        found.add("volume-other-side", f"{name} lies on the grid of {knee.label}")
    elif series is not None:
        found.add("volume-other-series", f"{name} {series}")
    elif not deep:
        found.add("grid-mismatch", f"{name}: volume {volume.shape}, mask {mask.shape}, or another place")


def _same_grid(volume: KneeVolume, mask: KneeVolume) -> bool:
    """In any order of axes."""
    one, other = (which.oriented("RAS") for which in (volume, mask))
    return mask.header.affine is not None and relation(one.grid, other.grid) == "equal"


def _series_of(path: str) -> str:
    """The description of the series where a converter left it beside the volume."""
    with suppress(OSError, ValueError, AttributeError):
        facts = json.loads(Path(re.sub(r"\.nii(\.gz)?$", ".json", path)).read_text("utf-8"))
        return str(facts.get("SeriesDescription") or "")
    return ""


def _other_series(volume: KneeVolume) -> str | None:
    """What the distances between voxels tell: the widest is that between slices."""
    spacing = volume.oriented("RAS").spacing
    widest = int(np.argmax(spacing))
    if widest and spacing[widest] > 1.2 * spacing[0]:
        return f"has {('', 'coronal slices, as COR_MPR', 'axial slices, as AX_MPR')[widest]} has"
    if spacing[0] >= _THICK:
        return f"has slices {spacing[0]:.3g} mm apart, as SAG_T2_MAP and SAG_IW_TSE have; 3D DESS has 0.7"
    return None
