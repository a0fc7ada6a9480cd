"""Image and mask: the same grid, the same space, or neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_volumes_boxes import ALL_CODES, tilted_affines
from volume_files import PIR, gzip_bytes, voxels

from reasonknee_hf.errors import GridMismatchError, OptionError
from reasonknee_hf.volumes import grid
from reasonknee_hf.volumes.orientation import reorder
from reasonknee_hf.volumes.volume import KneeVolume

SHAPE = (18, 19, 15)


def labels(shape=SHAPE):
    array = np.zeros(shape, np.uint8)
    array[4:9, 5:8, 6:10] = 3
    array[10, 12, 11] = 7
    return array


def moved(affine, by):
    out = affine.copy()
    out[:3, 3] += affine[:3, :3] @ np.asarray(by, float)
    return out


@pytest.fixture
def picture():
    return KneeVolume(None, gzip_bytes(voxels(SHAPE), PIR))


def mask(array, affine):
    return KneeVolume(None, gzip_bytes(array, affine), mask=True, label="row 6")


def test_equal_also_with_noise_in_the_affine(picture):
    noisy = PIR + np.random.default_rng(0).normal(0, 1e-5, (4, 4)) * [[1], [1], [1], [0]]
    for affine in (PIR, noisy):
        assert mask(labels(), affine).relation_to(picture) == "equal"
        np.testing.assert_array_equal(mask(labels(), affine).array_on(picture), np.moveaxis(labels(), -1, 0))


@pytest.mark.parametrize("by", [(0, 0, 1), (1, 0, 0), (0, -1, 0)])
def test_shifted_by_one_voxel_is_moved_back(picture, by):
    shifted = mask(labels(), moved(PIR, by))
    assert shifted.relation_to(picture) == "same space"
    expected = np.moveaxis(np.roll(labels(), by, (0, 1, 2)), -1, 0)
    np.testing.assert_array_equal(shifted.array_on(picture), expected)


def test_flipped_with_a_matching_affine_is_physically_the_same(picture):
    flip = np.diag([1.0, -1, 1, 1])
    flip[1, 3] = SHAPE[1] - 1
    flipped = mask(labels()[:, ::-1], PIR @ flip)
    assert flipped.relation_to(picture) == "same space"
    np.testing.assert_array_equal(flipped.array_on(picture), np.moveaxis(labels(), -1, 0))


def test_one_slice_less_is_filled_with_background(picture):
    short = mask(labels()[:, :, :-1], PIR)
    assert short.relation_to(picture) == "same space"
    np.testing.assert_array_equal(short.array_on(picture), np.moveaxis(labels(), -1, 0))


def test_coarser_grid_in_the_same_place(picture):
    coarse = np.zeros((9, 10, 8), np.uint8)
    coarse[2:5, 3:5, 3:5] = 9
    half = PIR.copy()
    half[:3, :3] *= 2
    half[:3, 3] += PIR[:3, :3] @ [0.5, 0.5, 0.5]
    volume = mask(coarse, half)
    assert volume.relation_to(picture) == "same space"
    fine = np.moveaxis(coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)[:18, :19, :15], -1, 0)
    np.testing.assert_array_equal(volume.array_on(picture), fine)


@pytest.mark.parametrize("affine", [np.eye(4), moved(PIR, (40, 0, 0)), moved(PIR, (0, 0, 5))])
def test_elsewhere_is_an_error_that_says_by_how_much(picture, affine):
    lost = mask(labels(), affine)
    assert lost.relation_to(picture) == "different"
    with pytest.raises(GridMismatchError, match=r"row 6: .*lies elsewhere.*spans"):
        lost.array_on(picture)


def test_tolerance_is_relative_to_the_voxel():
    for scale in (0.01, 1.0, 100.0):
        affine = np.diag([scale, scale, scale, 1.0])
        one = grid.Grid(SHAPE, affine)
        assert grid.relation(one, grid.Grid(SHAPE, moved(affine, (0.02, 0, 0)))) == "equal"
        assert grid.relation(one, grid.Grid(SHAPE, moved(affine, (0.5, 0, 0)))) == "same space"
        assert grid.relation(one, grid.Grid(SHAPE, moved(affine, (3, 0, 0)))) == "different"


@settings(max_examples=40, deadline=None)
@given(tilted_affines(), st.sampled_from(ALL_CODES), st.integers(0, 2**32 - 1))
def test_any_reordered_mask_comes_back_exactly(case, target, seed):
    codes, affine = case
    array = np.random.default_rng(seed).integers(0, 60, (4, 5, 6)).astype(np.uint8)
    change = reorder(codes, target)
    other = grid.Grid(change.shape(array.shape), change.affine(affine, array.shape))
    here = grid.Grid(array.shape, affine)
    assert grid.relation(here, other) in ("equal", "same space")
    np.testing.assert_array_equal(grid.resample(change.array(array), other, here), array)


def test_only_masks_are_resampled(picture):
    with pytest.raises(OptionError, match="not a mask"):
        picture.array_on(picture)


@pytest.mark.real
def test_real_label_volumes_share_their_grid(real_dir):
    knee = real_dir / "knee"
    femur = KneeVolume(str(knee / "oai_atlas60_left_femoral_cartilage.nii.gz"), mask=True)
    tibia = KneeVolume(str(knee / "oai_atlas60_left_tibial_cartilage.nii.gz"), mask=True)
    qform_only = KneeVolume(str(knee / "oai_atlas60_left_mask_step_10.nii.gz"), mask=True)
    assert tibia.relation_to(femur) == qform_only.relation_to(femur) == "equal"
    assert femur.labels().keys() == {1}
    box = femur.structure_box(1)
    assert femur.crop(box).sum() == femur.array().sum()
    other = KneeVolume(
        str(real_dir / "knee_nc" / "CLAIR-Knee-103R_segmentation_64x128x128.nii.gz"), mask=True
    )
    assert other.relation_to(femur) == "different"
