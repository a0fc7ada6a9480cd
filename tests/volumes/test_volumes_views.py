"""Slices and grey values, against the published loops written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volume_files import PIR, RPI, gzip_bytes, image, plain_bytes, voxels

from reasonknee_hf.errors import OptionError
from reasonknee_hf.volumes import views
from reasonknee_hf.volumes.volume import KneeVolume


def published_frames(volume):
    """The published preprocessing: clip to 0..400, stretch every slice to its own minimum and maximum."""
    out = []
    for i in range(volume.shape[0]):
        one = np.clip(volume[i, :, :], 0, 400)
        one = (one - one.min()) / max(one.max() - one.min(), 1e-8) * 255
        out.append(one.astype(np.uint8))
    return np.stack(out)


def published_o1_frames(volume):
    """The published `o1` script: 32 slices, clipped, stretched by the range of the unclipped volume."""
    out = []
    for i in np.linspace(32, 128, 32, dtype=int):
        one = np.clip(volume[i, :, :], 0, 400)
        one = (one - volume.min()) / (volume.max() - volume.min()) * 255
        out.append(one.astype(np.uint8))
    return np.stack(out)


def in_memory_order(array, order):
    """The same values with axes in another memory order."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


ORDERS = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["i2", "u2", "u1", "i1", "i4", "f4", "f8"])
def test_upstream_frames_are_bit_equal_in_every_memory_order(order, dtype):
    array = np.random.default_rng(1).integers(0, 120, (7, 30, 41)).astype(dtype)
    if dtype not in ("u1", "i1"):
        array[2:5] *= 7
    if np.dtype(dtype).kind != "u":
        array[4] -= 60
    array[1], array[5, 3, 3] = 17, 0
    array = in_memory_order(array, order)
    window = views.levels("upstream", array, array, None)
    np.testing.assert_array_equal(views.frames(array, window), published_frames(array.astype(np.float64)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-900, 900), st.integers(1, 2000), st.sampled_from(ORDERS))
def test_upstream_frames_of_any_range(seed, low, spread, order):
    random = np.random.default_rng(seed)
    array = in_memory_order(random.integers(low, low + spread, (3, 5, 9)).astype(np.int16), order)
    window = views.levels("upstream", array, array, None)
    np.testing.assert_array_equal(views.frames(array, window), published_frames(array.astype(np.float64)))


def test_every_value_of_every_range_of_the_published_window():
    """All pairs of a slice's minimum and maximum in 0..400, and all values between."""
    for low in (0, 1, 13, 200, 399):
        highs = np.arange(low, 401)
        array = np.minimum(np.arange(low, 401)[np.newaxis, :, np.newaxis], highs[:, np.newaxis, np.newaxis])
        array = array.astype(np.int16)
        window = views.levels("upstream", array, array, None)
        np.testing.assert_array_equal(views.frames(array, window), published_frames(array.astype(np.float64)))


@pytest.mark.parametrize("affine", [PIR, RPI])
def test_volume_frames_are_what_the_published_scripts_make(affine):
    shape = (20, 25, 160) if affine is PIR else (160, 20, 25)
    data = gzip_bytes(voxels(shape), affine)
    loaded = image(voxels(shape), affine).get_fdata()
    if loaded.shape[0] != 160:
        loaded = loaded.transpose(2, 0, 1)
    volume = KneeVolume(None, data)
    np.testing.assert_array_equal(volume.frames(), published_frames(loaded))
    np.testing.assert_array_equal(volume.frames("o1"), published_o1_frames(loaded))
    some = volume.slice_indices(8)
    np.testing.assert_array_equal(volume.frames(n=8), published_frames(loaded)[some])
    np.testing.assert_array_equal(volume.slices(8), volume.array()[some])
    assert volume.frames().dtype == np.uint8


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-900, 900), st.integers(1, 3000))
def test_o1_frames_of_any_range(seed, low, spread):
    array = np.random.default_rng(seed).integers(low, low + spread, (160, 3, 4)).astype(np.int16)
    array[0, 0, 0] = low + spread
    chosen = views.select(array, views.o1_indices(160))
    got = views.frames(chosen, views.levels("o1", array, chosen, None))
    exact = (
        (np.clip(chosen.astype(np.float64), 0, 400) - array.min())
        / (int(array.max()) - int(array.min()))
        * 255
    )
    np.testing.assert_array_equal(got, np.clip(exact, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("window", ["upstream", "o1", "percentile", (0, 400)])
@pytest.mark.parametrize("value", [0, 7, -5, 500])
@pytest.mark.parametrize("dtype", ["i2", "f4", "i4"])
def test_constant_slices_do_not_divide_by_zero(window, value, dtype):
    array = np.full((160, 3, 4), value, dtype)
    with np.errstate(all="raise"):
        got = views.frames(array, views.levels(window, array, array, None))
    assert (got == (0 if window != (0, 400) else int(np.clip(value, 0, 400) / 400 * 255))).all()


def test_one_constant_slice_among_others_is_black():
    array = voxels((5, 6, 7))
    array[2] = 300
    got = views.frames(array, views.levels("upstream", array, array, None))
    assert (got[2] == 0).all()
    assert got.max() == 255


def test_nan_is_drawn_as_the_lowest_value_and_infinity_as_the_ends():
    array = voxels((2, 3, 4), "f4")
    array[0, 0] = [np.nan, np.inf, -np.inf, 500]
    got = views.frames(array, views.levels("upstream", array, array, None))
    np.testing.assert_array_equal(got[0, 0], [0, 255, 0, 255])


def test_percentile_window_is_that_of_the_voxels():
    array = voxels((6, 20, 20))
    for kind in ("i2", "f8"):
        window = views.levels("percentile", array.astype(kind), array[:2].astype(kind), None)
        ordered = np.sort(array, axis=None)
        assert window.low == ordered[int(0.01 * (array.size - 1))]
        assert window.high == ordered[int(0.99 * (array.size - 1))]


def test_header_window():
    made = image(voxels(), PIR)
    made.header["cal_min"], made.header["cal_max"] = 100, 600
    volume = KneeVolume(None, made.to_bytes())
    exact = (np.clip(volume.array().astype(float), 100, 600) - 100) / 500 * 255
    np.testing.assert_array_equal(volume.frames("header"), exact.astype(np.uint8))
    with pytest.raises(OptionError, match="row 4: the header of this file proposes no window"):
        KneeVolume(None, plain_bytes(voxels()), label="row 4").frames("header")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["u1", "i1", "i2", "u2", "f4"]),
    st.tuples(st.floats(-300, 900), st.floats(0.5, 70000)),
    st.integers(0, 2**32 - 1),
)
def test_any_fixed_window(dtype, window, seed):
    low, high = window[0], window[0] + window[1]
    random = np.random.default_rng(seed)
    limits = np.iinfo("i2" if dtype == "f4" else dtype)
    array = random.integers(limits.min, limits.max, (3, 7, 9), endpoint=True).astype(dtype)
    exact = (np.clip(array.astype(np.float64), low, high) - low) / (high - low) * 255
    got = views.frames(array, views.levels((low, high), array, array, None))
    np.testing.assert_array_equal(got, exact.astype(np.uint8))


@pytest.mark.parametrize("given", [[50, 700], np.array([50, 700]), np.array([50.0, 700.0], "f4")], ids=repr)
def test_a_window_may_be_given_as_any_two_numbers(given):
    volume = KneeVolume(None, plain_bytes(voxels()))
    np.testing.assert_array_equal(volume.frames(given), volume.frames((50, 700)))


@pytest.mark.parametrize(
    "window",
    [
        "bone",
        "12",
        (5, 5),
        (9, 1),
        (1, 2, 3),
        [5, 5],
        np.array([9, 1]),
        np.eye(2),
        (None, 1),
        ("a", "b"),
        None,
        7,
    ],
    ids=repr,
)
def test_unknown_windows_name_the_known_ones(window):
    with pytest.raises(OptionError, match="upstream, o1, percentile, header"):
        KneeVolume(None, plain_bytes(voxels())).frames(window)


# --- slices -----------------------------------------------------------------------------------------------


@given(st.data())
def test_slice_indices_rise_are_distinct_and_stay_inside(data):
    count = data.draw(st.integers(1, 200))
    n = data.draw(st.integers(1, count))
    low = data.draw(st.integers(0, count - 1))
    high = data.draw(st.integers(low, count - 1))
    box = data.draw(st.sampled_from([None, [low, high, 0, 0, 0, 0]]))
    consecutive = data.draw(st.booleans())
    chosen = views.slice_indices(count, n, around=box, consecutive=consecutive)
    assert len(chosen) == n
    assert chosen == sorted(set(chosen))
    assert 0 <= chosen[0] <= chosen[-1] < count
    assert [chosen.index(chosen[frame]) for frame in range(n)] == list(range(n))
    first, last = (low, high) if box else (0, count - 1)
    if consecutive:
        assert chosen[-1] - chosen[0] == n - 1
    elif n <= last - first + 1:
        assert chosen[0] == first
        assert n == 1 or chosen[-1] == last
    if n >= last - first + 1:
        assert chosen[0] <= first
        assert chosen[-1] >= last


def test_slices_of_a_box_and_eight_neighbours():
    assert views.slice_indices(160, around=[10, 14, 0, 1, 0, 1]) == [10, 11, 12, 13, 14]
    assert views.slice_indices(160, 8, around=[10, 13, 0, 1, 0, 1], consecutive=True) == list(range(8, 16))
    assert views.slice_indices(160, 8, around=[0, 1, 0, 1, 0, 1]) == list(range(8))
    assert views.slice_indices(10) == list(range(10))


@pytest.mark.parametrize(
    "arguments", [(5, 6), (5, 0), (5, 2, [3, 5, 0, 0, 0, 0]), (5, 2, [-1, 1, 0, 0, 0, 0])]
)
def test_impossible_choices_are_errors(arguments):
    count, n, *box = arguments
    with pytest.raises(OptionError):
        views.slice_indices(count, n, around=box[0] if box else None)


def test_o1_slices_for_other_counts():
    assert views.o1_indices(160) == np.linspace(32, 128, 32, dtype=int).tolist()
    for count in (1, 2, 10, 64, 155, 176):
        chosen = views.o1_indices(count)
        assert len(chosen) == 32
        assert 0 <= min(chosen) <= max(chosen) < count


@pytest.mark.parametrize("order", ORDERS)
def test_selecting_slices_equals_plain_indexing(order):
    array = in_memory_order(voxels((6, 5, 4)), order)
    np.testing.assert_array_equal(views.select(array, [0, 3, 5]), array[[0, 3, 5]])


def test_resized_frames():
    pytest.importorskip("PIL")
    volume = KneeVolume(None, gzip_bytes(voxels()))
    assert volume.frames(size=16).shape == (5, 16, 16)
    assert volume.frames(n=2, size=(4, 6)).shape == (2, 4, 6)
    flat = KneeVolume(None, gzip_bytes(np.full((8, 9, 5), 3, np.int16)))
    assert (flat.frames((0, 6), size=3) == 127).all()
