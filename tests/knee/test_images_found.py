"""`images=` takes what people have: downloads of DICOM, files of any converter by any sensible name, a CSV."""

from __future__ import annotations

import shutil

import dicom_writer as dicom
import fsspec
import numpy as np
import pytest
import volume_files
from support import text_release

import reasonknee_hf as rk
from reasonknee_hf.errors import AmbiguousPathError, ReleaseError, VolumeFormatError, VolumeMissingError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.images import ImageFolder

VOXELS = dicom.knee()
NIFTI = VOXELS.transpose(2, 1, 0).astype(np.int16)


@pytest.fixture
def rows(tmp_path):
    return dicom.write_release(tmp_path / "release", 4)


def scan_and_folder(tmp_path, row=0):
    release = open_release(str(tmp_path / "release"), images=str(tmp_path / "oai"))
    scan = list(release.all_scans())[row]
    return release, scan


def series_path(row):
    return f"{row['patient_id']}/{row['study_folder']}/{row['series_folder']}"


def array_of(release, scan):
    from reasonknee_hf.volumes.volume import KneeVolume

    return KneeVolume(release.image_url(scan), label=scan.scan_id).array()


@pytest.mark.parametrize("layout", ["disk/0.C.2/{series}", "{series}", "{series}.tar.gz", "a/b/{series}.tgz"])
def test_a_download_of_dicom_as_it_is(tmp_path, rows, layout):
    for number, row in enumerate(rows[:2]):
        path = tmp_path / "oai" / layout.format(series=series_path(row))
        write = dicom.write_folder if "gz" not in layout[-3:] else dicom.write_tar
        write(path, dicom.series_for(row, VOXELS + number))
        other = path.parent / path.name.replace("1030", "1099")  # other series of the visit lie beside it
        write(other, dicom.series_for(row, VOXELS, description="COR_IW_TSE_RIGHT"))
    for number in (0, 1):
        release, scan = scan_and_folder(tmp_path, number)
        assert np.array_equal(array_of(release, scan), (VOXELS + number).transpose(0, 2, 1))
    release, missing = scan_and_folder(tmp_path, 3)
    assert release.find_image(missing) is None
    with pytest.raises(VolumeMissingError, match=str(tmp_path / "oai")):
        array_of(release, missing)


def test_series_are_not_looked_into_when_a_download_is_opened(tmp_path, rows, monkeypatch):
    for row in rows:
        dicom.write_folder(tmp_path / "oai/0.C.2" / series_path(row), dicom.series_for(row, VOXELS))
    release, _ = scan_and_folder(tmp_path)
    assert len(release.image_folder.tree.entries()) == 4
    listed = []
    real = __import__("os").scandir
    monkeypatch.setattr("os.scandir", lambda path: listed.append(str(path)) or real(path))
    ImageFolder(str(tmp_path / "oai"), release.all_scans())
    assert not [path for path in listed if "10300" in path]


def test_a_download_at_a_url(tmp_path, rows):
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for index, data in enumerate(dicom.series_for(rows[0], VOXELS)):
        fs.pipe(f"/oai/0.C.2/{series_path(rows[0])}/{index:03}", dicom.file_bytes(data))
    release = open_release(str(tmp_path / "release"), images="memory://oai")
    scan = next(release.all_scans())
    assert len(release.image_folder.tree.entries()) == 1
    assert np.array_equal(array_of(release, scan), VOXELS.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("data/images/9000001/00M/20041222_10300000_1.nii.gz", None),
        ("data/images/9000001/00M/20041222_10300001_1.nii.gz", 0),
        ("data/images/9000001/00M/20041222_10300001_1.nii", 0),
        ("9000001/00M/20041222_10300002_2.nii", 1),
        ("9000001_00M_20041222_10300001_1.nii.gz", 0),
        ("x/9000002_00M_20041222_10300004_2.nii", 3),
        ("9000009/00M.nii.gz", None),
        ("00M.nii.gz", None),
    ],
)
def test_other_names_of_a_volume(tmp_path, rows, name, row):
    volume_files.write(tmp_path / "oai" / name, NIFTI)
    if row is None:
        with pytest.raises(
            ReleaseError, match=rf"images='{tmp_path}/oai' holds a volume of none.*It holds {name}"
        ):
            scan_and_folder(tmp_path)
        return
    release, scan = scan_and_folder(tmp_path, row)
    assert release.find_image(scan) == str(tmp_path / "oai" / name)
    others = [one for one in release.all_scans() if one is not scan]
    assert [release.find_image(one) for one in others] == [None] * 3


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_one_file_a_visit(tmp_path, ending):
    rows = dicom.write_release(tmp_path / "release", 1)
    volume_files.write(tmp_path / f"oai/9000001/00M{ending}", NIFTI)
    release, scan = scan_and_folder(tmp_path)
    assert release.find_image(scan) == str(tmp_path / f"oai/9000001/00M{ending}")
    assert rows[0]["patient_id"] == "9000001"


def test_one_file_for_two_knees_of_a_visit_is_refused(tmp_path, rows):
    volume_files.write(tmp_path / "oai/9000001/00M.nii.gz", NIFTI)
    release, scan = scan_and_folder(tmp_path)
    with pytest.raises(AmbiguousPathError, match=r"9000001/00M\.nii\.gz below .*oai.*any scan.*CSV"):
        release.find_image(scan)


def test_a_series_in_two_places_is_refused_and_a_folder_beside_its_tar_is_not(tmp_path, rows):
    folder = tmp_path / "oai/0.C.2" / series_path(rows[0])
    dicom.write_folder(folder, dicom.series_for(rows[0], VOXELS))
    dicom.write_tar(folder.with_name(folder.name + ".tar.gz"), dicom.series_for(rows[0], VOXELS))
    release, scan = scan_and_folder(tmp_path)
    assert release.find_image(scan).endswith(f"::{folder}")
    shutil.copytree(folder, tmp_path / "oai/0.E.1" / series_path(rows[0]))
    release, scan = scan_and_folder(tmp_path)
    with pytest.raises(AmbiguousPathError, match=r"any of 0\.C\.2/.*, 0\.E\.1/"):
        release.find_image(scan)


def test_a_csv_that_maps_scans_to_paths(tmp_path, rows):
    volume_files.write(tmp_path / "mine/knee one.nii.gz", NIFTI)
    dicom.write_folder(tmp_path / "series", dicom.series_for(rows[1], VOXELS))
    table = tmp_path / "mine" / "map.csv"
    first, second = "9000001_00M_20041222_10300001_1", "9000001_00M_20041222_10300002_2"
    table.write_text(f"scan_id,path\n{first},knee one.nii.gz\n{second},{tmp_path}/series\n")
    release = open_release(str(tmp_path / "release"), images=str(table))
    one, two, three, _ = release.all_scans()
    assert release.find_image(one) == str(tmp_path / "mine/knee one.nii.gz")
    assert np.array_equal(array_of(release, two), VOXELS.transpose(0, 2, 1))
    assert release.find_image(three) is None
    for line, message in (
        (f"{first},gone.nii", "line 4: there is no .*gone.nii|twice"),
        ("9000001_00M_x_y_1,knee one.nii.gz", "line 4.*in no split table"),
    ):
        table.write_text(
            f"scan_id,path\n{second},{tmp_path}/series\n\n{line}\n".replace("\n\n", "\n,\n"[0:1])
        )
        table.write_text(f"scan_id,path\n{second},{tmp_path}/series\n{line}\n")
        with pytest.raises(ReleaseError, match=message.replace("line 4", "line 3")):
            open_release(str(tmp_path / "release"), images=str(table))
    table.write_text("id,file\n1,2\n")
    with pytest.raises(ReleaseError, match="columns scan_id and path"):
        open_release(str(tmp_path / "release"), images=str(table))


def test_a_folder_without_any_match_is_said_when_rows_are_loaded(tmp_path):
    text_release(tmp_path / "release", 2)
    (tmp_path / "oai").mkdir()
    with pytest.raises(ReleaseError, match=rf"images='{tmp_path}/oai'.*none.*It holds nothing"):
        rk.load_dataset(source=str(tmp_path / "release"), images=str(tmp_path / "oai"), streaming=True)


def test_rows_of_a_download(tmp_path):
    """Streams and prepared datasets give the volume of the series, and refuse the other knee's."""
    rows = dicom.write_release(tmp_path / "release", 2)
    dicom.write_folder(tmp_path / "oai" / series_path(rows[0]), dicom.series_for(rows[0], VOXELS))
    swapped = dicom.series_for(rows[1], VOXELS, description="SAG_3D_DESS_RIGHT")
    dicom.write_folder(tmp_path / "oai" / series_path(rows[1]), swapped)
    for streaming in (True, False):
        made = rk.load_dataset(
            "scans",
            split="train",
            source=str(tmp_path / "release"),
            images=str(tmp_path / "oai"),
            streaming=streaming,
            **({} if streaming else {"cache_dir": str(tmp_path / "cache")}),
        )
        first, second = list(made)
        assert np.array_equal(first["image"].array(), VOXELS.transpose(0, 2, 1))
        assert first["mask"].relation_to(first["image"]) == "equal"
        with pytest.raises(VolumeFormatError, match=r"9000001_00M.*RIGHT', but '3D_DESS_LEFT' is wanted"):
            second["image"].array()
