"""Writes the sample: a small release with every file of the published layout, the same bytes by seed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.phantom import Grid, draw_knee
from reasonknee_hf.knee.sample.plan import SPLITS, SampleScan, plan
from reasonknee_hf.knee.sample.prompts import prompt
from reasonknee_hf.knee.sample.sample_files import (
    Box,
    cut_archive,
    label_bounds,
    nifti_bytes,
    union,
    write_nifti,
    write_records,
    write_text,
    zip_member,
)
from reasonknee_hf.knee.sample.sample_labels import (
    FEMUR_REGIONS,
    LABELS,
    RECORDED_QUESTIONS,
    TIBIA_REGIONS,
    question_labels,
)
from reasonknee_hf.knee.sample.sample_tables import grade_tables, question_files, split_tables
from reasonknee_hf.knee.sample.sample_texts import answer
from reasonknee_hf.volumes.orientation import axis_codes, reorder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_README = """# A synthetic release in the layout of 3DReasonKnee

Written by `reasonknee_hf`. Volumes are drawn, grades are cast by lot, ids are invented: nothing here comes
from a patient. It serves to try programs, not to study knees.
"""
_CODE_README = "The published release keeps its programs here. This one is synthetic and needs none.\n"
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

    Examples:
        >>> from tempfile import mkdtemp
        >>> from reasonknee_hf.knee.sample import write_sample
        >>> rk.open_release(str(write_sample(mkdtemp(), scans=3, flaws=False))).splits
        ('train', 'validation', 'test')
    """
    root = Path(folder)
    if scans < 3:
        raise OptionError(f"A sample needs at least 3 scans, one for each split; got scans={scans}.")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise OptionError(
            f"{root} is not an empty folder; name a new one, so that two samples do not get mixed."
        )
    planned = plan(scans, seed, flaws=flaws)
    write_text(root / "README.md", _README)
    write_text(root / "code" / "README.md", _CODE_README)
    data = root / "data"
    for subfolder, files in (
        ("labels", grade_tables(planned, seed)),
        ("question_files", question_files()),
        ("split_files", split_tables(planned)),
    ):
        for name, text in files.items():
            write_text(data / subfolder / name, text)
    boxes = _write_volumes(root, planned, seed)
    generated = data / "generate_data"
    for split in SPLITS:
        mine = [scan for scan in planned if scan.split == split and scan.has_records]
        write_records(
            generated / f"{split}.json", (record for scan in mine for record in _records(scan, boxes))
        )
    test = [scan for scan in planned if scan.split == "test" and scan.has_records]
    write_records(generated / "test_balanced.json", _balanced(test, boxes))
    return root


# --- volumes -------------------------------------------------------------------------------------------

Boxes = dict[tuple[int, int], Box | None]
"""Number of the scan and id of the question to box."""


def _write_volumes(root: Path, scans: Sequence[SampleScan], seed: int) -> Boxes:
    """Draws all scans, writes their images, expert masks and the cut archive, and returns the boxes."""
    boxes: Boxes = {}
    archive = root / "data" / "masks_aa"
    with zipfile.ZipFile(archive, "w") as masks:
        masks.writestr(zip_member("masks/"), b"")
        for scan in scans:
            image, labels = draw_knee(
                scan.grid,
                right=scan.side == 1,
                grades=scan.grades,
                body_seed=f"{seed} {scan.knee}",
                scan_seed=f"{seed} {scan.name}",
            )
            bounds = label_bounds(labels)
            for number in RECORDED_QUESTIONS:
                names = question_labels(QUESTIONS[number])
                boxes[scan.number, number] = union([bounds[LABELS[n]] for n in names if LABELS[n] in bounds])
            affine = _affine(scan.grid, tilt=0.04 * (scan.number % 3))
            if scan.has_image:
                write_nifti(
                    root / scan.image_path, *_in_order(_stored(image, scan.grid), affine, scan.image_axes)
                )
            # zip programs store what they cannot shrink and deflate the rest: readers meet both methods.
            method = zipfile.ZIP_DEFLATED if scan.number % 2 else zipfile.ZIP_STORED
            member = nifti_bytes(_stored(labels, scan.grid), affine)
            masks.writestr(zip_member(f"masks/{scan.mask_name}"), member, method)
            if scan.has_expert:
                _write_expert(root / "data" / "OAI", scan, labels, affine)
    cut_archive(archive, root / "data" / "masks_ab")
    return boxes


def _stored(array: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """A slice-first array in the stored order of the grid."""
    return array.transpose(1, 2, 0) if grid.slice_last else array


def _in_order(
    array: NDArray[Any], affine: NDArray[np.float64], codes: str | None
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """An array and its affine with axes in another order, as another converter would have stored them."""
    change = reorder(axis_codes(affine), codes or axis_codes(affine))
    return change.array(array), change.affine(affine, array.shape)


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


def _write_expert(
    folder: Path, scan: SampleScan, labels: NDArray[np.uint8], affine: NDArray[np.float64]
) -> None:
    """Binary masks, one a structure, with blanks in their names; one of them is empty."""
    import numpy as np

    for structure, names in _EXPERT_STRUCTURES.items():
        mask = np.isin(labels, [LABELS[name] for name in names]).astype("u1")
        path = folder / "segmentation" / scan.oai_folder / f"{structure}.nii.gz"
        write_nifti(path, _stored(mask, scan.grid), affine)
    for name in TIBIA_REGIONS:
        path = folder / "subregions" / scan.oai_folder / f"{name.title()}.nii.gz"
        write_nifti(path, _stored((labels == LABELS[name]).astype("u1"), scan.grid), affine)


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
