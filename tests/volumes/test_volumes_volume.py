"""`KneeVolume`: every valid file, slice-first, what each touch costs."""

from __future__ import annotations

import builtins
import gzip
import os
import pickle
import struct
from pathlib import Path

import fsspec
import nibabel
import numpy as np
import pytest
from volume_files import PIR, RPI, gzip_bytes, image, patched, plain_bytes, voxels, write

from reasonknee_hf.errors import (
    OptionError,
    RecordError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
)
from reasonknee_hf.volumes import volume_bytes as inflate
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@pytest.fixture(autouse=True, params=["fast", "standard"])
def inflater(request, monkeypatch):
    """Everything holds with isal and without it."""
    volume_cache().clear()
    inflate.inflater.cache_clear()
    if request.param == "standard":
        monkeypatch.setitem(__import__("sys").modules, "isal", None)
    else:
        pytest.importorskip("isal")
    yield request.param
    inflate.inflater.cache_clear()


def slice_first(array):
    return np.moveaxis(array, -1, 0)


# --- every valid file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("second", [False, True])
def test_all_types_orders_and_versions(kind, order, second):
    array = voxels(dtype=kind)
    data = image(array, second=second)
    swapped = type(data)(array, PIR, data.header.as_byteswapped(order), dtype=array.dtype)
    packed = gzip.compress(swapped.to_bytes())
    volume = KneeVolume(None, packed)
    assert volume.header.byte_order == order
    assert volume.header.version == (2 if second else 1)
    got = volume.array()
    np.testing.assert_array_equal(got, slice_first(array))
    assert got.dtype == np.dtype(kind)
    assert got.dtype.isnative
    stored = type(data).from_bytes(gzip.decompress(packed)).affine
    np.testing.assert_array_equal(volume.affine, stored[:, [2, 0, 1, 3]])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a", "a.img.txt"])
@pytest.mark.parametrize("packed", [False, True])
def test_content_decides_not_the_name(tmp_path, name, packed):
    path = tmp_path / name
    path.write_bytes((gzip_bytes if packed else plain_bytes)(voxels()))
    np.testing.assert_array_equal(KneeVolume(str(path)).array(), slice_first(voxels()))


def test_same_stem_with_two_endings_are_two_files(tmp_path):
    for seed, name in enumerate(["A.nii", "A.nii.gz"]):
        write(tmp_path / name, voxels(seed=seed))
    for seed, name in enumerate(["A.nii", "A.nii.gz"]):
        np.testing.assert_array_equal(
            KneeVolume(str(tmp_path / name)).array(), slice_first(voxels(seed=seed))
        )


def test_several_gzip_members_and_zero_padding():
    data = plain_bytes(voxels())
    cut = len(data) // 3
    packed = (
        gzip.compress(data[:cut])
        + b"\0" * 100
        + gzip.compress(data[cut : 2 * cut])
        + gzip.compress(data[2 * cut :])
    )
    np.testing.assert_array_equal(KneeVolume(None, packed + b"\0" * 7).array(), slice_first(voxels()))


@pytest.mark.parametrize(
    ("slope", "intercept", "expected"),
    [
        (np.nan, np.nan, None),
        (0, 5, None),
        (1, 0, None),
        (2.5, -3, (2.5, -3)),
        (np.inf, 0, None),
        (2, np.nan, (2, 0)),
    ],
)
def test_slope_and_intercept(slope, intercept, expected):
    array = voxels()
    data = patched(plain_bytes(array), 112, struct.pack("<2f", slope, intercept))
    got = KneeVolume(None, data).array()
    if expected is None:
        assert got.dtype == np.int16
        np.testing.assert_array_equal(got, slice_first(array))
    else:
        assert got.dtype == np.float32
        exact = slice_first(array).astype(np.float64) * expected[0] + expected[1]
        np.testing.assert_array_equal(got, exact.astype(np.float32))


def test_nan_voxels_are_kept_and_counted():
    array = voxels(dtype="f4")
    array[1, 2, 3], array[0, 0, 0] = np.nan, np.inf
    volume = KneeVolume(None, plain_bytes(array))
    np.testing.assert_array_equal(volume.array(), slice_first(array))
    assert volume.nan_count() == 1
    expected = np.where(np.isnan(slice_first(array)), -7, slice_first(array))
    np.testing.assert_array_equal(volume.array(nan=-7), expected)
    assert volume.array(nan=-7).dtype == np.float32
    assert KneeVolume(None, plain_bytes(voxels())).array(nan=-7).dtype == np.int16
    assert KneeVolume(None, plain_bytes(voxels())).nan_count() == 0


def test_trailing_axes_of_length_one_go_and_real_ones_are_refused():
    array = voxels()
    for extra in ((1,), (1, 1, 1)):
        np.testing.assert_array_equal(
            KneeVolume(None, plain_bytes(array.reshape(array.shape + extra))).array(), slice_first(array)
        )
    for shape in ((8, 9, 5, 2), (8, 9, 5, 1, 2)):
        with pytest.raises(VolumeFormatError, match="a real axis beyond the third"):
            KneeVolume(None, plain_bytes(voxels(shape))).array()


@pytest.mark.parametrize(
    ("code", "name"), [(128, "RGB"), (32, "complex64"), (2304, "RGBA"), (1536, "float128")]
)
def test_kinds_refused_by_name(code, name):
    with pytest.raises(VolumeFormatError, match=name):
        _ = KneeVolume(None, patched(plain_bytes(voxels()), 70, struct.pack("<h", code))).header


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\x1f", "not a NIfTI file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"\0" * 600, "not a NIfTI file"),
        (patched(plain_bytes(voxels()), 344, b"\0\0\0\0"), "Analyze"),
        (patched(plain_bytes(voxels()), 40, struct.pack("<h", 9)), "9 axes"),
        (patched(plain_bytes(voxels()), 42, struct.pack("<h", -4)), "axis below one"),
        (patched(plain_bytes(voxels()), 70, struct.pack("<h", 7)), "unknown NIfTI datatype 7"),
        (patched(plain_bytes(voxels()), 108, struct.pack("<f", 17.0)), "voxels start at byte 17"),
        (patched(plain_bytes(voxels()), 108, struct.pack("<f", np.nan)), "voxels start at byte nan"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_not_a_volume_is_one_typed_error(data, words, packed):
    volume = KneeVolume(None, gzip.compress(data) if packed else data, label="row 7")
    for touch in (lambda: volume.header, volume.array):
        with pytest.raises(VolumeFormatError, match=f"row 7: .*{words}"):
            touch()


def test_transforms_sform_qform_both_neither(caplog):
    array, other = voxels(), PIR @ np.diag([1, 1, -1, 1])
    only_s = KneeVolume(None, plain_bytes(array, PIR)).header
    assert (only_s.affine_source, only_s.notes) == ("sform", ())
    both = KneeVolume(None, plain_bytes(array, PIR, qform=PIR)).header
    assert (both.affine_source, both.notes) == ("sform", ())
    conflict = KneeVolume(None, plain_bytes(array, PIR, qform=other)).header
    assert conflict.affine_source == "sform"
    assert "sform and qform differ by up to" in conflict.notes[0]
    KneeVolume(None, plain_bytes(array, PIR, qform=other), label="row 4").array()
    assert "row 4: sform and qform differ" in caplog.text
    only_q = image(array, PIR, qform=PIR)
    only_q.header["sform_code"] = 0
    only_q = KneeVolume(None, nibabel.Nifti1Image(array, None, only_q.header).to_bytes())
    assert only_q.header.affine_source == "qform"
    np.testing.assert_allclose(only_q.header.affine, PIR, atol=1e-6)
    broken = patched(plain_bytes(array, PIR, qform=PIR), 280, b"\0" * 48)
    assert KneeVolume(None, broken).header.affine_source == "qform"
    assert "singular" in KneeVolume(None, broken).header.notes[0]


def test_no_transform_is_refused_until_the_user_says_the_order():
    data = patched(plain_bytes(voxels()), 254, b"\0\0")
    volume = KneeVolume(None, data, label="row 3")
    assert volume.header.affine_source == "none"
    for touch in (lambda: volume.shape, lambda: volume.affine, volume.array):
        with pytest.raises(VolumeFormatError, match=r"row 3: .*neither qform nor sform.*assume"):
            touch()
    told = volume.assume("PIR")
    np.testing.assert_array_equal(told.array(), slice_first(voxels()))
    assert told.axcodes == "RPI"
    assert KneeVolume(None, plain_bytes(voxels())).assume("RAS").axcodes == "RPI"  # a stated transform wins


def test_units_other_than_millimetres():
    data = patched(plain_bytes(voxels(), PIR), 123, bytes([3]))
    np.testing.assert_allclose(KneeVolume(None, data).spacing, (0.0007, 0.0005, 0.0005), rtol=1e-6)


def test_pairs(tmp_path):
    array = voxels()
    for name, packed in (("a", False), ("b", True)):
        pair = nibabel.Nifti1Pair(array, PIR)
        nibabel.save(pair, tmp_path / f"{name}.img{'.gz' if packed else ''}")
    (tmp_path / "c.hdr").write_bytes((tmp_path / "a.hdr").read_bytes())
    (tmp_path / "c.img.gz").write_bytes((tmp_path / "b.img.gz").read_bytes())
    for name in ("a.hdr", "a.img", "b.hdr.gz", "b.img.gz", "c.hdr", "c.img.gz"):
        volume = KneeVolume(str(tmp_path / name))
        np.testing.assert_array_equal(volume.array(), slice_first(array))
        assert not volume.header.single_file
        np.testing.assert_array_equal(volume.nifti.get_fdata(), array)
    (tmp_path / "a.img").unlink()
    with pytest.raises(VolumeMissingError, match=r"the voxels are missing"):
        KneeVolume(str(tmp_path / "a.hdr")).array()
    assert KneeVolume(str(tmp_path / "a.hdr")).shape == (5, 8, 9)
    with pytest.raises(VolumeFormatError, match="pair"):
        KneeVolume(None, (tmp_path / "a.hdr").read_bytes()).array()


# --- real files ---------------------------------------------------------------------------------------------

REFUSED = {
    "dipy_small_64D.nii": "real axis",
    "nibabel_analyze.hdr": "Analyze",
    "nibabel_example4d.nii.gz": "real axis",
    "nibabel_example_nifti2.nii.gz": "real axis",
    "nibabel_functional.nii": "real axis",
    "nibabel_row_major.dconn.nii": "real axis",
    "nibabel_test.mgz": "not a NIfTI",
    "niftireaderjs_5D_small.nii": "real axis",
    "niftireaderjs_not-nifti.nii": "not a NIfTI",
    "niftirs_complex_complex32.nii": "complex64",
    "niftirs_complex_complex64.nii": "complex128",
    "niftirs_rgb_3D.nii": "RGB",
    "niftirs_rgb_4D.nii": "RGB",
    "niftirs_rgba_4D.nii": "RGBA",
}


@pytest.mark.real
def test_real_files_behave_as_their_list_says(real_dir):
    seen = 0
    for path in sorted([*real_dir.glob("nifti_variants/*"), *real_dir.glob("knee*/*.nii.gz")]):
        volume = KneeVolume(str(path), label="row 1")
        seen += 1
        if path.name in REFUSED or "fuzz" in path.name:
            with pytest.raises(VolumeFormatError, match=f"row 1, .*{REFUSED.get(path.name, 'not a NIfTI')}"):
                volume.array()
            continue
        if path.name in ("nibabel_nifti1.hdr", "nibabel_nifti2.hdr"):
            assert volume.shape == (91, 109, 91)
            with pytest.raises(VolumeMissingError):
                volume.array()
            continue
        if path.name.startswith("niftirs_minimal") and "extended" not in path.name:
            with pytest.raises(VolumeFormatError, match="neither qform nor sform"):
                volume.array()
            volume = volume.assume("LAS")
        peer_path = str(path).replace("minimal2.hdr", "minimal.hdr").replace("minimal2.img", "minimal.img")
        peer = nibabel.load(peer_path)
        expected = np.asanyarray(peer.dataobj)
        expected = expected.reshape((*expected.shape, 1, 1)[:3], order="A")
        axis = nibabel.aff2axcodes(peer.affine).index("R" if "R" in nibabel.aff2axcodes(peer.affine) else "L")
        got = volume.array()
        np.testing.assert_array_equal(got, np.moveaxis(expected, axis, 0))
        assert got.dtype == expected.dtype.newbyteorder("=")
        if volume.header.affine is not None:
            np.testing.assert_array_equal(volume.header.affine, peer.affine)
        edges = nibabel.affines.voxel_sizes(peer.affine)
        np.testing.assert_allclose(volume.spacing, [edges[axis], *np.delete(edges, axis)], rtol=1e-6)
    assert seen > 50


# --- broken data --------------------------------------------------------------------------------------------


def broken(kind):
    good = gzip_bytes(voxels())
    return {
        "cut in the voxels": good[: len(good) * 6 // 10],
        "cut in the trailer": good[:-3],
        "checksum": good[:-8] + bytes([good[-8] ^ 1]) + good[-7:],
        "length": good[:-4] + bytes([good[-4] ^ 1]) + good[-3:],
        "flipped byte": good[: len(good) // 2]
        + bytes([good[len(good) // 2] ^ 0x55])
        + good[len(good) // 2 + 1 :],
        "garbage behind": good + b"garbage",
        "cut second member": good + gzip.compress(b"x" * 1000)[:-9],
        "plain, cut": plain_bytes(voxels())[:-1],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["cut in the voxels", "cut in the trailer", "checksum", "length", "flipped byte", "garbage behind",
     "cut second member", "plain, cut"],
)  # fmt: skip
def test_broken_data_is_an_error_at_first_touch_with_the_row(tmp_path, kind):
    path = tmp_path / "a.nii.gz"
    path.write_bytes(broken(kind))
    volume = KneeVolume(str(path), label="9000001_00M_1_2_right_14")
    for _ in range(2):  # a failure is not cached as a success
        with pytest.raises(VolumeDataError, match=r"9000001_00M_1_2_right_14, .*a.nii.gz: "):
            volume.array()
    path.write_bytes(gzip_bytes(voxels()))
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(volume.array(), slice_first(voxels()))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_shape_that_no_memory_holds_names_it(second, pack):
    length, at = (1 << 40, 24) if second else (32767, 42)
    dim = struct.pack("<3q" if second else "<3h", *[length] * 3)
    data = pack(patched(plain_bytes(voxels(dtype="f8"), second=second), at, dim))
    with pytest.raises(VolumeFormatError, match=rf"row 1: .*{length}, {length}, {length}.* bytes of voxels"):
        KneeVolume(None, data, label="row 1").array()


@pytest.mark.parametrize("mask", [False, True])
def test_a_slope_that_takes_voxels_out_of_their_type_is_an_error(mask):
    data = patched(plain_bytes(voxels(dtype="f8"), second=True), 176, struct.pack("<2d", 1e300, 0.0))
    with pytest.raises(VolumeFormatError, match=r"beyond float32|no label"):
        KneeVolume(None, data, mask=mask).array()


@pytest.mark.filterwarnings("error")
def test_a_transform_with_huge_numbers_is_not_used():
    data = plain_bytes(voxels(), PIR, second=True, qform=PIR)
    header = KneeVolume(None, patched(data, 400, struct.pack("<d", 1e200))).header
    assert header.affine_source == "qform"
    assert "the sform is set but" in header.notes[0]


def test_a_file_that_the_system_does_not_let_be_read_is_named(tmp_path):
    (
        tmp_path / "a.nii.gz"
    ).mkdir()  # as good as a lack of permissions, which nobody has who runs tests as root
    volume = KneeVolume(str(tmp_path / "a.nii.gz"), label="row 1")
    for touch in (lambda: volume.shape, volume.array, lambda: volume.nifti):
        with pytest.raises(
            VolumeDataError, match=r"row 1, .*a\.nii\.gz: the file cannot be read \(Is a dir"
        ) as caught:
            touch()
        assert isinstance(caught.value.__cause__, IsADirectoryError)


@pytest.mark.parametrize("path", ["/nowhere/a.nii.gz", "memory://nowhere/a.nii.gz"])
def test_missing_volume_says_where_to_get_it(path):
    for touch in (lambda v: v.header, lambda v: v.array()):
        with pytest.raises(VolumeMissingError, match=r"row 5.*card of the dataset.*images="):
            touch(KneeVolume(path, label="row 5"))
        with pytest.raises(FileNotFoundError, match=r"row 5.*mask"):
            touch(KneeVolume(path, label="row 5", mask=True))


# --- slice-first and boxes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "affine"),
    [
        ((160, 38, 40), RPI),
        ((38, 40, 160), PIR),
        ((12, 160, 160), RPI),
        ((160, 38, 40, 1), RPI),
        ((160, 40, 160), PIR),
    ],
)
def test_slice_axis_comes_from_the_affine(shape, affine):
    array = np.zeros(shape, np.int16)
    first = np.moveaxis(array.reshape(shape[:3]), 0 if affine is RPI else 2, 0)  # a view, slice-first
    box = [3, 7, 10, 20, 11, 13]
    first[3:8, 10:21, 11:14] = 500
    volume = KneeVolume(None, gzip_bytes(array, affine))
    assert volume.shape == first.shape
    crop = volume.crop(box)
    assert crop.shape == (5, 11, 3)
    assert (crop == 500).all()
    assert volume.array().sum() == 500 * crop.size
    for code in ("RAS", "LPS", "SRA"):
        moved = volume.oriented(code)
        assert (moved.crop(moved.oriented_box(box)) == 500).all()
        assert moved.axcodes == code
        assert moved.slice_first_box(moved.oriented_box(box)) == box
        assert (moved.crop(moved.oriented_box(box), whole=False) == 500).all()


def test_array_is_a_read_only_view_of_the_cached_one():
    volume = KneeVolume(None, gzip_bytes(voxels()))
    first = volume.array()
    assert np.shares_memory(first, volume.array())
    assert np.shares_memory(first, volume.oriented("RAS").array())
    assert not first.flags.writeable
    crop = volume.crop([0, 2, 1, 3, 4, 8])
    assert crop.flags.writeable
    assert crop.transpose(1, 2, 0).flags.f_contiguous  # file order: x fastest, slices slowest
    np.testing.assert_array_equal(crop, first[0:3, 1:4, 4:9])


def test_numpy_takes_a_volume_for_its_voxels():
    array = voxels()
    volume = KneeVolume(None, gzip_bytes(array))
    same = np.asarray(volume)
    np.testing.assert_array_equal(same, slice_first(array))
    assert np.shares_memory(same, volume.array())
    own = np.array(volume)
    assert own.flags.writeable
    assert not np.shares_memory(own, same)
    assert np.asarray(volume, dtype=np.float64).dtype == np.float64
    assert np.max(volume) == array.max()
    with pytest.raises(ValueError, match="copy"):
        volume.__array__(np.float64, copy=False)


def test_crop_without_a_copy_is_a_view_that_nobody_can_write_to():
    volume = KneeVolume(None, gzip_bytes(voxels((8, 9, 5))))
    view = volume.crop([1, 3, 2, 5, 0, 4], copy=False)
    assert np.shares_memory(view, volume.array())
    assert not view.flags.writeable
    copied = volume.crop([1, 3, 2, 5, 0, 4])
    assert not np.shares_memory(copied, volume.array())
    copied += 1
    np.testing.assert_array_equal(view + 1, copied)


def test_crop_checks_the_box_and_grows_by_millimetres():
    volume = KneeVolume(None, gzip_bytes(voxels()), label="row 2")
    with pytest.raises(RecordError, match=r"row 2: box .* leaves the volume"):
        volume.crop([0, 5, 0, 7, 0, 8])
    np.testing.assert_array_equal(volume.crop([0, 5, -3, 7, 0, 8], clip=True), volume.array())
    np.testing.assert_array_equal(
        volume.crop([2, 2, 4, 4, 4, 4], margin_mm=0.7), volume.array()[1:4, 2:7, 2:7]
    )


# --- masks --------------------------------------------------------------------------------------------------

NAMES = {"background": 0, "medial meniscus": 1, "tibial cartilage": 3, "patella": 9}


def label_mask():
    array = np.zeros((8, 9, 5), np.uint8)
    array[1:3, 4:6, 2:4] = 1
    array[5, 5, 4] = 3
    array[7, 7, 0] = 77
    return array


def test_labels_structures_and_boxes():
    mask = KneeVolume(None, gzip_bytes(label_mask()), mask=True, labels=NAMES)
    assert mask.labels() == {1: "medial meniscus", 3: "tibial cartilage", 77: 77}
    assert mask.structure("medial_Meniscus").sum() == 8
    assert mask.structure(77).sum() == 1
    assert mask.structure_box("medial meniscus") == [2, 3, 1, 2, 4, 5]
    assert mask.structure_box("patella") is None
    assert mask.oriented("RAS").structure_box(3) == mask.oriented("RAS").oriented_box(mask.structure_box(3))
    with pytest.raises(OptionError, match=r"unknown structure 'fibula'.*medial meniscus"):
        mask.structure("fibula")
    with pytest.raises(OptionError, match="not a mask"):
        KneeVolume(None, gzip_bytes(label_mask())).labels()
    for number in (np.uint8(77), np.int64(77)):
        np.testing.assert_array_equal(mask.structure(number), mask.structure(77))
    for nothing in (77.0, None, ["medial meniscus"]):
        with pytest.raises(OptionError, match="a name or a whole number, not"):
            mask.structure(nothing)


def test_paths_and_buffers_of_any_kind(tmp_path):
    path = write(tmp_path / "a.nii.gz", voxels())
    volume = KneeVolume(path, label="row 1")
    assert volume.storage == {"bytes": None, "path": str(path)}
    np.testing.assert_array_equal(volume.array(), slice_first(voxels()))
    for kind in (bytes, bytearray, memoryview):
        volume = KneeVolume(None, kind(path.read_bytes()))
        np.testing.assert_array_equal(volume.array(), slice_first(voxels()))
        assert type(pickle.loads(pickle.dumps(volume)).storage["bytes"]) is bytes
    for wrong in ((path.read_bytes(),), (3,), (None, "text"), (None, 3), (None, [1, 2]), (None, None)):
        with pytest.raises(OptionError, match=r"of a volume cannot be|needs a path or bytes"):
            KneeVolume(*wrong)


@pytest.mark.parametrize("kind", TYPES)
def test_masks_are_small_unsigned_integers_whatever_the_stored_type(kind):
    mask = KneeVolume(None, gzip_bytes(label_mask().astype(kind)), mask=True)
    assert mask.array().dtype == np.uint8
    np.testing.assert_array_equal(mask.array(), slice_first(label_mask()))
    wide = label_mask().astype("u2")
    wide[0, 0, 0] = 300
    assert KneeVolume(None, gzip_bytes(wide), mask=True).array().dtype == np.uint16


def test_mask_saved_through_a_slope_is_rounded_not_cut():
    labels = np.arange(4, dtype=np.float64).repeat(90).reshape(8, 9, 5)
    made = nibabel.Nifti1Image(labels, PIR)
    made.header.set_data_dtype(np.int16)
    data = made.to_bytes()
    decoded = nibabel.Nifti1Image.from_bytes(data).get_fdata()
    assert (decoded.astype(np.uint8) != labels).any()  # what a plain cast loses
    np.testing.assert_array_equal(KneeVolume(None, data, mask=True).array(), slice_first(labels))


@pytest.mark.parametrize("wrong", [0.5, 2.02, np.nan, np.inf, -1.0])
def test_voxels_that_are_no_labels_are_refused(wrong):
    array = label_mask().astype("f4")
    array[0, 0, 0] = wrong
    with pytest.raises(VolumeFormatError, match="row 8: a mask holds"):
        KneeVolume(None, plain_bytes(array), mask=True, label="row 8").array()


# --- cost ---------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch):
    """Bytes read from files, in order, by whoever opens them."""
    counted = []
    original = builtins.open

    class Counting:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, size=-1):
            part = self.file.read(size)
            counted.append(len(part))
            return part

        def readinto(self, buffer):
            count = self.file.readinto(buffer)
            counted.append(count)
            return count

    monkeypatch.setattr(
        "builtins.open",
        lambda *a, **k: Counting(original(*a, **k)) if ".nii" in str(a[0]) else original(*a, **k),
    )
    return counted


def test_what_each_touch_reads(tmp_path, reads):
    path = tmp_path / "a.nii.gz"
    data = gzip_bytes(voxels((64, 64, 64)))
    path.write_bytes(data)
    volume = KneeVolume(str(path))
    repr(volume), volume.path, pickle.dumps(volume), volume.oriented("RAS"), volume.storage
    assert reads == []
    volume.header, volume.shape, volume.affine, volume.spacing, volume.axcodes, volume.oriented("RAS").shape
    assert reads == [4096]
    del reads[:]
    volume.array(), volume.crop([0, 1, 0, 1, 0, 1]), KneeVolume(str(path)).array()
    assert sum(reads) == len(data)
    del reads[:]
    volume_cache().clear()
    volume.crop([0, 9, 0, 63, 0, 63], whole=False)
    assert sum(reads) < len(data) / 3
    volume.crop([0, 8, 0, 1, 0, 1], whole=False)
    assert sum(reads) < len(data) / 3
    volume.array()
    assert sum(reads) > len(data)
    assert volume_cache().nbytes == volume.array().nbytes


def test_header_of_a_url_is_one_small_range(monkeypatch):
    data = gzip_bytes(voxels((32, 32, 32)))
    with fsspec.open("memory://volumes/a.nii.gz", "wb") as file:
        file.write(data)
    filesystem = fsspec.filesystem("memory")
    asked = []
    original = type(filesystem).cat_file

    def cat_file(self, path, start=None, end=None, **options):
        asked.append((start, end))
        return original(self, path, start=start, end=end, **options)

    monkeypatch.setattr(type(filesystem), "cat_file", cat_file)
    volume = KneeVolume("memory://volumes/a.nii.gz")
    assert volume.shape == (32, 32, 32)
    assert asked == [(0, 4096)]
    np.testing.assert_array_equal(volume.array(), slice_first(voxels((32, 32, 32))))
    assert asked == [(0, 4096), (None, None)]


def test_pickle_carries_no_voxels_and_works_elsewhere(tmp_path):
    path = write(tmp_path / "a.nii.gz", voxels((64, 64, 64)))
    volume = KneeVolume(str(path), mask=False, label="row 1").oriented("RAS")
    expected = volume.array().copy()
    data = pickle.dumps(volume)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert (again.label, again.axcodes) == ("row 1", "RAS")
    np.testing.assert_array_equal(again.array(), expected)


def test_header_with_a_long_gzip_name_is_still_found():
    import io

    out = io.BytesIO()
    with gzip.GzipFile("x" * 9000, "wb", fileobj=out) as file:
        file.write(plain_bytes(voxels()))
    assert KneeVolume(None, out.getvalue()).shape == (5, 8, 9)


def test_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "a.nii", voxels(seed=1))
    volume = KneeVolume(str(path))
    np.testing.assert_array_equal(volume.array(), slice_first(voxels(seed=1)))
    write(path, voxels(seed=2))
    os.utime(path, ns=(1, 1))  # the clock of the file system may be coarser than this test is fast
    np.testing.assert_array_equal(volume.array(), slice_first(voxels(seed=2)))


def test_nifti_is_the_file_as_stored(tmp_path):
    for second in (False, True):
        path = write(tmp_path / f"{second}.nii.gz", voxels(), second=second)
        volume = KneeVolume(str(path))
        kind = nibabel.Nifti2Image if second else nibabel.Nifti1Image
        assert isinstance(volume.nifti, kind)
        np.testing.assert_array_equal(np.asanyarray(volume.nifti.dataobj), voxels())
        np.testing.assert_array_equal(volume.nifti.affine, volume.header.affine)


def test_a_volume_needs_a_source():
    with pytest.raises(OptionError):
        KneeVolume(None)


def test_paths_may_be_file_urls(tmp_path):
    path = write(tmp_path / "a.nii.gz", voxels())
    np.testing.assert_array_equal(KneeVolume(Path(path).as_uri()).array(), slice_first(voxels()))
