"""Boxes and axis orders: all 48, ends inclusive, there and back again."""

from __future__ import annotations

from itertools import permutations, product

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.orientation import (
    affine_of_codes,
    axis_codes,
    check_codes,
    reorder,
    slice_first_codes,
)

ALL_CODES = ["".join(letters) for order in permutations(("RL", "AP", "SI")) for letters in product(*order)]


@st.composite
def shapes_and_boxes(draw):
    shape = tuple(draw(st.integers(1, 9)) for _ in range(3))
    box = []
    for length in shape:
        low = draw(st.integers(0, length - 1))
        box += [low, draw(st.integers(low, length - 1))]
    return shape, box


@st.composite
def tilted_affines(draw):
    """An affine turned by at most 30 degrees from a known axis-parallel one."""
    codes = draw(st.sampled_from(ALL_CODES))
    angles = [np.deg2rad(draw(st.floats(-17, 17))) for _ in range(3)]
    turn = np.eye(3)
    for axis, angle in enumerate(angles):
        i, j = [a for a in range(3) if a != axis]
        step = np.eye(3)
        step[i, i] = step[j, j] = np.cos(angle)
        step[i, j], step[j, i] = -np.sin(angle), np.sin(angle)
        turn = turn @ step
    zooms = tuple(draw(st.floats(0.2, 5)) for _ in range(3))
    affine = affine_of_codes(codes, zooms)
    affine[:3, :3] = turn @ affine[:3, :3]
    affine[:3, 3] = [draw(st.floats(-200, 200)) for _ in range(3)]
    return codes, affine


def test_there_are_48_axis_orders():
    assert len(set(ALL_CODES)) == 48


@given(tilted_affines())
def test_codes_of_oblique_affines_are_those_of_the_closest_order(case):
    codes, affine = case
    assert axis_codes(affine) == codes
    assert "".join(nibabel.aff2axcodes(affine)) == codes


@given(tilted_affines(), st.sampled_from(ALL_CODES), shapes_and_boxes())
def test_array_affine_and_box_move_together(case, target, shape_and_box):
    source, affine = case
    shape, box = shape_and_box
    change = reorder(source, target)
    array = np.arange(np.prod(shape)).reshape(shape)
    moved = change.array(array)
    moved_affine = change.affine(affine, shape)
    assert moved.shape == change.shape(shape)
    assert axis_codes(moved_affine) == target
    assert np.shares_memory(moved, array)
    moved_box = boxes.move_box(box, change, shape)
    region, moved_region = array[boxes.box_slices(box)], moved[boxes.box_slices(moved_box)]
    np.testing.assert_array_equal(change.array(region), moved_region)
    back = reorder(target, source)
    assert boxes.move_box(moved_box, back, moved.shape) == box
    np.testing.assert_array_equal(back.array(moved), array)
    # the voxel in the low corner of the moved box is the same voxel at the same place in the world
    at = np.array(moved_box[::2])
    [[*from_index]] = np.argwhere(array == moved[tuple(at)])
    np.testing.assert_allclose(affine @ [*from_index, 1], moved_affine @ [*at, 1], atol=1e-6)


@given(st.sampled_from(ALL_CODES))
def test_slice_first_moves_one_axis_and_flips_none(codes):
    change = reorder(codes, slice_first_codes(codes))
    assert change.flips == (False, False, False)
    assert codes[change.axes[0]] in "RL"
    assert change.axes[1] < change.axes[2]


@pytest.mark.parametrize("codes", ["", "RA", "RAR", "RASS", "XYZ"])
def test_wrong_codes_are_refused(codes):
    with pytest.raises(OptionError, match="one letter of each"):
        check_codes(codes)


@given(shapes_and_boxes())
def test_a_box_around_its_own_region_is_the_box(case):
    shape, box = case
    region = np.zeros(shape, dtype=bool)
    region[boxes.box_slices(box)] = True
    assert boxes.box_of(region) == box
    assert region.sum() == np.prod(np.subtract(box[1::2], box[::2]) + 1)
    assert region[boxes.box_center(box)]
    assert boxes.check_box(box, shape) == box
    assert boxes.clip_box(box, shape) == box


def test_no_box_around_nothing():
    assert boxes.box_of(np.zeros((2, 3, 4))) is None


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ([0, 1, 0, 1, 0], "six integers"),
        ([0, 1, 0, 1, 0, 1.5], "six integers"),
        ([0, 1, 0, 1, 0, float("nan")], r"nan\]: six integers"),
        (np.array([0, 1, 0, 1, 0, np.inf]), r"inf\]: six integers"),
        ([0, 1, 0, 1, 0, None], r"None\]: six integers"),
        ([0, 1, 0, 1, 0, "1"], "six integers"),
        (np.zeros((6, 6)), "six integers"),
        (None, "box None: six integers"),
        (3, "box 3: six integers"),
        ([2, 1, 0, 1, 0, 1], "axis 0 the end 1 lies before"),
        ([0, 1, 0, 9, 0, 1], "axis 1 0..9 leaves"),
        ([-1, 1, 0, 1, 0, 1], "axis 0 -1..1 leaves"),
    ],
)
def test_malformed_boxes_are_errors_and_never_clipped(box, words):
    with pytest.raises(RecordError, match=words):
        boxes.check_box(box, (3, 4, 5))


def test_clipping_is_only_done_on_request():
    assert boxes.clip_box([-5, 1, 2, 99, 0, 4], (3, 4, 5)) == [0, 1, 2, 3, 0, 4]
    with pytest.raises(RecordError, match="wholly outside"):
        boxes.clip_box([3, 4, 0, 1, 0, 1], (3, 4, 5))


def test_margin_is_rounded_up_to_whole_voxels_and_ends_at_the_border():
    assert boxes.grow_box([5, 6, 5, 6, 0, 1], 1.0, (0.7, 0.5, 1.0), (20, 20, 20)) == [3, 8, 3, 8, 0, 2]
