"""`verify` with `images=`: volumes as people have them, by their headers alone."""

from __future__ import annotations

import json

import dicom_writer as dicom
import nibabel
import numpy as np
import pytest
import volume_files
from verify_plants import examples, report_on

from reasonknee_hf.cli import main

VOXELS = dicom.knee().transpose(2, 1, 0).astype(np.int16)
KINDS = ("volume-", "grid-", "mask-")


@pytest.fixture
def place(tmp_path):
    """Writes the volume of a scan as it is published, from an image in any order."""
    rows = dicom.write_release(tmp_path / "release", 4)

    def write(array, affine, number=0, ending=".nii.gz"):
        name = rows[number]["image_filepath"].removeprefix("../").removesuffix(".nii.gz")
        return volume_files.write(tmp_path / "images" / f"{name}{ending}", array, affine)

    write.rows = rows
    return write


def looked_at(tmp_path, **options):
    report = report_on(tmp_path / "release", images=str(tmp_path / "images"), **options)
    ours = {
        f.kind: f.count for f in report.findings if f.kind.startswith(KINDS) and f.kind != "volume-missing"
    }
    return report, ours


def in_order(codes):
    image = nibabel.Nifti1Image(VOXELS, dicom.affine())
    turned = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(codes)
    )
    return image.as_reoriented(turned)


@pytest.mark.parametrize(
    ("codes", "maker"),
    [
        ("RAS", "dcm2niix default"),
        ("PSR", "dcm2niix -x i"),
        ("LAS", "dicom2nifti"),
        ("LIP", "highdicom"),
        ("ASL", "converter unknown"),
    ],
)
def test_converters_are_named_by_their_axes(tmp_path, place, codes, maker):
    image = in_order(codes)
    path = place(np.asarray(image.dataobj), image.affine)
    report, found = looked_at(tmp_path)
    assert found == {"volume-axes": 1}
    assert f"{path}: axes {codes}, the mask PIR: {maker}; boxes" in examples(report, "volume-axes")


def test_a_volume_on_its_masks_grid_is_not_mentioned(tmp_path, place):
    place(VOXELS, dicom.affine())
    place(VOXELS, dicom.affine(), 1, ".nii")
    _, found = looked_at(tmp_path)
    assert found == {}


def test_copies_in_float64(tmp_path, place):
    place(VOXELS.astype(np.float64), dicom.affine())
    assert looked_at(tmp_path)[1] == {"volume-float64": 1}


def test_an_affine_that_was_lost(tmp_path, place):
    place(VOXELS, np.eye(4))
    place(VOXELS, None, 1)
    report, found = looked_at(tmp_path)
    assert found == {"volume-placeless": 2}
    assert "10300001_1.nii.gz" in examples(report, "volume-placeless")


@pytest.mark.parametrize(
    ("series", "orientation", "spacing"),
    [
        ("COR_MPR", (1, 0, 0, 0, 0, -1), (1.5, 0.365, 0.366)),
        ("AX_MPR", (1, 0, 0, 0, 1, 0), (1.5, 0.365, 0.366)),
        ("SAG_T2_MAP", dicom.SAGITTAL, (3.0, 0.313, 0.313)),
    ],
)
def test_other_series_taken_for_dess(tmp_path, place, series, orientation, spacing):
    place(VOXELS, dicom.affine(orientation, spacing=spacing))
    report, found = looked_at(tmp_path)
    assert found.pop("volume-other-series") == 1
    assert found.keys() <= {"volume-axes"}
    assert series in examples(report, "volume-other-series")


@pytest.mark.parametrize(("said", "kind"), [("SAG_3D_DESS_LEFT", "side"), ("COR_MPR_RIGHT", "series")])
def test_what_a_converter_wrote_beside_the_volume(tmp_path, place, said, kind):
    path = place(VOXELS, dicom.affine())
    path.with_name(path.name.replace(".nii.gz", ".json")).write_text(json.dumps({"SeriesDescription": said}))
    report, found = looked_at(tmp_path)
    assert found == {f"volume-other-{kind}": 1}
    assert f"is {said}" in examples(report, f"volume-other-{kind}")


def test_sides_swapped(tmp_path, place):
    """Each knee has a grid of its own; the volume of the right one lies where the left one's mask does."""
    left = dicom.affine(origin=(40.0, -60.5, 70.125))
    mask = tmp_path / "release/data/masks/knee_001.nii.gz"
    volume_files.write(mask, np.ones(VOXELS.shape, np.uint8), left)
    place(VOXELS, left)
    place(VOXELS, dicom.affine(), 1)
    report, found = looked_at(tmp_path)
    assert found == {"volume-other-side": 2}
    assert "on the grid of 9000001_00M_20041222_10300002_2" in examples(report, "volume-other-side")


def test_another_grid_of_unknown_reason(tmp_path, place):
    place(VOXELS[:, :, 1:], dicom.affine())
    report, found = looked_at(tmp_path)
    assert found == {"grid-mismatch": 1}
    assert "(7, 16, 16), mask (8, 16, 16)" in examples(report, "grid-mismatch")
    assert looked_at(tmp_path, deep=True)[1]["grid-mismatch"] == 1


def test_a_download_of_dicom_is_looked_at_as_well(tmp_path, place, capsys):
    for number, row in enumerate(place.rows[:3]):
        folder = tmp_path / "images" / row["patient_id"] / row["study_folder"] / row["series_folder"]
        wrong = {"description": "AX_MPR_LEFT"} if number == 1 else {}
        dicom.write_folder(folder, dicom.series_for(row, dicom.knee(seed=number), **wrong))
    report, found = looked_at(tmp_path)
    assert found == {"volume-broken": 1}
    assert "AX_MPR_LEFT" in examples(report, "volume-broken")
    assert "10300002" in examples(report, "volume-broken")
    _, found = looked_at(tmp_path, deep=True)
    assert found == {"volume-broken": 1}
    arguments = ["verify", "--source", str(tmp_path / "release"), "--images", str(tmp_path / "images")]
    assert main(arguments) == 1
    assert "[volume-broken]" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main([*arguments[:-1], str(tmp_path / "empty")]) == 1
    assert f"{tmp_path}/empty" in capsys.readouterr().err


def test_a_csv_of_paths(tmp_path, place):
    path = place(VOXELS.astype(np.float64), dicom.affine())
    table = tmp_path / "images" / "map.csv"
    table.write_text(f"scan_id,path\n9000001_00M_20041222_10300001_1,{path}\n")
    report = report_on(tmp_path / "release", images=str(table))
    assert [f.kind for f in report.findings if f.kind.startswith("volume-")] == [
        "volume-missing",
        "volume-float64",
    ]
