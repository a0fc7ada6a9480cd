"""DICOM series as volumes: the same voxels and places as SimpleITK gives, or one error that names the slice."""

from __future__ import annotations

import gzip
import pickle
import re
import sys

import dicom_writer as dicom
import fsspec
import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import ExtraMissingError, VolumeDataError, VolumeFormatError, VolumeMissingError
from reasonknee_hf.volumes.decode import load_header, load_voxels
from reasonknee_hf.volumes.dicom_files import series_url
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

WANTED = {"PatientID": "9000001", "StudyDate": "20041222", "SeriesDescription": "3D_DESS_RIGHT"}


def url_of(series, axes="PIR", **wanted):
    return series_url(str(series), "20041222_10300001_1.nii", axes, wanted)


def as_sitk(folder):
    """Voxels (column, row, slice) and affine (RAS+) by another implementation."""
    sitk = pytest.importorskip("SimpleITK")
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    image = reader.Execute()
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return sitk.GetArrayFromImage(image).transpose(2, 1, 0), np.diag([-1, -1, 1, 1]) @ affine


def assert_like_sitk(folder):
    expected, affine = as_sitk(folder)
    found = load_voxels(url_of(folder, axes="PIR"))
    assert np.array_equal(found.array, expected)
    assert np.abs(found.header.affine - affine).max() < 1e-4
    return found


def rotated(angle, shift=0.0):
    """The sagittal plane, turned about the long axis of the body and tipped a little."""
    c, s, t = np.cos(angle), np.sin(angle), np.sin(shift)
    row = np.array([-s, c, 0.0])
    column = np.cross(row, [c * np.cos(shift), s * np.cos(shift), t])
    column /= np.linalg.norm(column)
    return (*row, *column)


@pytest.mark.parametrize("angle", [0.0, 0.09, -0.14])
@pytest.mark.parametrize("shape", [(8, 16, 16), (6, 12, 20), (1, 5, 4)])
def test_voxels_and_places_are_those_of_sitk(tmp_path, angle, shape):
    made = dicom.slices(dicom.knee(shape), orientation=rotated(angle, angle / 3))
    dicom.write_folder(tmp_path / "s", made[::-1])  # names do not follow positions
    found = assert_like_sitk(tmp_path / "s")
    assert found.array.dtype == np.int16
    assert found.header.codes == "PIR"
    header = load_header(url_of(tmp_path / "s"))
    assert np.array_equal(header.affine, found.header.affine)


@pytest.mark.real
def test_real_big_endian_series(real_dir):
    found = assert_like_sitk(real_dir / "knee" / "dicom_t2_mese_echo1")
    assert found.header.shape == (256, 256, 24)
    assert load_header(url_of(real_dir / "knee" / "dicom_t2_mese_echo1")) is not None


@pytest.mark.parametrize(
    ("stored", "tags", "dtype"),
    [
        (np.uint16([0, 4095]), {}, np.int16),
        (np.uint16([0, 40000]), {"BitsStored": 16, "HighBit": 15}, np.uint16),
        (np.uint16([0, 30000]), {"BitsStored": 16, "HighBit": 15}, np.int16),
        (np.int16([-5, 700]), {"BitsStored": 16, "HighBit": 15}, np.int16),
        (np.uint16([0, 900]), {"RescaleSlope": 1, "RescaleIntercept": -1024}, np.int16),
        (np.uint16([0, 4000]), {"RescaleSlope": 20, "RescaleIntercept": 0}, np.int32),
        (np.uint16([0, 900]), {"RescaleSlope": 0.5, "RescaleIntercept": 0.25}, np.float32),
    ],
)
def test_values_keep_their_size_in_the_smallest_type(tmp_path, stored, tags, dtype):
    voxels = np.resize(stored, (4, 6, 6))
    dicom.write_folder(tmp_path / "s", dicom.slices(voxels, **tags))
    expected, _ = as_sitk(tmp_path / "s")
    found = load_voxels(url_of(tmp_path / "s"))
    assert found.array.dtype == dtype
    assert np.array_equal(found.array, expected)


@pytest.mark.parametrize("how", ["lossless RLE", "implicit", "deflated order of names"])
def test_other_ways_to_store_a_slice(tmp_path, how):
    import pydicom

    made = dicom.slices(dicom.knee())
    if how == "lossless RLE":
        for data in made:
            data.compress(pydicom.uid.RLELossless)
    elif how == "implicit":
        for data in made:
            data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    folder = dicom.write_folder(tmp_path / "s", made)
    if how.startswith("deflated"):
        for path in sorted(folder.iterdir()):
            path.rename(folder / f"IM{int(path.name)}")  # IM2 before IM10
    assert_like_sitk(folder)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(range(6)),
    angle=st.floats(-0.6, 0.6),
    spacing=st.tuples(*[st.floats(0.3, 4.0)] * 3),
    flipped=st.booleans(),
)
def test_any_order_of_files_gives_the_same_volume(order, angle, spacing, flipped):
    """Slices in memory, so that no example is looked up in a cache."""
    orientation = np.array(rotated(angle))
    if flipped:  # the scanner may number slices from right to left, and turn the picture
        orientation = -orientation
    voxels = dicom.knee((6, 5, 4))
    made = dicom.slices(voxels, orientation=tuple(orientation), spacing=spacing)
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for name, index in enumerate(order):
        fs.pipe(f"/s/{name:03d}", dicom.file_bytes(made[index]))
    placed = nibabel.Nifti1Image(voxels.transpose(2, 1, 0), dicom.affine(orientation, spacing=spacing))
    expected = nibabel.as_closest_canonical(placed)
    found = load_voxels(url_of("memory://s"))
    image = nibabel.as_closest_canonical(nibabel.Nifti1Image(found.array, found.header.affine))
    assert np.array_equal(image.dataobj, expected.dataobj)
    assert np.abs(image.affine - expected.affine).max() < 1e-3
    assert found.header.codes == "PIR"
    assert np.allclose(load_header(url_of("memory://s")).affine, found.header.affine, atol=1e-3)


@pytest.mark.parametrize("fault", dicom.BROKEN)
def test_broken_series_are_refused_by_series_and_instance(tmp_path, fault):
    breaks, message = dicom.BROKEN[fault]
    dicom.write_folder(tmp_path / "10300001", breaks(dicom.slices(dicom.knee())))
    with pytest.raises(VolumeFormatError, match=rf"row 7.*series .*10300001: .*{message}"):
        KneeVolume(url_of(tmp_path / "10300001"), label="row 7").array()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patient": "9000002"}, r"PatientID '9000002', but '9000001' is wanted"),
        ({"study": "20051222"}, "StudyDate"),
        ({"description": "SAG_3D_DESS_LEFT"}, r"'SAG_3D_DESS_LEFT', but '3D_DESS_RIGHT'"),
        ({"description": "COR_MPR_RIGHT"}, "COR_MPR_RIGHT"),
        ({"description": "SAG_T2_MAP_RIGHT"}, "SAG_T2_MAP_RIGHT"),
        ({"series": "10300002"}, "AccessionNumber"),
        ({"SeriesNumber": 10300009, "AccessionNumber": ""}, "SeriesNumber"),
    ],
)
def test_another_series_than_the_wanted_one_is_refused(tmp_path, change, message):
    wanted = {**WANTED, "AccessionNumber": "10300001", "SeriesNumber": "10300001"}
    dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee(), **change))
    with pytest.raises(VolumeFormatError, match=rf"{tmp_path}/s: instance 1 .*{message}"):
        _ = KneeVolume(url_of(tmp_path / "s", **wanted)).header
    unnamed = dict.fromkeys(("PatientID", "StudyDate", "SeriesDescription", "AccessionNumber"), "")
    dicom.write_folder(tmp_path / "unnamed", dicom.slices(dicom.knee(), **unnamed))
    assert KneeVolume(url_of(tmp_path / "unnamed", **wanted)).shape == (8, 16, 16)
    dicom.write_folder(tmp_path / "numbered", dicom.slices(dicom.knee(), AccessionNumber="7", SeriesNumber=3))
    assert KneeVolume(url_of(tmp_path / "numbered", **wanted)).shape == (8, 16, 16)


def test_a_shear_and_an_uneven_step_are_no_grid(tmp_path):
    made = dicom.slices(dicom.knee())
    for index, data in enumerate(made):
        data.ImagePositionPatient[1] += 0.2 * index
    dicom.write_folder(tmp_path / "shear", made)
    with pytest.raises(VolumeFormatError, match="sideways"):
        KneeVolume(url_of(tmp_path / "shear")).array()
    made = dicom.slices(dicom.knee())
    made[-1].ImagePositionPatient[0] -= 0.2
    dicom.write_folder(tmp_path / "step", made)
    with pytest.raises(VolumeFormatError, match=r"instance 7 .*instance 8 .*0.9 mm apart.*evenly"):
        KneeVolume(url_of(tmp_path / "step")).array()


@pytest.mark.parametrize("rest", [b"", b"<html>no</html>", None])
def test_a_file_that_is_no_whole_slice_is_named_not_skipped(tmp_path, rest):
    folder = dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee()))
    path = folder / "004"
    path.write_bytes(path.read_bytes()[:-100] if rest is None else rest)
    with pytest.raises(VolumeDataError, match=r"series .*/s: 004 is no whole DICOM slice.*fetch"):
        KneeVolume(url_of(folder)).array()


def test_files_that_lie_beside_slices_are_none(tmp_path):
    folder = dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee()))
    for name in (".DS_Store", "DICOMDIR", "contents.csv", "note.TXT"):
        (folder / name).write_bytes(b"x")
    KneeVolume(url_of(folder)).array()
    for path in folder.glob("0*"):
        path.unlink()
    with pytest.raises(VolumeFormatError, match="there is no DICOM file"):
        KneeVolume(url_of(folder)).array()


def test_frames_and_colours_are_refused_by_name(tmp_path):
    dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee(), NumberOfFrames=3))
    with pytest.raises(VolumeFormatError, match="several frames"):
        KneeVolume(url_of(tmp_path / "s")).array()


# --- lazy, cached, anywhere ----------------------------------------------------------------------------------


def test_the_header_of_a_folder_costs_two_slices(tmp_path, monkeypatch):
    import pydicom

    folder = dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee((20, 16, 16))))
    read, real = [], pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *a, **k: read.append(k) or real(*a, **k))
    volume = KneeVolume(url_of(folder))
    assert (repr(volume), read) == (repr(volume), [])
    assert volume.shape == (20, 16, 16)
    assert np.allclose(volume.affine[:, [1, 2, 0, 3]], dicom.affine(), atol=1e-5)
    assert [one["stop_before_pixels"] for one in read] == [True, True]
    decodes = volume_cache().decodes
    assert np.array_equal(volume.array(), volume.crop([0, 19, 0, 15, 0, 15]))
    assert np.array_equal(pickle.loads(pickle.dumps(volume)).array(), volume.array())
    assert (len(read), volume_cache().decodes - decodes) == (22, 1)


def test_a_changed_folder_is_read_again(tmp_path):
    folder = dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee(seed=1)))
    before = KneeVolume(url_of(folder)).array()
    (folder / "008").unlink()
    assert KneeVolume(url_of(folder)).array().shape == (7, 16, 16)
    assert before.shape == (8, 16, 16)


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar"])
def test_a_tar_is_read_without_being_unpacked(tmp_path, ending):
    voxels = dicom.knee()
    path = dicom.write_tar(tmp_path / "in" / f"10300001{ending}", dicom.slices(voxels))
    if ending == ".tar":
        path.write_bytes(gzip.decompress(path.read_bytes()))
    volume = KneeVolume(url_of(path, **WANTED))
    assert volume.shape == (8, 16, 16)
    assert np.array_equal(volume.array(), voxels.transpose(0, 2, 1))
    assert [p.name for p in tmp_path.rglob("*")] == ["in", path.name]


@pytest.mark.parametrize("keep", [0.6, -4, "checksum"])
def test_a_cut_tar_is_an_error(tmp_path, keep):
    path = dicom.write_tar(tmp_path / "10300001.tar.gz", dicom.slices(dicom.knee()))
    content = bytearray(path.read_bytes())
    if keep == "checksum":
        content[-6] ^= 255
    else:
        del content[int(len(content) * keep) if keep == 0.6 else keep :]
    path.write_bytes(content)
    with pytest.raises(VolumeDataError, match=r"10300001\.tar\.gz.*fetch it again"):
        KneeVolume(url_of(path)).array()


def test_without_pydicom_the_extra_is_named(tmp_path, monkeypatch):
    folder = dicom.write_folder(tmp_path / "s", dicom.slices(dicom.knee()))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(ExtraMissingError, match=r"pip install 'reasonknee_hf\[dicom\]'"):
        KneeVolume(url_of(folder)).array()


def test_the_standard_library_reads_a_tar_as_isal_does(tmp_path, monkeypatch):
    path = dicom.write_tar(tmp_path / "10300001.tar.gz", dicom.slices(dicom.knee()))
    fast = load_voxels(url_of(path)).array
    monkeypatch.setitem(sys.modules, "isal", None)
    assert np.array_equal(load_voxels(url_of(path)).array, fast)


def test_a_missing_folder_is_a_missing_volume(tmp_path):
    with pytest.raises(VolumeMissingError, match=re.escape(str(tmp_path / "none"))):
        KneeVolume(url_of(tmp_path / "none")).array()


def test_any_program_that_opens_urls_finds_a_nifti_file(tmp_path):
    voxels = dicom.knee()
    url = url_of(dicom.write_folder(tmp_path / "s", dicom.slices(voxels)))
    with fsspec.open(url) as file:
        content = file.read()
    image = nibabel.Nifti1Image.from_bytes(content)
    assert np.array_equal(image.dataobj, voxels.transpose(2, 1, 0))
    assert np.allclose(image.affine, dicom.affine(), atol=1e-5)
    assert np.allclose(image.get_qform(), image.get_sform(), atol=1e-4)
    filesystem, path = fsspec.core.url_to_fs(url)
    assert (filesystem.size(path), filesystem.isfile(path)) == (len(content), True)
    assert KneeVolume(url).nifti.shape == (16, 16, 8)
