"""The volumes under `images=` by their headers alone: do they lie on their masks' grids, and are they what is meant?

Users convert volumes themselves. Programs differ in the order of axes and in types, and archives hold other series of
the same visit; shapes often agree all the same.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
from datasets.utils import tqdm

from reasonknee_hf.errors import ReasonKneeError
from reasonknee_hf.knee.checks.file_checks import Files
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
    visits: dict[tuple[str, str], list[Scan]] = defaultdict(list)
    for scan in tables:
        visits[scan.patient_id, scan.visit].append(scan)
    for scan in tqdm(list(tables), desc="headers", unit="scan", leave=False):
        volume = _opened(scan, files, "volume", deep, found)
        if volume is not None:
            mask = _opened(scan, files, "mask", deep, found)
            others = [other for other in visits[scan.patient_id, scan.visit] if other is not scan]
            masks = {other.scan_id: _opened(other, files, "mask", True, found) for other in others}
            _check(scan, volume, mask, masks, deep, found)


def _opened(scan: Scan, files: Files, kind: str, quiet: bool, found: Findings) -> KneeVolume | None:
    held = (files.volumes if kind == "volume" else files.masks).get(scan.scan_id)
    if held is None or not held.usable:
        return None
    volume = KneeVolume(held.url, mask=kind == "mask", label=scan.scan_id)
    try:
        _ = volume.header
    except ReasonKneeError as error:
        if not quiet:
            found.add(f"{kind}-broken", str(error))
        return None
    return volume


def _check(
    scan: Scan,
    volume: KneeVolume,
    mask: KneeVolume | None,
    others: dict[str, KneeVolume | None],
    deep: bool,
    found: Findings,
) -> None:
    header, name = volume.header, f"{scan.scan_id}: {volume.path}"
    said = _series_of(volume.path or "")
    if said and f"3D_DESS_{scan.knee_side.upper()}" not in said.upper():
        found.add(f"volume-other-{'knee' if '3D_DESS' in said.upper() else 'series'}", f"{name} is {said}")
    if header.dtype == np.float64:
        found.add("volume-float64", name)
    if header.affine is None or header.codes is None or np.array_equal(header.affine, np.eye(4)):
        found.add("volume-placeless", name)
        return
    if mask is None or mask.header.codes is None:
        return
    if header.codes != mask.header.codes:
        maker = _MADE_BY.get(header.codes, "converter unknown")
        found.add(
            "volume-axes",
            f"{name}: axes {header.codes}, the mask {mask.header.codes}: {maker}; boxes are remapped",
        )
    if _same_grid(volume, mask):
        return
    knee = next((other for other, its in others.items() if its is not None and _same_grid(volume, its)), None)
    series = _other_series(volume)
    if knee is not None:
        found.add("volume-other-knee", f"{name} lies on the grid of {knee}")
    elif series is not None:
        found.add("volume-other-series", f"{name} {series}")
    elif not deep:
        found.add("grid-mismatch", f"{name}: volume {volume.shape}, mask {mask.shape}, or another place")


def _same_grid(volume: KneeVolume, mask: KneeVolume) -> bool:
    return relation(volume.oriented("RAS").grid, mask.oriented("RAS").grid) == "equal"


def _series_of(path: str) -> str:
    """The description of the series where a converter left it beside the volume."""
    with suppress(OSError, ValueError, AttributeError):
        return str(
            json.loads(Path(re.sub(r"\.nii(\.gz)?$", ".json", path)).read_text("utf-8")).get(
                "SeriesDescription"
            )
            or ""
        )
    return ""


def _other_series(volume: KneeVolume) -> str | None:
    """What the distances between voxels tell: the widest is that between slices."""
    spacing = volume.oriented("RAS").spacing
    widest = int(np.argmax(spacing))
    if widest and spacing[widest] > 1.2 * spacing[0]:
        return f"has {('', 'coronal', 'axial')[widest]} slices, as the reformat {('', 'COR_MPR', 'AX_MPR')[widest]} has"
    if spacing[0] >= _THICK:
        return f"has slices {spacing[0]:.3g} mm apart, as SAG_T2_MAP and SAG_IW_TSE have; 3D DESS has 0.7"
    return None
