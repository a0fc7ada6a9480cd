"""DICOM series for tests, written by `pydicom`: slices as a scanner leaves them, and ways to break them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

SAGITTAL = (0.0, 1.0, 0.0, 0.0, 0.0, -1.0)
"""Columns run to the back and rows down, so that slices in order of their normal run to the right: PIR."""


def knee(shape: tuple[int, int, int] = (8, 16, 16), seed: int = 0, top: int = 1500) -> np.ndarray:
    """Random voxels (slice, row, column) as a scanner stores them."""
    return np.random.default_rng(seed).integers(0, top, shape, dtype=np.uint16)


def slices(
    voxels: np.ndarray,
    *,
    patient: str = "9000001",
    study: str = "20041222",
    series: str = "10300001",
    description: str = "SAG_3D_DESS_RIGHT",
    orientation: tuple[float, ...] = SAGITTAL,
    origin: tuple[float, float, float] = (-40.25, -60.5, 70.125),
    spacing: tuple[float, float, float] = (0.7, 0.365, 0.366),
    bits: int = 12,
    **tags: Any,
) -> list[Dataset]:
    """Datasets of one series; `spacing` is mm between slices, rows and columns. `tags` are set on each."""
    along_row, along_column = np.array(orientation).reshape(2, 3)
    normal = np.cross(along_row, along_column)
    uid = generate_uid(entropy_srcs=[patient, study, series, description])
    made = []
    for index, plane in enumerate(voxels):
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = MRImageStorage
        name = generate_uid(entropy_srcs=[uid, str(index)])
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = name
        data.SeriesInstanceUID, data.StudyInstanceUID = uid, f"{uid[:50]}.1"
        data.Modality = "MR"
        data.PatientID, data.PatientName, data.StudyDate = patient, patient, study
        data.AccessionNumber, data.SeriesNumber = f"0166{series}"[-16:], 5
        data.SeriesDescription = description
        data.InstanceNumber = index + 1
        data.EchoTime, data.EchoNumbers = 4.71, 1
        data.ImageOrientationPatient = [float(x) for x in orientation]
        data.ImagePositionPatient = [
            round(float(x), 5) for x in np.array(origin) + normal * spacing[0] * index
        ]
        data.PixelSpacing = [spacing[1], spacing[2]]
        data.SliceThickness = data.SpacingBetweenSlices = spacing[0]
        data.Rows, data.Columns = plane.shape
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit = 16, bits, bits - 1
        data.PixelRepresentation = int(plane.dtype.kind == "i")
        data.PixelData = np.ascontiguousarray(plane).tobytes()
        for keyword, value in tags.items():
            setattr(data, keyword, value)
        made.append(data)
    return made


def file_bytes(data: Dataset) -> bytes:
    """One slice as a file with preamble."""
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True)
    return out.getvalue()


def write_folder(folder: Path, made: list[Dataset]) -> Path:
    """Writes slices as the archive names them: `001`, `002`, … without ending."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(made, 1):
        (folder / f"{number:03d}").write_bytes(file_bytes(data))
    return folder


def write_tar(path: Path, made: list[Dataset]) -> Path:
    """Writes slices as the download tool brings them: a folder in a `.tar.gz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for number, data in enumerate(made, 1):
            content = file_bytes(data)
            info = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{number:03d}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def compressed(made: list[Dataset]) -> list[Dataset]:
    """The same slices in a syntax for which no decoder is installed: the fragments are no real images."""
    for data in made:
        data.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLosslessSV1
        data.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xd9"])
    return made


def _lost(made: list[Dataset]) -> list[Dataset]:
    return [*made[:3], *made[4:]]


def _twice(made: list[Dataset]) -> list[Dataset]:
    return [*made, made[2]]


def _echoes(made: list[Dataset]) -> list[Dataset]:
    for data in made[::2]:
        data.EchoTime = 9.4
    return made


def _mixed(made: list[Dataset]) -> list[Dataset]:
    made[4].SeriesInstanceUID = generate_uid(entropy_srcs=["another"])
    return made


def _same_place(made: list[Dataset]) -> list[Dataset]:
    made[5].ImagePositionPatient = made[4].ImagePositionPatient
    return made


BROKEN: dict[str, tuple[Callable[[list[Dataset]], list[Dataset]], str]] = {
    "missing slice": (_lost, r"instance 3 .*instance 5 .*1.4 mm apart.*1 missing"),
    "duplicate instance": (_twice, r"instance 3 .*same instance as instance 3"),
    "two echoes": (_echoes, r"instance 2 .*another EchoTime.*4.71, 9.4.*echoes"),
    "mixed series": (_mixed, r"instance 5 .*another SeriesInstanceUID.*several series"),
    "same place": (_same_place, r"instance 5.*instance 6.*same place"),
    "compressed": (compressed, r"instance 1 .*JPEG Lossless.*decoder"),
}
"""Ways to break a series, and what the error says of each."""


def affine(
    orientation: tuple[float, ...] = SAGITTAL,
    origin: tuple[float, float, float] = (-40.25, -60.5, 70.125),
    spacing: tuple[float, float, float] = (0.7, 0.365, 0.366),
) -> np.ndarray:
    """Affine (RAS+) from (column, row, slice) of what `slices` writes with the same arguments."""
    along_row, along_column = np.array(orientation).reshape(2, 3)
    made = np.eye(4)
    made[:3, 0], made[:3, 1] = along_row * spacing[2], along_column * spacing[1]
    made[:3, 2], made[:3, 3] = np.cross(along_row, along_column) * spacing[0], origin
    return np.diag([-1, -1, 1, 1]) @ made


def write_release(root: Path, scans: int, shape: tuple[int, int, int] = (8, 16, 16)) -> list[dict[str, str]]:
    """A release of a table and masks on the grid of `slices`; returns what its table says of each scan."""
    import volume_files

    rows, masks = [], root / "data/masks"
    content = volume_files.gzip_bytes(np.ones(shape, np.uint8).transpose(2, 1, 0), affine())
    for number in range(scans):
        patient, series, side = str(9000001 + number // 2), str(10300001 + number), 1 + number % 2
        rows.append(
            {
                "patient_id": patient,
                "time": "00M",
                "study_folder": "20041222",
                "series_folder": series,
                "knee_side": str(side),
                "path": f"../data/OAI/00mDESS/0.C.2/{patient}/20041222/{series}",
                "image_filepath": f"../data/images/{patient}/00M/20041222_{series}_{side}.nii.gz",
                "label_filepath": f"../data/masks/knee_{number:03}.nii.gz",
            }
        )
        masks.mkdir(parents=True, exist_ok=True)
        (masks / f"knee_{number:03}.nii.gz").write_bytes(content)
    table = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    (root / "data/split_files").mkdir(parents=True)
    (root / "data/split_files/train_split.csv").write_text("\n".join(table) + "\n")
    return rows


def series_for(row: dict[str, str], voxels: np.ndarray, **changes: Any) -> list[Dataset]:
    """The slices that the archive holds of a scan of `write_release`."""
    told = {
        "patient": row["patient_id"],
        "study": row["study_folder"],
        "series": row["series_folder"],
        "description": f"SAG_3D_DESS_{('RIGHT', 'LEFT')[int(row['knee_side']) - 1]}",
    }
    return slices(voxels, **(told | changes))
