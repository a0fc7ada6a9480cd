"""A mirrored knee is a knee of the other side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from test_volumes_boxes import shapes_and_boxes

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.augment import mirror


@given(shapes_and_boxes())
def test_region_moves_with_its_box_and_comes_back(case):
    shape, box = case
    array = np.arange(np.prod(shape)).reshape(shape)
    once = mirror(array, mask=array, box=box, side="right", text="right")
    region = array[boxes.box_slices(box)]
    np.testing.assert_array_equal(once.array[boxes.box_slices(once.box)], region[::-1])
    np.testing.assert_array_equal(once.mask, once.array)
    twice = mirror(once.array, box=once.box, side=once.side, text=once.text)
    np.testing.assert_array_equal(twice.array, array)
    assert (twice.box, twice.side, twice.text) == (box, "right", "right")


def test_side_and_words_change_and_medial_stays():
    array = np.zeros((3, 2, 2))
    got = mirror(array, side=1, text="Left knee: RIGHT of the medial meniscus, upright, left")
    assert got.side == 0
    assert got.text == "Right knee: LEFT of the medial meniscus, upright, right"
    bare = mirror(array)
    assert (bare.side, bare.text, bare.box, bare.mask) == (None, None, None, None)


def test_wrong_side_and_box_are_errors():
    with pytest.raises(OptionError, match="'right' or 'left'"):
        mirror(np.zeros((2, 2, 2)), side="medial")
    with pytest.raises(RecordError):
        mirror(np.zeros((2, 2, 2)), box=[0, 2, 0, 1, 0, 1])
