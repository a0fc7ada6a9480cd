"""Published versions out of a download of DICOM: files that any reader of NIfTI opens, by names that say so."""

from __future__ import annotations

import dicom_writer as dicom
import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest

from reasonknee_hf.errors import VolumeMissingError
from reasonknee_hf.publish.convert import convert

VOXELS = dicom.knee()


@pytest.fixture
def download(tmp_path):
    for row in dicom.write_release(tmp_path / "release", 2):
        folder = tmp_path / "oai" / row["patient_id"] / row["study_folder"] / row["series_folder"]
        dicom.write_folder(folder, dicom.series_for(row, VOXELS))
    return {"source": str(tmp_path / "release"), "images": str(tmp_path / "oai"), "config": "scans"}


def test_files_beside_the_tables(download, tmp_path):
    convert(tmp_path / "out", volumes="files", **download)
    files = sorted((tmp_path / "out").rglob("images/**/*.nii*"))
    assert [file.name for file in files] == ["20041222_10300001_1.nii", "20041222_10300002_2.nii"]
    assert all(np.array_equal(nibabel.load(file).dataobj, VOXELS.transpose(2, 1, 0)) for file in files)


def test_files_inside_the_tables(download, tmp_path):
    convert(tmp_path / "out", volumes="embed", **download)
    (table,) = (tmp_path / "out").rglob("*.parquet")
    image = pq.read_table(table).to_pylist()[0]["image"]
    assert image["path"] == "20041222_10300001_1.nii"
    assert nibabel.Nifti1Image.from_bytes(image["bytes"]).shape == (16, 16, 8)


def test_what_is_missing_is_said_with_the_folder_that_was_searched(download, tmp_path):
    for path in (tmp_path / "oai").rglob("10300002/*"):
        path.unlink()
    (tmp_path / "oai/9000001/20041222/10300002").rmdir()
    with pytest.raises(
        VolumeMissingError, match=rf"10300002_2.*not in {tmp_path}/oai or folder {tmp_path}/release"
    ):
        convert(tmp_path / "out", volumes="files", **download)
