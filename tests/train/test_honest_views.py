"""A model that is asked where something lies is not told by the size and place of what it sees."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reasonknee_hf.bench import iou
from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.prompting.chats import conversation, make_style, row_view
from reasonknee_hf.prompting.recipes import RECIPES, get_recipe, plan_view
from reasonknee_hf.train.trainer_stream import EpochRow

SHAPE = (160, 384, 384)


@pytest.fixture
def row(by_question):
    return by_question[16]


STYLES = [
    {"view": view, "target": target, "setting": setting}
    for view in ("region", "eight")
    for target in ("box_grades", "think_box", None)
    for setting in ("zero_shot", "instruction")
]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: "-".join(map(str, style.values())))
def test_a_view_cut_around_the_truth_is_refused_where_the_truth_is_asked_for(style):
    with pytest.raises(OptionError, match=r"cut around the true box.*jitter.*regions=.*gt_region"):
        make_style(style)
    make_style(style | {"setting": "gt_region"})
    make_style(style | {"regions": {}})
    if style["target"] is not None:
        make_style(style | {"target": "grades"})


def test_planes_meet_in_the_middle_of_the_volume_where_the_box_is_asked_for(row):
    asked = row_view(row, make_style({"view": "planes", "target": "box_grades"}))
    assert asked.centre == tuple(length // 2 for length in row["image"].shape)
    told = row_view(
        row,
        make_style({"view": "planes", "target": "box_grades", "setting": "gt_region", "region_as": "text"}),
    )
    assert told.centre != asked.centre


def test_the_place_of_a_crop_stands_in_the_prompt(row):
    chat = conversation(row, view="jitter", target="box_grades")
    view = row_view(row, make_style({"view": "jitter", "target": "box_grades"}))
    shown = [end for axis in range(3) for end in dict(view._axes)[axis].shown]
    assert str(shown) in chat[0]["content"][-1]["text"]
    assert all(
        low <= start and end <= high
        for low, high, start, end in zip(
            shown[::2], shown[1::2], row["bbox"][::2], row["bbox"][1::2], strict=True
        )
    )


def test_a_crop_is_drawn_anew_by_row_epoch_and_seed_and_by_nothing_else(row):
    def crop(row, **options):
        return row_view(row, make_style({"view": "jitter", "target": "box_grades", **options}))

    later = EpochRow(row)
    later.epoch = 3
    other = {**row, "id": "another"}
    assert crop(row) == crop(dict(row))
    assert len({repr(crop(row)), repr(crop(later)), repr(crop(other)), repr(crop(row, seed=1))}) == 4


def test_views_are_made_around_what_was_proposed(row, tmp_path):
    box = [2, 5, 4, 20, 6, 22]
    file = tmp_path / "proposals.jsonl"
    file.write_text(json.dumps({"id": row["id"], "bbox": box}) + "\n")
    style = make_style(
        {"view": get_recipe("region", margin_mm=0, multiple=1), "target": None, "regions": file}
    )
    view = row_view(row, style)
    assert view.frames.shown == (2, 5)
    with pytest.raises(RecordError, match="no box"):
        row_view({**row, "id": "another"}, style)
    file.write_text('{"id": "a", "bbox": [1, 2, 3]}\n')
    with pytest.raises(PredictionError, match=r"line 1: row a has a box of 3 numbers"):
        make_style({"view": "region", "regions": file})


def knee_boxes(random, count):
    """Boxes as they lie in knees: each structure around a place of its own, off the middle, with its own spread."""
    places = random.uniform([0.15, 0.25, 0.2], [0.85, 0.75, 0.8], (31, 3))
    sizes = random.uniform([0.04, 0.06, 0.06], [0.25, 0.3, 0.3], (31, 3))
    for number in range(count):
        which = number % 31
        size = np.maximum(sizes[which] * random.uniform(0.7, 1.3, 3) * SHAPE, 2).astype(int)
        start = places[which] * SHAPE - size / 2 + random.normal(0, 0.03, 3) * SHAPE
        start = np.clip(start, 0, np.array(SHAPE) - size).astype(int)
        yield (
            which,
            [int(end) for low, long in zip(start, size, strict=True) for end in (low, low + long - 1)],
        )


def blind_gain(recipe, asks_by_structure):
    """IoU of the best linear guess from size and place of the frames, less that of a constant box."""
    random = np.random.default_rng(0)
    found = [
        (which, box, plan_view(recipe, SHAPE, region=box, draw=str(number)))
        for number, (which, box) in enumerate(knee_boxes(random, 3100))
    ]
    truth = np.array([box for _, box, _ in found], float)
    seen = np.array(
        [[1.0, *(e for axis in range(3) for e in dict(v._axes)[axis].shown)] for _, _, v in found]
    )
    groups = np.array([which if asks_by_structure else 0 for which, _, _ in found])
    train = np.arange(len(found)) % 2 == 0
    gains = []
    for group in np.unique(groups):
        learnt, asked = (groups == group) & train, (groups == group) & ~train
        weights = np.linalg.lstsq(seen[learnt], truth[learnt], rcond=None)[0]
        constant = np.median(truth[learnt], axis=0)
        for guess, box in zip(
            np.sort((seen[asked] @ weights).reshape(-1, 3, 2), axis=2), truth[asked], strict=True
        ):
            gains.append(iou([*guess.ravel()], [*box]) - iou([*constant], [*box]))
    return float(np.mean(gains))


@pytest.mark.parametrize("by_structure", [False, True])
def test_a_blind_predictor_gains_nothing_from_size_and_place(by_structure):
    assert blind_gain(RECIPES["jitter"], by_structure) <= 0.02


def test_the_test_sees_what_the_frames_of_the_region_tell():
    assert blind_gain(get_recipe("region", margin_mm=5), False) > 0.3
