"""Volumes as people change them, put them back and mistake them: what is stored, and what the errors say."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from volume_files import PIR, gzip_bytes, image, patched, plain_bytes, voxels, write

from reasonknee_hf import environment
from reasonknee_hf.errors import (
    OptionError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
    VolumeTypeError,
)
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.views import levels
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

FEATURES = Features({"image": VolumeFeature(axes="PIR"), "n": Value("int32")})


def mapped(data: bytes, change, style: str = "map"):
    dataset = Dataset.from_list([{"image": {"bytes": data, "path": None}, "n": 0}], features=FEATURES)
    if style == "stream":
        dataset = dataset.to_iterable_dataset()
    return next(iter(dataset.map(lambda row: {"image": change(row["image"])})))["image"]


# --- put back into a row ------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("unit", [0, 1, 2, 3])
@pytest.mark.parametrize("style", ["map", "stream"])
def test_assumed_axes_are_stored(style: str, unit: int, second: bool) -> None:
    bare = image(voxels(), None, second=second)
    bare.header["xyzt_units"] = unit
    bare.header["pixdim"][1:4] = (0.5, 0.5, 0.7)
    bare.header["qform_code"] = bare.header["sform_code"] = 0
    back = mapped(bare.to_bytes(), lambda volume: volume.assume("PIR"), style)
    wanted = KneeVolume(None, bare.to_bytes(), axes="PIR").assume("PIR")
    np.testing.assert_array_equal(back.array(), np.moveaxis(voxels(), -1, 0))
    np.testing.assert_allclose(back.affine, wanted.affine, rtol=1e-6)
    assert (back.axcodes, back.header.notes) == ("RPI", ())


def test_assuming_what_the_file_says_already_stores_the_file() -> None:
    data = gzip_bytes(voxels())
    assert KneeVolume("/a.nii.gz", data).assume("RAS").storage == {"bytes": data, "path": "/a.nii.gz"}


def test_another_order_is_refused_by_tables_and_kept_by_streams() -> None:
    with pytest.raises(OptionError, match=r"in the order RAS, which would be lost.*\.array\(\)"):
        mapped(gzip_bytes(voxels()), lambda volume: volume.oriented("RAS"))
    with pytest.raises(OptionError, match="in the order RAS"):
        FEATURES["image"].encode_example(KneeVolume("/a.nii").oriented("RAS"))
    assert mapped(gzip_bytes(voxels()), lambda volume: volume.oriented("RAS"), "stream").axcodes == "RAS"
    assert [*KneeVolume("/a.nii").oriented("RAS").keys()] == ["bytes", "path"]


def test_a_dict_of_array_and_affine_is_an_error_and_never_null() -> None:
    def taken_apart(volume: KneeVolume) -> dict:
        return {"array": volume.array(), "affine": volume.affine}

    data = gzip_bytes(voxels())
    with pytest.raises(OptionError, match="a dict of affine, array: give 'path'"):
        mapped(data, taken_apart)
    assert mapped(data, taken_apart, "stream").keys() == {"array", "affine"}
    with pytest.raises(VolumeTypeError, match="cannot store dict"):
        FEATURES["image"].encode_example(taken_apart(KneeVolume(None, data)))


# --- headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-1, -2])
def test_codes_below_zero_are_unset(code: int) -> None:
    data = plain_bytes(voxels(), np.diag([1.0, 2, 3, 1]), qform=PIR)
    header = KneeVolume(None, patched(data, 254, struct.pack("<h", code))).header
    assert (header.affine_source, header.codes) == ("qform", "PIR")
    assert (
        KneeVolume(None, patched(plain_bytes(voxels()), 254, struct.pack("<h", code))).header.affine is None
    )


def test_voxel_sizes_that_contradict_the_transform_are_noted() -> None:
    data = patched(plain_bytes(voxels()), 80, struct.pack("<3f", 0.5, 0.5, 1.4))
    volume = KneeVolume(None, data)
    assert volume.header.notes == (
        "pixdim says voxels of 0.5 x 0.5 x 1.4 and the sform 0.5 x 0.5 x 0.7; the sform is used",
    )
    assert volume.spacing == pytest.approx((0.7, 0.5, 0.5))
    assert KneeVolume(None, plain_bytes(voxels())).header.notes == ()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\0" * 128 + b"DICM" + b"\0" * 500, "a DICOM file, one slice of a series.*folder of the series"),
        (b"NRRD0005\ntype: short\n" + b"#" * 600, "an NRRD file.*SimpleITK"),
        (b"ObjectType = Image\n" + b" " * 600, "a MetaImage header"),
    ],
)
def test_other_kinds_of_files_are_named(start: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(start)
    for volume in (KneeVolume(None, start), KneeVolume(tmp_path / "a")):
        with pytest.raises(VolumeFormatError, match=f"this is {words}"):
            volume.array()


def test_a_folder_given_as_a_volume_says_so(tmp_path: Path) -> None:
    with pytest.raises(VolumeDataError, match=r"a folder is no NIfTI file.*DICOM.*images="):
        KneeVolume(tmp_path).array()


# --- messages and settings ----------------------------------------------------------------------------------


def test_names_in_messages_are_not_percent_encoded() -> None:
    with pytest.raises(VolumeMissingError, match=r"memory://masks/knee 003, left\.nii\.gz"):
        KneeVolume("memory://masks/knee%20003%2C%20left.nii.gz", mask=True).array()
    with pytest.raises(VolumeMissingError, match=r"/nowhere/50%25\.nii\.gz"):
        KneeVolume("/nowhere/50%25.nii.gz", mask=True).array()


def test_a_volume_that_is_nowhere_is_looked_for_where_images_says(sample_dir: Path, tmp_path: Path) -> None:
    held = next(sample_dir.glob("data/images/*/*/*.nii.gz"))
    (tmp_path / held.name).symlink_to(held)  # a folder that holds none at all is refused when it is given
    release = open_release(str(sample_dir), images=str(tmp_path))
    missing = next(scan for scan in release.scans("validation") if release.find_image(scan) is None)
    with pytest.raises(VolumeMissingError, match=rf"{tmp_path}/data/images/.*give as images= the folder"):
        KneeVolume(release.image_url(missing)).array()


@pytest.mark.parametrize(
    ("given", "size"), [("384MB", 384 * 10**6), ("1GiB", 1 << 30), ("12 ", 12), ("0", 0), ("512KiB", 1 << 19)]
)
def test_sizes_are_understood_as_people_write_them(monkeypatch, given: str, size: int) -> None:
    monkeypatch.setenv("REASONKNEE_VOLUME_CACHE", given)
    assert environment.volume_cache_bytes() == size


@pytest.mark.parametrize("given", ["-1", "-5MB", "many", "384X", "1.5.2GB"])
def test_a_wrong_size_is_said_when_the_dataset_is_opened(monkeypatch, given: str, sample_dir: Path) -> None:
    from reasonknee_hf.dataset.loading import load_dataset

    monkeypatch.setenv("REASONKNEE_VOLUME_CACHE", given)
    with pytest.raises(OptionError, match=r"REASONKNEE_VOLUME_CACHE.*384MB"):
        load_dataset("scans", split="test", streaming=True, source=str(sample_dir))


# --- memory and reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", ["RPI", "LAS"])
@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_percentiles_take_no_multiple_of_the_volume(dtype, codes: str) -> None:
    array = np.random.default_rng(1).integers(-50, 3000, (200, 200, 60)).astype(dtype, order="F")
    volume = KneeVolume(None, plain_bytes(array)).oriented(codes)
    shown = volume.array()
    tracemalloc.start()
    found = levels("percentile", shown, shown[:1], volume.header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (12 << 20 if dtype == np.int16 else 1.6 * array.nbytes)
    assert (found.low, found.high) == tuple(np.percentile(array, [1, 99], method="lower"))


def test_many_crops_inflate_a_file_twice_at_most(tmp_path: Path, monkeypatch) -> None:
    from reasonknee_hf.volumes import volume_bytes

    path = write(tmp_path / "a.nii.gz", voxels((64, 64, 80)))
    read = []
    chunks = volume_bytes._local_chunks
    monkeypatch.setattr(
        volume_bytes, "_local_chunks", lambda name: (read.append(len(c)) or c for c in chunks(name))
    )
    volume_cache().clear()
    expected = np.moveaxis(voxels((64, 64, 80)), -1, 0)
    for slice_ in range(39, 79):
        got = KneeVolume(path).crop([slice_, slice_, 0, 9, 0, 9], whole=False)
        np.testing.assert_array_equal(got, expected[slice_ : slice_ + 1, :10, :10])
    assert sum(read) < 1.8 * path.stat().st_size
