"""Volume, mask, box and words change together, whichever library changes them; what would become untrue is refused."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.chats import conversation
from reasonknee_hf.train.augment import Augment
from reasonknee_hf.volumes.boxes import box_of, box_slices
from reasonknee_hf.volumes.volume import KneeVolume

KEYS = ["image", "mask", "box"]
BOX = [8, 15, 20, 44, 26, 40]
SHAPE = (24, 64, 56)
TEXT = 'The right knee, RIGHT: a lesion left of the notch. {"bounding_box": [8, 15,20, 44, 26, 40]}'


@pytest.fixture
def row() -> dict:
    """A knee whose label 5 fills the box, and is bright in the image."""
    import nibabel

    labels = np.zeros(SHAPE, np.uint8)
    labels[box_slices(BOX)] = 5
    grey = np.random.default_rng(0).integers(0, 60, SHAPE).astype(np.int16) + 300 * (labels == 5).astype(
        np.int16
    )
    # right, back, feet, tilted a little
    affine = np.array([[0.7, 0.03, 0, 1], [0.03, -0.5, 0, 2], [0, 0, -0.5, 3], [0, 0, 0, 1]])
    image, mask = (
        KneeVolume(
            None, nibabel.Nifti1Image(array, affine).to_bytes(), mask=is_mask, axes="PIR", labels={"x": 5}
        )
        for array, is_mask in ((grey, False), (labels, True))
    )
    image.grid_mask = mask
    texts = {"prompt": "Grade it.", "cot": TEXT, "answer": TEXT, "final_diagnosis": '{"bounding_box": null}'}
    return {"id": "a_1", "knee_side": 0, "image": image, "mask": mask, "bbox": BOX, **texts}


def monai(name: str, **options):
    transforms = pytest.importorskip("monai.transforms")
    return getattr(transforms, name)(keys=KEYS, **options)


def torchio(name: str, *args, **options):
    return getattr(pytest.importorskip("torchio"), name)(*args, **options)


MODES = ["bilinear", "nearest", "nearest"]
FLIPS = {
    "monai": lambda: monai("Flipd", spatial_axis=0),
    "torchio": lambda: torchio("RandomFlip", axes=("LR",), flip_probability=1),
}
TURNS = {
    "monai crop": lambda: monai("SpatialCropd", roi_start=[4, 10, 10], roi_end=[20, 60, 50]),
    "monai zoom": lambda: monai("Zoomd", zoom=1.3, mode=["trilinear", "nearest", "nearest"]),
    "monai rotate": lambda: monai("Rotated", angle=[0.2, 0, 0], mode=MODES),
    "monai affine": lambda: monai(
        "RandAffined", prob=1, rotate_range=0.2, scale_range=0.1, mode=MODES
    ).set_random_state(4),
    "torchio crop": lambda: torchio("Crop", (2, 2, 6, 6, 4, 4)),
    "torchio affine": lambda: torchio(
        "RandomAffine", scales=(1.2, 1.2), degrees=(10, 10, 0, 0, 0, 0), translation=0
    ),
}


@pytest.mark.parametrize("library", FLIPS)
def test_a_mirror_image_is_a_knee_of_the_other_side(library: str, row: dict) -> None:
    changed = Augment(FLIPS[library]())(row)
    np.testing.assert_array_equal(changed["image"].array(), row["image"].array()[::-1])
    np.testing.assert_array_equal(changed["mask"].array(), row["mask"].array()[::-1])
    assert changed["bbox"] == [8, 15, *BOX[2:]] == changed["mask"].structure_box("x")
    assert (changed["knee_side"], changed["id"]) == (1, "a_1")
    assert changed["cot"] == TEXT.replace("right", "LEFT?").replace("left", "right").replace(
        "RIGHT", "LEFT"
    ).replace("LEFT?", "left").replace("[8, 15,20, 44, 26, 40]", "[8, 15, 20, 44, 26, 40]")
    assert (changed["prompt"], changed["final_diagnosis"]) == ("Grade it.", row["final_diagnosis"])
    assert (changed["image"].axcodes, changed["image"].array().dtype) == ("RPI", np.int16)
    again = Augment(FLIPS[library]())(changed)
    np.testing.assert_array_equal(again["image"].array(), row["image"].array())
    assert {**again, "image": 0, "mask": 0} == {**row, "image": 0, "mask": 0} | {
        "cot": again["cot"],
        "answer": again["answer"],
    }
    assert row["bbox"] == BOX  # the row that was given is left alone


@pytest.mark.parametrize("kind", TURNS)
def test_box_mask_and_numbers_in_texts_go_where_the_voxels_go(kind: str, row: dict) -> None:
    changed = Augment(TURNS[kind]())(row)
    box = changed["bbox"]
    assert box != BOX
    assert box == changed["mask"].structure_box(5) == box_of(changed["mask"].array() == 5)
    bright = changed["image"].array() > 150
    assert bright[changed["mask"].array() == 5].mean() > 0.9
    assert bright[changed["mask"].array() != 5].mean() < 0.05
    assert str(box) in changed["cot"]
    assert re.findall(r"\[.*\]", changed["answer"]) == [str(box)]
    assert (changed["knee_side"], changed["cot"][:9]) == (0, "The right")
    np.testing.assert_array_equal(changed["image"].crop(box), changed["image"].array()[box_slices(box)])


def test_grey_values_alone_change_no_box_and_no_word(row: dict) -> None:
    transforms = pytest.importorskip("monai.transforms")
    changed = Augment(transforms.RandGaussianNoised(keys=["image"], prob=1, std=10, sample_std=False))(row)
    assert {name: changed[name] for name in ("bbox", "cot", "knee_side")} == {
        name: row[name] for name in ("bbox", "cot", "knee_side")
    }
    assert (changed["image"].array() != row["image"].array()).mean() > 0.5


@pytest.mark.parametrize("library", FLIPS)
def test_rows_without_mask_or_box(library: str, row: dict) -> None:
    del row["mask"]
    row["image"].grid_mask = None
    assert Augment(FLIPS[library]())(row)["bbox"] == [8, 15, *BOX[2:]]
    changed = Augment(FLIPS[library]())(row | {"bbox": None, "cot": None, "answer": ""})
    assert (changed["bbox"], changed["cot"], changed["knee_side"]) == (None, None, 1)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda: monai("Flipd", spatial_axis=1), "back to front"),
        (lambda: monai("Flipd", spatial_axis=[0, 2]), "upside"),
        (lambda: monai("Rotate90d", k=1, spatial_axes=(1, 2)), "exchanges axes"),
        (lambda: torchio("RandomFlip", axes=("SI",), flip_probability=1), "upside"),
        (lambda: monai("Rotated", angle=[0.2, 0, 0], mode="bilinear"), "mode 'nearest'"),
    ],
)
def test_what_makes_no_knee_is_refused(transform, words: str, row: dict) -> None:
    with pytest.raises(OptionError, match=words):
        Augment(transform())(row)


def test_transforms_that_leave_something_behind_are_refused() -> None:
    transforms = pytest.importorskip("monai.transforms")
    with pytest.raises(OptionError, match=r"Flipd needs keys=\['image', 'mask', 'box'\]"):
        Augment(transforms.Compose([transforms.Flipd(keys=["image"], spatial_axis=0)]))
    with pytest.raises(OptionError, match="no transform of monai or torchio"):
        Augment(np.flip)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing of it is left", "says 'is left'"),
        ("bone right below the cartilage", "says 'right below'"),
        ("a lesion on slices 12 to 14", "names slices by number"),
        ('{"bounding_box": [1, 2, 3, 4, 5, 6]}', "tells another box"),
    ],
)
@pytest.mark.parametrize("library", FLIPS)
def test_words_that_cannot_follow_refuse_the_change(library: str, text: str, words: str, row: dict) -> None:
    with pytest.raises(RecordError, match=rf"^Row a_1: after 3 tries, its cot.*{words}"):
        Augment(FLIPS[library](), tries=3)(row | {"cot": text, "bbox": [7, 15, *BOX[2:]]})


def test_a_cut_box_is_drawn_again_and_refused_at_last(row: dict) -> None:
    with pytest.raises(RecordError, match="after 10 tries, the transform cuts the box"):
        Augment(monai("SpatialCropd", roi_start=[10, 0, 0], roi_end=[24, 64, 56]))(row)
    crop = monai("RandSpatialCropd", roi_size=[14, 40, 30], random_size=False)
    crop.set_random_state(0)
    for _ in range(5):
        changed = Augment(crop, tries=200)(row)
        assert changed["mask"].structure_box(5) == changed["bbox"]
        assert (changed["mask"].array() == 5).sum() == (row["mask"].array() == 5).sum()
    # a box that ends where the volume is cut is whole
    exact = Augment(monai("SpatialCropd", roi_start=[8, 0, 0], roi_end=[16, 64, 56]))(row)
    assert exact["bbox"] == [0, 7, *BOX[2:]]


def test_the_sample_is_augmented_and_told(rows: list[dict]) -> None:
    flip = pickle.loads(pickle.dumps(Augment(FLIPS["monai"]())))
    row = next(row for row in rows if row["bbox"] and row["mask"])
    changed = flip(row)
    low, high = row["bbox"][:2]
    last = row["image"].shape[0] - 1
    assert changed["bbox"][:2] == [last - high, last - low]
    view = conversation(changed, view="upstream", target=None)[0]["content"][0]["video"]
    assert view.shape[-1] == 3


@pytest.mark.train
def test_the_collator_augments(rows: list[dict]) -> None:
    pytest.importorskip("torchio")
    pytest.importorskip("transformers")
    pytest.importorskip("trl")
    from tiny_model import tiny_processor

    from reasonknee_hf.prompting.recipes import get_recipe
    from reasonknee_hf.train.collator import Collator

    row = next(row for row in rows if row["bbox"] and row["question_id"] == 16)
    small = get_recipe("planes", size=56)
    with pytest.raises(OptionError, match="regions="):
        Collator(
            tiny_processor(),
            view=small,
            regions={row["id"]: row["bbox"]},
            augment=Augment(FLIPS["torchio"]()),
        )
    prompts = {str(number): "Grade it." for number in range(1, 70)}

    def bigger(row: dict) -> dict:
        return Augment(torchio("RandomAffine", scales=(1.1, 1.1), degrees=0))(row)

    plain, changed = (
        Collator(tiny_processor(), view=small, target="box_grades", prompts=prompts, augment=augment)([row])
        for augment in (None, bigger)
    )
    assert plain.references[0].bbox != changed.references[0].bbox
    assert (plain["pixel_values"] != changed["pixel_values"]).any()


def test_loaders_of_files_are_told_what_to_call(row):
    """They take anything that can be gone through for a list of paths, and read voxels in the order of the file."""
    transforms, torchio = pytest.importorskip("monai.transforms"), pytest.importorskip("torchio")
    import torch
    from monai.data import MetaTensor

    volume = row["image"]
    for load in (
        lambda: transforms.LoadImaged(keys=["image"])(dict(row)),
        lambda: torchio.ScalarImage(volume),
        lambda: torch.utils.data.default_collate([row, row]),
    ):
        with pytest.raises(OptionError, match=r"MetaTensor.*tensor=torch.as_tensor.*collate_fn"):
            load()
    placed = MetaTensor(torch.as_tensor(volume), affine=torch.as_tensor(volume.affine))
    image = torchio.ScalarImage(tensor=torch.as_tensor(volume)[None], affine=volume.affine)
    for voxels, affine in ((placed, placed.affine), (image.data[0], image.affine)):
        assert np.array_equal(voxels, volume.array())
        assert np.allclose(affine, volume.affine)
