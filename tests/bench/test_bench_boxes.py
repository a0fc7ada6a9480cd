"""IoU under both end conventions, declared and undeclared scales and orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.bench import BoxConvention, iou
from reasonknee_hf.bench.box_geometry import centre_distance, problems, suspicions
from reasonknee_hf.errors import OptionError

ENDS = st.sampled_from(["inclusive", "continuous"])
SIDE = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(sorted)
SMALL = st.tuples(SIDE, SIDE, SIDE).map(lambda sides: [end for side in sides for end in side])
NUMBER = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 400).map(float)
ANY = st.lists(NUMBER, min_size=6, max_size=6)


def voxels(box):
    grid = np.zeros((12, 12, 12), bool)
    grid[box[0] : box[1] + 1, box[2] : box[3] + 1, box[4] : box[5] + 1] = True
    return grid


def test_the_two_conventions_differ_as_published():
    truth, answer = [10, 20, 10, 20, 10, 20], [15, 25, 10, 20, 10, 20]
    assert iou(truth, answer, "continuous") == pytest.approx(1 / 3)
    assert iou(truth, answer, "inclusive") == pytest.approx(0.375)


def test_one_voxel_is_a_box_with_inclusive_ends_and_empty_with_continuous_ones():
    voxel = [5, 5, 6, 6, 7, 7]
    assert iou(voxel, voxel, "inclusive") == 1
    assert iou(voxel, voxel, "continuous") == 0
    assert problems(np.array([voxel], float), "continuous").tolist() == ["empty"]


@settings(deadline=None)
@given(SMALL, SMALL)
def test_inclusive_iou_counts_voxels(a, b):
    first, second = voxels(a), voxels(b)
    assert iou(a, b) == pytest.approx((first & second).sum() / (first | second).sum(), abs=1e-12)


@settings(deadline=None)
@given(ANY, ANY, ENDS)
def test_iou_is_symmetric_and_bounded(a, b, ends):
    value = iou(a, b, ends)
    assert value == iou(b, a, ends)
    assert 0 <= value <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)), min_size=3, max_size=3), ENDS)
def test_iou_with_itself_is_one(sides, ends):
    box = [end for low, length in sides for end in (low, low + length)]
    assert iou(box, box, ends) == pytest.approx(1)


@settings(deadline=None)
@given(st.lists(st.tuples(SMALL, SMALL), max_size=8), ENDS)
def test_many_boxes_at_once_are_the_same_as_one_by_one(pairs, ends):
    a, b = np.array([p[0] for p in pairs]).reshape(-1, 6), np.array([p[1] for p in pairs]).reshape(-1, 6)
    assert iou(a, b, ends).tolist() == [float(iou(x, y, ends)) for x, y in pairs]


@pytest.mark.parametrize(
    ("box", "problem"),
    [
        ([1, 2, 3, 4, 5, 6], ""),
        ([2, 1, 3, 4, 5, 6], "reversed"),
        ([1, 2, 3, 4, 6, 5], "reversed"),
        ([np.nan, 2, 3, 4, 5, 6], "not_finite"),
        ([1, np.inf, 3, 4, 5, 6], "not_finite"),
        ([1, 1e10, 3, 4, 5, 6], "not_finite"),
    ],
)
def test_bad_boxes_are_named_and_score_zero(box, problem):
    assert problems(np.array([box], float), "inclusive").tolist() == [problem]
    assert iou(box, box) == (1 if problem == "" else 0)


def test_a_box_partly_outside_the_volume_is_scored_as_it_is():
    assert iou([0, 9, 0, 9, 0, 9], [-10, 9, 0, 9, 0, 9]) == 0.5


@settings(deadline=None)
@given(SMALL, st.permutations("ssxxyy").map("".join))
def test_any_declared_order_is_undone(box, order):
    places = {letter: iter((2 * axis, 2 * axis + 1)) for axis, letter in enumerate("sxy")}
    answered = [float(box[next(places[letter])]) for letter in order]
    assert BoxConvention(order=order).to_voxels(np.array([answered])).tolist() == [box]


@pytest.mark.parametrize("grid", [(1, 1, 1), (1000, 1000, 1000), (32, 224, 224)])
def test_a_declared_grid_is_undone(grid):
    shape = (160, 384, 384)
    box = np.array([[80.0, 96, 120, 180, 96, 192]])
    answered = box * np.repeat(np.divide(grid, shape), 2)
    assert BoxConvention(grid=grid, shape=shape).to_voxels(answered) == pytest.approx(box)


@pytest.mark.parametrize(
    "options",
    [
        {"ends": "open"},
        {"order": "ssxxyz"},
        {"order": "sxy"},
        {"grid": (1, 1, 1)},
        {"grid": (0, 1, 1), "shape": (160, 384, 384)},
    ],
)
def test_an_unknown_convention_is_refused(options):
    with pytest.raises(OptionError):
        BoxConvention(**options)


def _reference(count=40):
    chance = np.random.default_rng(3)
    low = chance.integers([20, 80, 80], [90, 250, 250], (count, 3))
    high = low + chance.integers(10, 60, (count, 3))
    return np.stack([low, high], axis=2).reshape(count, 6).astype(float)


def test_right_boxes_raise_no_suspicion():
    reference = _reference()
    noise = np.random.default_rng(4).integers(-4, 5, reference.shape)
    assert suspicions(reference + noise, reference, BoxConvention()) == []


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        (lambda box: box / np.repeat([160, 384, 384], 2), "fractions"),
        (lambda box: box * np.repeat([1000 / 160, 1000 / 384, 1000 / 384], 2), "another grid"),
        (lambda box: box * np.repeat([1, 224 / 384, 224 / 384], 2), "another grid"),
        (lambda box: box[:, [0, 2, 4, 1, 3, 5]], "order sxysxy"),
        (lambda box: box[:, [0, 1, 4, 5, 2, 3]], "order ssyyxx"),
        (lambda box: box[:, [4, 2, 0, 5, 3, 1]], "order yxsyxs"),
        (lambda box: box - 60, "outside the volume"),
    ],
)
def test_another_scale_or_order_is_warned_of_and_not_corrected(answered, words):
    reference = _reference()
    boxes = answered(reference)
    before = boxes.copy()
    warnings = suspicions(boxes, reference, BoxConvention())
    assert any(words in warning for warning in warnings), warnings
    assert (boxes == before).all()


@pytest.mark.parametrize(
    ("answered", "convention"),
    [
        (
            lambda box: box / np.repeat([160, 384, 384], 2),
            BoxConvention(grid=(1, 1, 1), shape=(160, 384, 384)),
        ),
        (lambda box: box[:, [0, 2, 4, 1, 3, 5]], BoxConvention(order="sxysxy")),
    ],
)
def test_the_declared_convention_raises_no_suspicion(answered, convention):
    reference = _reference()
    assert suspicions(answered(reference), reference, convention) == []
    assert iou(convention.to_voxels(answered(reference)), reference) == pytest.approx(np.ones(len(reference)))


def test_centre_distance_is_in_millimetres():
    a, b = np.array([[0.0, 10, 0, 10, 0, 10]]), np.array([[10.0, 20, 0, 10, 0, 10]])
    assert centre_distance(a, b, (0.7, 0.3646, 0.3646)) == pytest.approx([7.0])
