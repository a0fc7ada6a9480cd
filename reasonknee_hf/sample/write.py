"""Writes the sample: a small release with every file of the published layout, the same bytes by seed."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reasonknee_hf.errors import OptionError
from reasonknee_hf.rows.moaks import QUESTIONS
from reasonknee_hf.sample.labels import (
    FEMUR_REGIONS,
    LABELS,
    RECORDED_QUESTIONS,
    TIBIA_REGIONS,
    question_labels,
)
from reasonknee_hf.sample.phantom import Grid, draw_knee
from reasonknee_hf.sample.plan import SPLITS, SampleScan, plan
from reasonknee_hf.sample.prompts import prompt
from reasonknee_hf.sample.tables import grade_tables, question_files, split_tables
from reasonknee_hf.sample.texts import answer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_README = """# A synthetic release in the layout of 3DReasonKnee

Written by `reasonknee_hf`. Volumes are drawn, grades are cast by lot, ids are invented: nothing here comes
from a patient. It serves to try programs, not to study knees.
"""
_CODE_README = "The published release keeps its programs here. This one is synthetic and needs none.\n"
_ZIP_TIME = (2025, 5, 15, 0, 0, 0)
_EXPERT_STRUCTURES = {
    "Femoral Cartilage": ("femoral cartilage", *FEMUR_REGIONS),
    "Tibial Cartilage": ("tibial cartilage", *TIBIA_REGIONS),
    "Patellar Cartilage": ("patellar cartilage", "patella medial", "patella lateral"),
    "Medial Meniscus": tuple(name for name in LABELS if name.startswith("medial meniscus")),
    "Lateral Meniscus": tuple(name for name in LABELS if name.startswith("lateral meniscus")),
    "Loose Bodies": (),
}


def write_sample(folder: str | Path, *, scans: int = 6, seed: int = 0, flaws: bool = True) -> Path:
    """Writes a synthetic release.

    Args:
        folder: Where to write: a folder that does not exist yet or is empty.
        scans: Number of scans with volume, mask and 62 records each, at least 3; above 64 on a coarser grid.
        seed: Seed; the same `scans`, `seed` and `flaws` give the same bytes.
        flaws: Add two train scans without records and one validation scan whose volume is missing.

    Returns:
        The folder.

    Raises:
        OptionError: `scans` is below 3, or the folder holds something.
    """
    root = Path(folder)
    if scans < 3:
        raise OptionError(f"A sample needs at least 3 scans, one for each split; got scans={scans}.")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise OptionError(
            f"{root} is not an empty folder; name a new one, so that two samples do not get mixed."
        )
    planned = plan(scans, seed, flaws=flaws)
    _write_text(root / "README.md", _README)
    _write_text(root / "code" / "README.md", _CODE_README)
    data = root / "data"
    for subfolder, files in (
        ("labels", grade_tables(planned, seed)),
        ("question_files", question_files()),
        ("split_files", split_tables(planned)),
    ):
        for name, text in files.items():
            _write_text(data / subfolder / name, text)
    boxes = _write_volumes(root, planned, seed)
    generated = data / "generate_data"
    for split in SPLITS:
        mine = [scan for scan in planned if scan.split == split and scan.has_records]
        _write_records(
            generated / f"{split}.json", (record for scan in mine for record in _records(scan, boxes))
        )
    test = [scan for scan in planned if scan.split == "test" and scan.has_records]
    _write_records(generated / "test_balanced.json", _balanced(test, boxes))
    return root


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


# --- volumes -------------------------------------------------------------------------------------------

Box = list[int]
Boxes = dict[tuple[int, int], Box | None]
"""Number of the scan and id of the question to box."""


def _write_volumes(root: Path, scans: Sequence[SampleScan], seed: int) -> Boxes:
    """Draws all scans, writes their images, expert masks and the cut archive, and returns the boxes."""
    boxes: Boxes = {}
    archive = root / "data" / "masks_aa"
    with zipfile.ZipFile(archive, "w") as masks:
        masks.writestr(_member("masks/"), b"")
        for scan in scans:
            image, labels = draw_knee(
                scan.grid,
                right=scan.side == 1,
                grades=scan.grades,
                body_seed=f"{seed} {scan.knee}",
                scan_seed=f"{seed} {scan.name}",
            )
            bounds = _bounds(labels)
            for number in RECORDED_QUESTIONS:
                names = question_labels(QUESTIONS[number])
                boxes[scan.number, number] = _union([bounds[LABELS[n]] for n in names if LABELS[n] in bounds])
            affine = _affine(scan.grid, tilt=0.04 * (scan.number % 3))
            if scan.has_image:
                _write_nifti(root / scan.image_path, _stored(image, scan.grid), affine)
            # zip programs store what they cannot shrink and deflate the rest: readers meet both methods.
            method = zipfile.ZIP_DEFLATED if scan.number % 2 else zipfile.ZIP_STORED
            member = _nifti_bytes(_stored(labels, scan.grid), affine)
            masks.writestr(_member(f"masks/{scan.mask_name}"), member, method)
            if scan.has_expert:
                _write_expert(root / "data" / "OAI", scan, labels, affine)
    _cut(archive, root / "data" / "masks_ab")
    return boxes


def _stored(array: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """A slice-first array in the stored order of the grid."""
    return array.transpose(1, 2, 0) if grid.slice_last else array


def _affine(grid: Grid, tilt: float) -> NDArray[np.float64]:
    """Affine of the stored array: slices to the right, x to the back, y down; turned by `tilt` radians."""
    import numpy as np

    spacing = grid.spacing
    axes = np.array([[spacing[0], 0, 0], [0, -spacing[1], 0], [0, 0, -spacing[2]]])
    turn = np.array([[np.cos(tilt), -np.sin(tilt), 0], [np.sin(tilt), np.cos(tilt), 0], [0, 0, 1]])
    columns = turn @ axes
    shape = np.array([grid.slices, grid.width, grid.height])
    affine = np.eye(4)
    affine[:3, 3] = -columns @ ((shape - 1) / 2)
    affine[:3, :3] = columns[:, [1, 2, 0]] if grid.slice_last else columns
    return affine


def _nifti_bytes(array: NDArray[Any], affine: NDArray[np.float64]) -> bytes:
    import nibabel
    import numpy as np

    image = nibabel.Nifti1Image(np.asfortranarray(array), affine)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    return gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)


def _write_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_nifti_bytes(array, affine))


def _write_expert(
    folder: Path, scan: SampleScan, labels: NDArray[np.uint8], affine: NDArray[np.float64]
) -> None:
    """Binary masks, one a structure, with blanks in their names; one of them is empty."""
    import numpy as np

    for structure, names in _EXPERT_STRUCTURES.items():
        mask = np.isin(labels, [LABELS[name] for name in names]).astype("u1")
        path = folder / "segmentation" / scan.oai_folder / f"{structure}.nii.gz"
        _write_nifti(path, _stored(mask, scan.grid), affine)
    for name in TIBIA_REGIONS:
        path = folder / "subregions" / scan.oai_folder / f"{name.title()}.nii.gz"
        _write_nifti(path, _stored((labels == LABELS[name]).astype("u1"), scan.grid), affine)


def _bounds(labels: NDArray[np.uint8]) -> dict[int, Box]:
    """Inclusive bounds `[start_slice, end_slice, x_min, x_max, y_min, y_max]` of each label of a mask."""
    import numpy as np

    # One pass: which labels occur at which index of each axis.
    bounds: dict[int, Box] = {}
    for axis in range(3):
        lines = np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1)
        present = np.zeros((len(lines), 256), dtype=bool)
        for index, line in enumerate(lines):
            present[index] = np.bincount(line, minlength=256) > 0
        for label in np.flatnonzero(present.any(axis=0)):
            where = np.flatnonzero(present[:, label])
            bounds.setdefault(int(label), []).extend((int(where[0]), int(where[-1])))
    return bounds


def _union(boxes: Sequence[Box]) -> Box | None:
    if not boxes:
        return None
    return [(min, max)[side % 2](box[side] for box in boxes) for side in range(6)]


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
    info.create_system = 3
    info.external_attr = (0o40755 << 16 | 0x10) if name.endswith("/") else 0o100644 << 16
    return info


def _cut(archive: Path, second: Path) -> None:
    """Cuts the archive in two within the data of a member, as `split` cuts wherever the size says."""
    with zipfile.ZipFile(archive) as masks:
        members = [info for info in masks.infolist() if not info.is_dir()]
        middle = members[len(members) // 2]
    cut = middle.header_offset + 30 + len(middle.filename) + middle.compress_size // 2
    with archive.open("r+b") as first, second.open("wb") as rest:
        first.seek(cut)
        while chunk := first.read(1 << 20):
            rest.write(chunk)
        first.truncate(cut)


# --- records -------------------------------------------------------------------------------------------


def _records(scan: SampleScan, boxes: Boxes) -> Iterator[dict[str, object]]:
    """The 62 records of a scan, with the published keys."""
    for number in RECORDED_QUESTIONS:
        yield _record(scan, number, boxes)


def _record(scan: SampleScan, number: int, boxes: Boxes) -> dict[str, object]:
    question, grades = QUESTIONS[number], scan.grades[number]
    final_diagnosis: dict[str, object] = {
        "bounding_box": boxes[scan.number, number],
        "final_diagnosis": {question.release_key: grades},
    }
    return {
        "image": f"/{scan.image_path}",
        "prompt": prompt(question),
        "answer": answer(question, grades, final_diagnosis),
        "final_diagnosis": final_diagnosis,
    }


def _balanced(scans: Sequence[SampleScan], boxes: Boxes) -> Iterator[dict[str, object]]:
    """For every question as many scans with a finding as without, as far as there are any."""
    for number in RECORDED_QUESTIONS:
        normal = {a.name: 3 if a.name == "tear_location" else 0 for a in QUESTIONS[number].attributes}
        found = [scan for scan in scans if scan.grades[number] != normal]
        clear = [scan for scan in scans if scan.grades[number] == normal]
        count = min(len(found), len(clear))
        for scan in (*found[:count], *clear[:count]):
            yield _record(scan, number, boxes)


def _write_records(path: Path, records: Iterator[dict[str, object]]) -> None:
    """Writes one JSON list, record by record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as out:
        _dump_list(out, records)


def _dump_list(out: IO[str], records: Iterator[dict[str, object]]) -> None:
    separator = "[\n"
    for record in records:
        out.write(separator + json.dumps(record, indent=4, ensure_ascii=False))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")
