"""A release in the published layout, made of real files: real label volumes, real MRI, the published prompts.

Everything is written to a temporary folder. The real masks on the OAI grid come without their images, so
scans on that grid have no volume, as in the published repository: there, volumes come from the OAI itself.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reasonknee_hf.knee.layout import SPLIT_HEADER
from reasonknee_hf.knee.moaks import QUESTIONS, Question
from reasonknee_hf.knee.sample.sample_files import (
    Box,
    cut_archive,
    label_bounds,
    nifti_bytes,
    write_records,
    write_text,
    zip_member,
)
from reasonknee_hf.knee.sample.sample_texts import answer

LABELS = {
    "background": 0,
    "femoral cartilage": 1,
    "tibial cartilage": 2,
    "patellar cartilage": 3,
    "femur": 4,
    "tibia": 5,
    "patella": 6,
    "fibula": 7,
    "medial meniscus": 44,
    "lateral meniscus": 47,
}
"""Ids 1 and 2 are those of the OAI atlas label volume, which goes into the archive byte for byte."""

# Ids of the source files to ours.
_CLAIR = {1: 4, 2: 1, 3: 5, 4: 2, 5: 2}
_DESS_RIGHT = {1: 1, 2: 2, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7}


@dataclass(frozen=True)
class RealScan:
    """One scan of the release; `image` and `mask` name the real files used, `None` where there is none."""

    split: str
    patient: str
    visit: str
    study: str
    series: str
    side: int
    number: int
    image: str | None
    mask: str | None

    @property
    def scan_id(self) -> str:
        return f"{self.patient}_{self.visit}_{self.study}_{self.series}_{self.side}"

    @property
    def image_path(self) -> str:
        return f"data/images/{self.patient}/{self.visit}/{self.study}_{self.series}_{self.side}.nii.gz"

    @property
    def mask_name(self) -> str:
        return f"knee_{self.number:03d}.nii.gz"


SCANS = (
    RealScan("train", "9000001", "00M", "20041222", "10300001", 1, 0, "template", "template"),
    RealScan("train", "9000001", "24M", "20061130", "10300002", 1, 1, "t2", None),
    RealScan("train", "9000002", "00M", "20050107", "10300003", 2, 2, None, "atlas"),
    RealScan("val", "9000003", "12M", "20060218", "10300004", 1, 3, "template", "template"),
    RealScan("val", "9000003", "48M", "20090301", "10000300005", 1, 4, None, "dess right"),
    RealScan("test", "9000004", "00M", "20050315", "10300006", 1, 5, "template", "template"),
    RealScan("test", "9000005", "00M", "20050316", "10300007", 2, 6, None, "atlas cartilage"),
    RealScan("test", "9000005", "48M", "20090302", "10000300008", 1, 7, None, "dess right menisci"),
)


@pytest.fixture(scope="session")
def real_release(real_dir: Path, upstream_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a release out of real files; session-wide, so do not change it."""
    pytest.importorskip("pydicom", reason="the real T2 series is DICOM")
    return write_real_release(tmp_path_factory.mktemp("real-release"), real_dir, upstream_dir)


def write_real_release(root: Path, real: Path, upstream: Path) -> Path:
    """Writes the release of `SCANS` into `root`."""
    data = root / "data"
    prompts = json.loads((upstream / "question_files" / "questions_nobbox_zeroshot.json").read_text("utf-8"))
    for name in ("questions_nobbox_zeroshot.json", "questions_nobbox_guided.json"):
        write_text(data / "question_files" / name, (upstream / "question_files" / name).read_text("utf-8"))
    write_text(data / "question_files" / "labels.json", json.dumps(LABELS, indent=4))
    write_text(root / "README.md", "Real files in the layout of the release. For tests only.\n")
    _write_splits(data / "split_files")
    _write_images(root, real)
    boxes = _write_masks(data, real)
    _write_expert(data / "OAI", real)
    for split in ("train", "val", "test"):
        chosen = [scan for scan in SCANS if scan.split == split]
        records = [_record(s, QUESTIONS[i], prompts[str(i)], boxes) for s in chosen for i in range(1, 63)]
        write_records(data / "generate_data" / f"{split}.json", records)
        if split == "test":
            write_records(data / "generate_data" / "test_balanced.json", records[::5])
    return root


def _write_splits(folder: Path) -> None:
    for name in ("all_studies", "train_split", "val_split", "test_split"):
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(SPLIT_HEADER)
        for scan in SCANS:
            if name in ("all_studies", f"{scan.split}_split"):
                mask = f"../data/masks/{scan.mask_name}" if scan.mask else ""
                key = (scan.patient, scan.visit, scan.study, scan.series, scan.side)
                table.writerow((*key, f"../data/OAI/{_oai(scan)}", f"../{scan.image_path}", mask))
        write_text(folder / f"{name}.csv", text.getvalue())


def _oai(scan: RealScan) -> str:
    return f"00mDESS/0.C.2/{scan.patient}/{scan.study}/{scan.series}"


def _write_images(root: Path, real: Path) -> None:
    for scan in SCANS:
        target = root / scan.image_path
        if scan.image:
            target.parent.mkdir(parents=True, exist_ok=True)
        if scan.image == "template":
            shutil.copyfile(real / "knee_nc" / "CLAIR-Knee-103R_template_64x128x128.nii.gz", target)
        elif scan.image == "t2":
            target.write_bytes(nifti_bytes(*read_dicom_series(real / "knee" / "dicom_t2_mese_echo1")))


def _write_masks(data: Path, real: Path) -> dict[int, dict[int, Box]]:
    """Writes the archive in two parts; returns the bounds of every label by the number of the scan."""
    import nibabel

    bounds: dict[int, dict[int, Box]] = {}
    with zipfile.ZipFile(data / "masks_aa", "w", zipfile.ZIP_DEFLATED) as archive:
        for scan in SCANS:
            if scan.mask is None:
                continue
            content = _mask_bytes(scan.mask, real)
            archive.writestr(zip_member(f"masks/{scan.mask_name}"), content, zipfile.ZIP_DEFLATED)
            image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
            axis = nibabel.aff2axcodes(image.affine, (("x", "x"), ("y", "y"), ("z", "z"))).index("x")
            bounds[scan.number] = label_bounds(np.moveaxis(np.asarray(image.dataobj), axis, 0))
    cut_archive(data / "masks_aa", data / "masks_ab")
    return bounds


def _mask_bytes(kind: str, real: Path) -> bytes:
    import nibabel

    if kind == "atlas":
        return (real / "knee" / "oai_atlas60_left_mask_step_10.nii.gz").read_bytes()
    if kind == "atlas cartilage":
        femoral = nibabel.load(real / "knee" / "oai_atlas60_left_femoral_cartilage.nii.gz")
        tibial = nibabel.load(real / "knee" / "oai_atlas60_left_tibial_cartilage.nii.gz")
        both = np.where(np.asarray(tibial.dataobj) > 0, np.uint8(2), np.asarray(femoral.dataobj))
        return nifti_bytes(both.astype("u1"), femoral.affine)
    if kind == "template":
        image = nibabel.load(real / "knee_nc" / "CLAIR-Knee-103R_segmentation_64x128x128.nii.gz")
        return nifti_bytes(_renamed(np.asarray(image.dataobj), _CLAIR), image.affine)
    if kind == "dess right":
        array, affine = read_nrrd(real / "knee" / "mskt_right_knee_example-label.nrrd")
        return nifti_bytes(_renamed(array, _DESS_RIGHT), affine)
    array, affine = read_nrrd(real / "knee" / "SAG_3D_DESS_RIGHT_bones_cart_men_fib-label.nrrd")
    # The right knee's medial meniscus lies on the left: at the lower end of an axis that runs to the right.
    first, second = (np.argwhere(array == label)[:, 2].mean() for label in (9, 10))
    menisci = {9: 44, 10: 47} if first < second else {9: 47, 10: 44}
    return nifti_bytes(_renamed(array, {**_DESS_RIGHT, **menisci}), affine)


def _renamed(array: np.ndarray, ids: dict[int, int]) -> np.ndarray:
    table = np.zeros(256, dtype="u1")
    table[list(ids)] = list(ids.values())
    return table[array.astype("u1")]


def _write_expert(folder: Path, real: Path) -> None:
    """The atlas' two cartilages as expert segmentations of one test scan, byte for byte."""
    scan = next(scan for scan in SCANS if scan.mask == "atlas cartilage")
    target = folder / "segmentation" / _oai(scan)
    target.mkdir(parents=True)
    for structure in ("femoral", "tibial"):
        source = real / "knee" / f"oai_atlas60_left_{structure}_cartilage.nii.gz"
        shutil.copyfile(source, target / f"{structure.title()} Cartilage.nii.gz")


def _record(
    scan: RealScan, question: Question, prompt: str, boxes: dict[int, dict[int, Box]]
) -> dict[str, object]:
    """A published-looking record. Where the mask lacks the structure, there is no box."""
    bone = {"femur": "femoral cartilage", "tibia": "tibial cartilage", "patella": "patellar cartilage"}
    name = bone.get(question.structure, question.structure)
    box = boxes.get(scan.number, {}).get(LABELS.get(name, -1))
    grades = {a.name: (question.id + scan.number) % (a.high + 1) for a in question.attributes}
    final: dict[str, object] = {} if box is None else {"bounding_box": box}
    final["final_diagnosis"] = {question.release_key: grades}
    return {
        "image": f"/{scan.image_path}",
        "prompt": prompt,
        "answer": answer(question, grades, final),
        "final_diagnosis": final,
    }


def read_nrrd(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels in the order of the header's sizes, and affine (RAS+), of a gzip or raw NRRD."""
    head, body = path.read_bytes().split(b"\n\n", 1)
    fields = dict(
        line.split(": ", 1) for line in head.decode("ascii", "replace").splitlines() if ": " in line
    )
    dtypes = {"unsigned char": "u1", "uint8": "u1", "uint8_t": "u1", "signed char": "i1", "int8": "i1"}
    voxels = gzip.decompress(body) if fields["encoding"] in ("gzip", "gz") else body
    shape = [int(size) for size in fields["sizes"].split()]
    array = np.frombuffer(voxels, dtypes[fields["type"]]).reshape(shape, order="F")
    vectors = [[float(x) for x in v.strip("()").split(",")] for v in fields["space directions"].split()]
    affine = np.eye(4)
    affine[:3, :3] = np.array(vectors).T
    affine[:3, 3] = [float(x) for x in fields["space origin"].strip("()").split(",")]
    assert fields["space"] == "left-posterior-superior", fields["space"]
    return array, np.diag([-1, -1, 1, 1]) @ affine


def read_dicom_series(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (column, row, slice) as int16 and affine (RAS+) of one series of DICOM slices."""
    import pydicom

    slices = [pydicom.dcmread(path) for path in folder.glob("*.dcm")]
    along_row, along_column = np.array(slices[0].ImageOrientationPatient, float).reshape(2, 3)
    normal = np.cross(along_row, along_column)
    slices.sort(key=lambda one: float(normal @ np.array(one.ImagePositionPatient, float)))
    first, last = (np.array(one.ImagePositionPatient, float) for one in (slices[0], slices[-1]))
    row_step, column_step = (float(step) for step in slices[0].PixelSpacing)
    affine = np.eye(4)
    affine[:3, :3] = np.stack(
        [along_row * column_step, along_column * row_step, (last - first) / (len(slices) - 1)], axis=1
    )
    affine[:3, 3] = first
    voxels = np.stack([one.pixel_array.T for one in slices], axis=-1).astype("<i2")
    return voxels, np.diag([-1, -1, 1, 1]) @ affine
