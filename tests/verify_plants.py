"""Plants defects in a copy of the clean sample. Every function changes the release at `root` in one way."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np

from reasonknee_hf import open_release
from reasonknee_hf.knee.sample.sample_files import cut_archive, nifti_bytes, write_records, zip_member
from reasonknee_hf.verify import Report, verify
from reasonknee_hf.verify.findings import KINDS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"5" * 64 + b"\nsize 48123456\n"
TABLES = ("all_studies", "train_split", "val_split", "test_split")

Record = dict


def rows(root: Path, table: str) -> list[list[str]]:
    """Cells of a split table, header first."""
    return [line.split(",") for line in (root / f"data/split_files/{table}.csv").read_text().splitlines()]


def set_rows(root: Path, table: str, lines: list[list[str]]) -> None:
    text = "".join(",".join(cells) + "\n" for cells in lines)
    (root / f"data/split_files/{table}.csv").write_text(text)


def edit_row(root: Path, split: str, number: int, **cells: str) -> None:
    """Changes cells of the `number`-th scan of a split, in its table and in that of all studies."""
    header, *scans = rows(root, f"{split}_split")
    old = scans[number]
    new = [cells.get(column, cell) for column, cell in zip(header, old, strict=True)]
    for table in ("all_studies", f"{split}_split"):
        set_rows(root, table, [new if line == old else line for line in rows(root, table)])


def cell(root: Path, split: str, number: int, column: str) -> str:
    header, *scans = rows(root, f"{split}_split")
    return scans[number][header.index(column)]


def volume(root: Path, split: str, number: int = 0) -> Path:
    """The volume of the `number`-th scan of a split."""
    return root / cell(root, split, number, "image_filepath").removeprefix("../")


def mask_name(root: Path, split: str, number: int = 0) -> str:
    return cell(root, split, number, "label_filepath").rpartition("/")[2]


def records(root: Path, name: str) -> list[Record]:
    return json.loads((root / f"data/generate_data/{name}.json").read_text("utf-8"))


def set_records(root: Path, name: str, all_records: list[Record]) -> None:
    write_records(root / f"data/generate_data/{name}.json", all_records)


def edit_records(root: Path, name: str, edit: Callable[[list[Record]], object]) -> None:
    """Lets `edit` change the list of records, in place or by what it returns."""
    all_records = records(root, name)
    edited = edit(all_records)
    set_records(root, name, edited if isinstance(edited, list) else all_records)


def members(root: Path) -> dict[str, bytes]:
    """The masks in the archive by name."""
    data = (root / "data/masks_aa").read_bytes() + (root / "data/masks_ab").read_bytes()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}


def edit_members(root: Path, edit: Callable[[dict[str, bytes]], object]) -> None:
    """Lets `edit` change the masks, and writes the archive anew."""
    masks = members(root)
    edit(masks)
    with zipfile.ZipFile(root / "data/masks_aa", "w") as archive:
        for name, content in masks.items():
            archive.writestr(zip_member(name), content, zipfile.ZIP_DEFLATED)
    cut_archive(root / "data/masks_aa", root / "data/masks_ab")


def edit_nifti(
    content: bytes, edit: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
) -> bytes:
    """A NIfTI file with other voxels or another affine."""
    import gzip

    import nibabel

    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
    return nifti_bytes(*edit(np.asarray(image.dataobj).copy(), image.affine.copy()))


def move_scan(root: Path, source: str, number: int, target: str) -> None:
    """Moves a scan with its records to another split."""
    header, *scans = rows(root, f"{source}_split")
    image = volume(root, source, number).relative_to(root).as_posix()
    row = scans.pop(number)
    set_rows(root, f"{source}_split", [header, *scans])
    set_rows(root, f"{target}_split", [*rows(root, f"{target}_split"), row])
    moved = [record for record in records(root, source) if record["image"] == f"/{image}"]
    edit_records(root, source, lambda all_records: [r for r in all_records if r not in moved])
    edit_records(root, target, lambda all_records: all_records + moved)


def two_scans_of_one_patient(root: Path, split: str) -> int:
    """Number of a scan of the split whose patient has another one there."""
    patients = [line[0] for line in rows(root, f"{split}_split")[1:]]
    return next(i for i, patient in enumerate(patients) if patients.count(patient) > 1)


def boxes_of(all_records: list[Record]) -> list[list[int]]:
    return [r["final_diagnosis"]["bounding_box"] for r in all_records if r["final_diagnosis"]["bounding_box"]]


def set_box(record: Record, box: list[int]) -> None:
    """Gives a record another box, in its answer too."""
    record["final_diagnosis"]["bounding_box"] = box
    before, marker, _ = record["answer"].rpartition("Final diagnosis:")
    record["answer"] = f"{before}{marker} {json.dumps(record['final_diagnosis'])}"


def rewrite_boxes(root: Path, change: Callable[[list[int]], list[int]]) -> None:
    """Writes every box of every annotation file in another way."""
    for name in ("train", "val", "test", "test_balanced"):
        all_records = records(root, name)
        for record in all_records:
            box = record["final_diagnosis"]["bounding_box"]
            if box:
                set_box(record, change(box))
        set_records(root, name, all_records)


def registry() -> tuple[dict[str, tuple[Callable, dict[str, int]]], Callable]:
    """An empty table of plants, and the decorator that fills it.

    `@planted(volume_missing=1)` registers a function that plants a defect, with the kinds and counts that
    must be reported for it.
    """
    plants: dict[str, tuple[Callable, dict[str, int]]] = {}

    def planted(**expected: int) -> Callable:
        def register(function: Callable) -> Callable:
            wanted = {kind.replace("_", "-"): count for kind, count in expected.items()}
            assert wanted.keys() <= KINDS.keys()
            plants[function.__name__] = (function, wanted)
            return function

        return register

    return plants, planted


def report_on(root: Path, images: str | None = None, **options) -> Report:
    return verify(open_release(str(root), images=images), **options)


# A sample is smaller than the published release, some of its volumes have other axes than their masks, and some
# cells of its source tables are spoiled.
_SAID = ("split-size", "volume-axes", "grade-unsourced", "grade-other")


def counts(report: Report) -> dict[str, int]:
    """Kind to count, but for what goes without saying."""
    return {f.kind: f.count for f in report.findings if f.kind not in _SAID}


def examples(report: Report, kind: str) -> str:
    """The examples of a kind as one text."""
    return " | ".join(
        text for finding in report.findings if finding.kind == kind for text in finding.examples
    )


def copy_of(sample: Path, target: Path) -> Path:
    shutil.copytree(sample, target)
    return target
