"""Boxes stay on the right anatomy in every order that a file may have: the same voxels, or one error."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetInfo
from test_volumes_boxes import ALL_CODES
from volume_files import gzip_bytes, write

from reasonknee_hf.errors import GridMismatchError, VolumeFormatError
from reasonknee_hf.knee.description import row_features
from reasonknee_hf.knee.layout import BOX_AXES
from reasonknee_hf.look.page import case_page
from reasonknee_hf.look.planes import scene
from reasonknee_hf.prompting.chats import make_style, row_view
from reasonknee_hf.prompting.recipes import RECIPES
from reasonknee_hf.publish.derived import crop_file
from reasonknee_hf.volumes.boxes import box_slices
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.orientation import axis_codes, reorder
from reasonknee_hf.volumes.volume import KneeVolume

pytestmark = pytest.mark.floor
DRAWN = [name for name in RECIPES if name != "planes" or find_spec("PIL")]
SHAPE = (40, 44, 12)  # of the mask's file: P, I, R
BOX = [3, 6, 10, 20, 22, 30]
TILT = np.array(
    [[0.05, 0.02, 0.699, -30.0], [-0.363, 0.03, 0.05, 77.0], [0.02, -0.363, 0.03, 70.0], [0, 0, 0, 1.0]]
)
"""A tilted scan, as real ones are."""


def voxels() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 400, SHAPE).astype(np.int16)


def labels() -> np.ndarray:
    array = np.zeros(SHAPE, np.uint8)
    array[10:21, 22:31, 3:7] = 5
    return array


def as_converted(codes: str) -> bytes:
    """The image in the order that another converter stores it in."""
    change = reorder(axis_codes(TILT), codes)
    return gzip_bytes(np.asfortranarray(change.array(voxels())), change.affine(TILT, SHAPE))


MASK = gzip_bytes(labels(), TILT)


def row_of(image: bytes | dict, mask: bytes | dict | None = MASK) -> dict:
    stored = {"scan_id": "s", "image": image, "mask": mask}
    wrapped = {name: {"bytes": v, "path": None} if isinstance(v, bytes) else v for name, v in stored.items()}
    return row_features("full", labels={"patella": 5}).decode_example({"id": "s_1", "bbox": BOX, **wrapped})


EXPECTED = voxels().transpose(2, 0, 1)  # slices, P, I
ORIGINAL = row_of(as_converted("PIR"))


@pytest.mark.parametrize("codes", ALL_CODES)
def test_the_same_anatomy_for_everyone_who_takes_a_box(codes: str) -> None:
    row = row_of(as_converted(codes))
    image, mask = row["image"], row["mask"]
    np.testing.assert_array_equal(image.crop(BOX), EXPECTED[box_slices(BOX)])
    np.testing.assert_array_equal(image.crop(BOX, whole=False), EXPECTED[box_slices(BOX)])
    np.testing.assert_array_equal(image.slices(3, around=BOX), EXPECTED[[3, 4, 6]])
    np.testing.assert_array_equal(image.frames(n=2, around=BOX), ORIGINAL["image"].frames(n=2, around=BOX))
    np.testing.assert_array_equal(np.asarray(image), EXPECTED)
    assert min(np.asarray(image).strides) > 0  # which torch demands
    np.testing.assert_array_equal(np.asarray(mask), labels().transpose(2, 0, 1))
    assert (image.crop(BOX).shape, (mask.crop(BOX) == 5).all(), mask.structure_box(5)) == (
        (4, 11, 9),
        True,
        BOX,
    )
    for recipe in DRAWN:  # what the collator and conversations draw
        view, wanted = (row_view(each, make_style({"view": recipe})) for each in (row, ORIGINAL))
        assert (view, view.to_view(BOX, clip=True)) == (wanted, wanted.to_view(BOX, clip=True))
        np.testing.assert_array_equal(view.draw(image), wanted.draw(ORIGINAL["image"]))
    shown, wanted = scene(image, mask, BOX), scene(ORIGINAL["image"], ORIGINAL["mask"], BOX)
    assert shown.box == wanted.box
    np.testing.assert_array_equal(shown.array, wanted.array)
    np.testing.assert_array_equal(shown.labels, wanted.labels)
    assert crop_file(image, BOX, 1.0)[1] == crop_file(ORIGINAL["image"], BOX, 1.0)[1]
    np.testing.assert_allclose(image.affine, ORIGINAL["image"].affine, atol=1e-4)


def test_the_order_of_the_mask_does_not_matter_either() -> None:
    change = reorder("PIR", "LSA")
    other = gzip_bytes(np.asfortranarray(change.array(labels())), change.affine(TILT, SHAPE))
    row = row_of(as_converted("RAS"), other)
    np.testing.assert_array_equal(row["image"].crop(BOX), EXPECTED[box_slices(BOX)])
    assert row["mask"].structure_box(5) == BOX


@pytest.mark.parametrize("codes", ["PIR", "RAS", "LAS", "PSR", "LIP"])
def test_without_a_mask_axis_codes_decide(codes: str) -> None:
    for mask in (None, {"bytes": None, "path": "/nowhere/mask.nii.gz"}):
        np.testing.assert_array_equal(
            row_of(as_converted(codes), mask)["image"].crop(BOX), EXPECTED[box_slices(BOX)]
        )


def test_a_mask_that_cannot_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mask.nii.gz").write_bytes(b"no mask at all")
    for _ in range(2):
        row = row_of(as_converted("RAS"), {"bytes": None, "path": str(tmp_path / "mask.nii.gz")})
        np.testing.assert_array_equal(row["image"].crop(BOX), EXPECTED[box_slices(BOX)])
    assert [record.message.count("axis codes alone") for record in caplog.records] == [1]


BROKEN = ("elsewhere", "shifted", "resampled", "straightened", "identity", "identity of ITK", "none")
USERS = {
    "crop": lambda row: row["image"].crop(BOX),
    "slices": lambda row: row["image"].slices(2, around=BOX),
    "frames": lambda row: row["image"].frames(around=BOX),
    "array": lambda row: np.asarray(row["image"]),
    "view": lambda row: row_view(row, make_style({"view": "upstream"})),
    "scene": lambda row: scene(row["image"], row["mask"], BOX),
    "page": lambda row: case_page(row["image"], mask=row["mask"], box=BOX),
}


def other_grid(kind: str) -> tuple[bytes, str]:
    affine, array = TILT.copy(), voxels()
    if kind == "elsewhere":
        affine[:3, 3] += 500
    elif kind == "shifted":
        affine[:3, 3] += affine[:3, 0]
    elif kind == "resampled":
        affine[:3, :2] *= 2
        array = array[::2, ::2]
    elif kind == "straightened":  # an oblique scan that was resampled to the axes of the room
        affine = np.array([[0, 0, 0.7, -30.0], [-0.3646, 0, 0, 77], [0, -0.3646, 0, 70], [0, 0, 0, 1]])
    elif kind in ("identity", "identity of ITK"):
        affine = np.diag([1.0, 1, 1, 1]) if kind == "identity" else np.diag([-1.0, -1, 1, 1])
        return gzip_bytes(array, affine), "identity affine"
    elif kind == "none":
        return gzip_bytes(array, None), "neither qform nor sform"
    return gzip_bytes(array, affine), "lies (elsewhere|in the space of its image)"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_carried_over_is_one_error(kind: str, user: str) -> None:
    if user == "page":
        pytest.importorskip("PIL")
    data, words = other_grid(kind)
    with pytest.raises(GridMismatchError, match=rf"^s_1.*{words}"):
        USERS[user](row_of(data))


@pytest.mark.parametrize("kind", ["identity", "none"])
def test_who_knows_the_order_of_a_file_that_lost_it_can_say_so(kind: str) -> None:
    data, _ = other_grid(kind)
    for mask in (None, gzip_bytes(labels(), TILT)):
        with pytest.raises(GridMismatchError, match=r"\.assume\('PIR'\)"):
            row_of(data, mask)["image"].crop(BOX)
        row = row_of(data, mask)
        assumed = row["image"].assume("PIR")
        np.testing.assert_array_equal(assumed.crop(BOX), EXPECTED[box_slices(BOX)])
    with pytest.raises(GridMismatchError):  # not even the shape is that of the mask
        row["image"].assume("PRI").crop([0, 1, 0, 1, 0, 1])


def test_a_volume_of_no_row_keeps_the_order_of_its_file() -> None:
    volume = KneeVolume(None, as_converted("LAS"))
    assert (volume.axcodes, volume.shape) == ("LAS", (12, 40, 44))
    assert KneeVolume(None, other_grid("identity")[0]).axcodes == "RAS"
    with pytest.raises(VolumeFormatError):
        KneeVolume(None, other_grid("none")[0]).array()


@pytest.mark.parametrize("style", ["map", "stream"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_formats_give_image_and_mask_in_one_order(kind: str, style: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")

    def formatted(image: bytes) -> dict:
        stored = dict.fromkeys(row_features("scans")) | {"image": image, "mask": gzip_bytes(labels(), TILT)}
        features = row_features("scans")
        data = Dataset(Dataset.from_list([stored], features=features).data, DatasetInfo(features=features))
        return next(iter((data if style == "map" else data.to_iterable_dataset()).with_format(kind)))

    row = formatted(as_converted("RAS"))
    np.testing.assert_array_equal(np.asarray(row["image"]), EXPECTED)
    np.testing.assert_array_equal(np.asarray(row["mask"]), labels().transpose(2, 0, 1))
    with pytest.raises(GridMismatchError):
        formatted(other_grid("shifted")[0])


def test_pickled_rows_and_columns_keep_the_grid(tmp_path: Path) -> None:
    path = tmp_path / "a.nii.gz"
    path.write_bytes(as_converted("RAS"))
    row = pickle.loads(pickle.dumps(row_of({"bytes": None, "path": str(path)})))
    np.testing.assert_array_equal(row["image"].crop(BOX), EXPECTED[box_slices(BOX)])
    assert row["image"].grid_mask is row["mask"]
    feature = pickle.loads(pickle.dumps(row_features("full")))["image"]
    assert (feature.axes, feature == VolumeFeature(axes=BOX_AXES), feature == VolumeFeature()) == (
        "PIR",
        True,
        False,
    )
    assert "axes" not in row_features("full").to_dict()["image"]


def test_headers_of_masks_are_read_once_for_all_rows_of_a_scan(tmp_path: Path, monkeypatch) -> None:
    from reasonknee_hf.volumes import decode

    read = []
    original = decode.load_header
    monkeypatch.setattr(
        decode, "load_header", lambda path, data=None: read.append(path) or original(path, data)
    )
    mask = write(tmp_path / "mask.nii.gz", labels(), TILT)
    for _ in range(5):
        row_of(as_converted("RAS"), {"bytes": None, "path": str(mask)})["image"].crop(BOX)
    assert read.count(str(mask)) == 1
