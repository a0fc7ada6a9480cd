"""Views: which voxels become which pixels, and boxes there and back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.mapping import FrameRun, Run, rescale
from reasonknee_hf.prompting.recipes import RECIPES, get_recipe, plan_view
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.volume import KneeVolume

DESS = (160, 384, 384)
BOX = [60, 75, 100, 180, 200, 260]
AXCODES = ("RPI", "RIP", "LPI", "LSA", "RAS", "LIA")


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, int, int]) -> list[int]:
    ends: list[int] = []
    for size in shape:
        low = draw(st.integers(0, size - 1))
        ends += [low, draw(st.integers(low, size - 1))]
    return ends


@st.composite
def volumes_with_box(draw: st.DrawFn) -> tuple[tuple[int, int, int], list[int]]:
    shape = tuple(draw(st.integers(8, 200)) for _ in range(3))
    return shape, draw(boxes_in(shape))


# --- boxes
# -------------------------------------------------------------------------------------------------------


@given(volumes_with_box(), st.sampled_from(AXCODES))
def test_a_box_returns_from_every_view_that_shows_single_voxels(case, axcodes) -> None:
    shape, box = case
    for name in ("upstream", "region"):
        view = plan_view(name, shape, axcodes=axcodes, region=box)
        if box[1] < 160 or name == "region":
            assert view.to_voxels(view.to_view(box)) == box


@given(volumes_with_box(), st.sampled_from(AXCODES), st.sampled_from(list(RECIPES)))
def test_the_visible_part_of_a_box_lies_inside_the_view(case, axcodes, name) -> None:
    shape, box = case
    view = plan_view(name, shape, axcodes=axcodes, region=box)
    first, last = view.frames.shown
    if box[1] < first or box[0] > last:
        with pytest.raises(RecordError, match="shows none of the box"):
            view.to_view(box, clip=True)
        return
    seen = view.to_view(box, clip=True)
    for place, length in enumerate(view.grid):
        assert 0 <= seen[2 * place] <= seen[2 * place + 1] < length
    back = view.to_voxels(seen)
    boxes.check_box(back, shape)
    assert all(back[2 * a] <= box[2 * a + 1] and back[2 * a + 1] >= box[2 * a] for a in range(3))


@given(st.integers(1, 400), st.data())
def test_a_finer_grid_keeps_every_range(size: int, data: st.DataObject) -> None:
    finer = data.draw(st.integers(size, 1200))
    low = data.draw(st.integers(0, size - 1))
    high = data.draw(st.integers(low, size - 1))
    assert rescale(*rescale(low, high, size, finer), finer, size) == (low, high)


@given(boxes_in(DESS), st.sampled_from(["pixels", "thousandths", (160, 392, 392), (160, 1000, 1000)]))
def test_answers_in_the_declared_scale_return_to_their_voxels(box: list[int], scale) -> None:
    view = plan_view("upstream", DESS)
    seen = view.to_view(box)
    if scale == "pixels":
        answer = seen
    elif scale == "thousandths":  # edges of the box on a scale of 1000, as such models are trained to answer
        answer = [round((end + place % 2) * 1000 / view.grid[place // 2]) for place, end in enumerate(seen)]
    else:
        answer = [
            end
            for place in range(3)
            for end in rescale(seen[2 * place], seen[2 * place + 1], view.grid[place], scale[place])
        ]
    assert view.to_voxels(answer, scale=scale) == box


def test_fractions_return_to_their_voxels() -> None:
    view = plan_view("upstream", DESS)
    seen = view.to_view(BOX)
    answer = [(end + place % 2) / view.grid[place // 2] for place, end in enumerate(seen)]
    assert view.to_voxels(answer, scale="fractions") == BOX


@pytest.mark.parametrize(
    ("answer", "scale", "hint"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "pixels", "declare scale='fractions'"),
        ([400, 450, 300, 500, 500, 700], "pixels", "declare scale='thousandths'"),
        ([60, 75, 1500, 1700, 2000, 2600], "pixels", r"scale=\(frames, width, height\)"),
        ([60, 75, 100, 180, 200, 260], "fractions", "declare scale='thousandths'"),
    ],
)
def test_an_answer_of_another_scale_says_which_one_to_declare(answer, scale, hint) -> None:
    with pytest.raises(RecordError, match=hint):
        plan_view("upstream", DESS).to_voxels(answer, scale=scale)


@pytest.mark.parametrize("answer", [[1, 2, 3], [1, 0, 1, 2, 1, 2], [1, 2, 3, 4, 5, float("nan")]])
def test_an_answer_that_is_no_box_is_refused(answer) -> None:
    with pytest.raises(RecordError):
        plan_view("upstream", DESS).to_voxels(answer)


def test_an_answer_beyond_the_view_is_not_cut_off() -> None:
    view = plan_view("eight", DESS, region=BOX)
    first = view.slices[0]
    assert view.to_voxels([-1, 9, 0, 383, 0, 383])[:2] == [first - 1, first + 9]


def test_a_box_that_the_view_does_not_show_is_refused_or_clipped() -> None:
    view = plan_view("eight", DESS, region=BOX)
    with pytest.raises(RecordError, match="only a part"):
        view.to_view(BOX)
    assert view.to_view(BOX, clip=True)[:2] == [0, 7]
    with pytest.raises(RecordError, match="none of the box"):
        view.to_view([0, 3, *BOX[2:]], clip=True)


def test_frames_stand_for_the_slices_between_them() -> None:
    frames = FrameRun((10, 14, 18))
    assert frames.to_view(13, 17) == (1, 2)
    assert frames.to_voxels(0, 0) == (10, 12)
    assert frames.to_voxels(1, 1) == (13, 16)
    assert frames.to_voxels(0, 2) == (10, 18)


def test_a_run_can_be_flipped_and_moved() -> None:
    run = Run(start=10, count=20, pixels=40, offset=5, flip=True)
    assert run.to_view(10, 10) == (43, 44)
    assert run.to_voxels(43, 44) == (10, 10)


# --- recipes
# -----------------------------------------------------------------------------------------------------


def test_published_slices() -> None:
    assert plan_view("upstream", DESS).slices == tuple(range(160))
    o1 = plan_view("o1", DESS)
    assert o1.slices == tuple(np.linspace(32, 128, 32, dtype=int))
    assert o1.kind == "images"
    assert (plan_view("upstream", DESS).fps, plan_view("upstream", DESS).size) == (4.0, (384, 384))


@pytest.mark.parametrize("count", [8, 66, 109, 155, 156, 160, 176])
@pytest.mark.parametrize("name", ["upstream", "eight", "region"])
def test_videos_have_even_counts_of_frames(count: int, name: str) -> None:
    region = [2, 4, 10, 20, 10, 20]
    view = plan_view(name, (count, 384, 352), region=region)
    assert len(view.slices) % 2 == 0
    assert set(range(2, 5)) <= set(view.slices)
    assert max(view.slices) < count


@pytest.mark.parametrize("middle", [0, 1, 50, 158, 159])
def test_eight_are_consecutive_and_around_the_region(middle: int) -> None:
    view = plan_view("eight", DESS, region=[max(middle - 5, 0), min(middle + 5, 159), *BOX[2:]])
    assert view.slices == tuple(range(view.slices[0], view.slices[0] + 8))
    assert abs((view.slices[3] + view.slices[4]) / 2 - middle) <= 4.5


def test_a_region_is_grown_to_whole_patches_at_full_resolution() -> None:
    view = plan_view("region", DESS, region=BOX, spacing=(0.7, 0.36, 0.36))
    height, width = view.size
    assert height % 28 == width % 28 == 0
    shown = view.to_voxels([0, len(view.slices) - 1, 0, width - 1, 0, height - 1])
    margin = [60 - 8, 75 + 8, 100 - 14, 180 + 14, 200 - 14, 260 + 14]
    assert all(shown[2 * a] <= margin[2 * a] and shown[2 * a + 1] >= margin[2 * a + 1] for a in range(3))
    assert (width, height) == (112, 112)


def test_a_region_as_large_as_the_volume_stays_inside() -> None:
    shape = (9, 50, 30)
    view = plan_view("region", shape, region=[0, 8, 0, 49, 0, 29])
    assert view.to_voxels(view.to_view([0, 8, 0, 49, 0, 29])) == [0, 8, 0, 49, 0, 29]
    assert len(view.slices) == 10  # the last slice twice


def test_views_pickle_small() -> None:
    view = plan_view("upstream", DESS)
    assert pickle.loads(pickle.dumps(view)) == view
    assert len(pickle.dumps(view)) < 4000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: get_recipe("frames"), "upstream, o1, eight, middle, slice, region, jitter, planes"),
        (lambda: get_recipe("o1", colour=1), "no option 'colour'"),
        (lambda: get_recipe("o1", kind="film"), "none of video, images, planes"),
        (lambda: get_recipe("o1", fps=0), "fps"),
    ],
)
def test_unknown_recipes_and_options_are_named(call, said) -> None:
    with pytest.raises(OptionError, match=said):
        call()


@pytest.mark.parametrize("name", ["eight", "region"])
def test_a_view_around_a_region_needs_one(name: str) -> None:
    with pytest.raises(RecordError, match=r"Row 7.*bbox is null"):
        plan_view(name, DESS, name="Row 7")
    with pytest.raises(RecordError, match=r"Row 7.*leaves the volume"):
        plan_view(name, DESS, region=[0, 160, 0, 1, 0, 1], name="Row 7")


# --- pixels
# ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def volume(rows: list[dict]) -> KneeVolume:
    return rows[0]["image"]


def test_upstream_frames_are_the_published_formula(volume: KneeVolume) -> None:
    frames = plan_view("upstream", volume.shape, axcodes=volume.axcodes).draw(volume)
    for index, drawn in zip(range(volume.shape[0]), frames, strict=False):
        voxels = np.clip(volume.array()[index].astype(np.float64), 0, 400)
        span = max(voxels.max() - voxels.min(), 1e-8)
        assert (drawn == ((voxels - voxels.min()) / span * 255).astype(np.uint8)).all()


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("axcodes", AXCODES)
def test_pixels_lie_where_the_mapping_says(volume: KneeVolume, name: str, axcodes: str) -> None:
    turned = volume.oriented(axcodes)
    shape = turned.shape
    box = [10, 15, 40, 60, 50, 90]
    view = plan_view(get_recipe(name, window=(0.0, 4000.0)), shape, axcodes=axcodes, region=box)

    class Marked(KneeVolume):
        """A volume that is bright in the box alone."""

        def array(self):
            voxels = np.zeros(shape, np.int16)
            voxels[boxes.box_slices(box)] = 4000
            return voxels

    drawn = view.draw(Marked(volume.path))
    assert drawn.dtype == np.uint8
    assert drawn.flags.c_contiguous
    first, last, left, right, top, bottom = view.to_view(box, clip=True)
    if name == "planes":
        sagittal = drawn[0, :, : view.across[1].pixels]
        lit_rows, lit_columns = np.nonzero(sagittal > 128)
        assert (lit_columns.min(), lit_columns.max()) == (left, right)
        assert (lit_rows.min(), lit_rows.max()) == (top, bottom)
        coronal = drawn[0, : view.down[1].pixels, view.across[1].pixels :]
        lit = np.nonzero((coronal > 128).any(axis=0))[0] + view.across[1].pixels
        assert abs(lit.min() - first) <= 1
        assert abs(lit.max() - last) <= 1
        return
    lit_frames, lit_rows, lit_columns = np.nonzero(drawn > 128)
    assert [lit_columns.min(), lit_columns.max(), lit_rows.min(), lit_rows.max()] == [
        left,
        right,
        top,
        bottom,
    ]
    assert (lit_frames.min(), lit_frames.max()) == (first, last)


def test_upright_frames_do_not_depend_on_the_order_of_the_axes(volume: KneeVolume) -> None:
    box = [10, 15, 40, 60, 50, 90]
    pictures = []
    for axcodes in ("RPI", "RIP", "RAS", "RSA"):
        turned = volume.oriented(axcodes)
        view = plan_view("eight", turned.shape, axcodes=axcodes, region=turned.oriented_box(box))
        pictures.append(view.draw(turned))
    assert all((picture == pictures[0]).all() for picture in pictures)


def test_planes_have_the_patients_right_on_the_left_in_every_order(volume: KneeVolume) -> None:
    box = [3, 7, 40, 60, 50, 90]  # slices run to the right: this one lies on the patient's left
    pictures = []
    for axcodes in AXCODES:
        turned = volume.oriented(axcodes)
        region = turned.oriented_box(box)
        view = plan_view("planes", turned.shape, spacing=turned.spacing, axcodes=axcodes, region=region)
        pictures.append(view.draw(turned))
        first, last, _, right, _, _ = view.to_view(region)
        middle = view.across[1].pixels + view.frames.pixels / 2
        assert middle < first <= last < view.grid[1]
        assert view.to_voxels(view.to_view(region)) == region
        assert right < view.across[1].pixels
        assert "the patient's right is on the left of the coronal" in view.sides
    assert all((picture == pictures[0]).all() for picture in pictures)
    assert plan_view("upstream", volume.shape).sides == ""


def test_a_window_that_clips_most_of_a_volume_is_said_once(caplog) -> None:
    import nibabel

    bright = np.random.default_rng(0).integers(450, 900, (16, 16, 12)).astype(np.int16)
    said = []
    for array in (bright // 10, bright, bright + 1):
        volume = KneeVolume(None, nibabel.Nifti1Image(array, np.diag([-0.5, 0.5, 0.7, 1])).to_bytes())
        for name in ("planes", "upstream", "upstream", "percentile"):
            recipe = get_recipe("upstream", window="percentile") if name == "percentile" else name
            plan_view(recipe, volume.shape, axcodes=volume.axcodes).draw(volume)
        said.append(len(caplog.records))
    assert said == [0, 1, 1]
    assert "clips 100 % of the voxels that are not dark" in caplog.messages[0]
    assert "get_recipe('planes', window='percentile')" in caplog.messages[0]


def test_a_view_is_drawn_in_the_size_asked_for(volume: KneeVolume) -> None:
    view = plan_view(get_recipe("upstream", size=(56, 84)), volume.shape)
    assert view.draw(volume).shape[1:] == (56, 84)
    with pytest.raises(OptionError, match="laid out for"):
        plan_view("upstream", (3, 4, 5)).draw(volume)


@given(st.integers(1, 400), st.integers(1, 400), st.booleans(), st.data())
def test_voxels_of_the_view_lie_in_pixels_of_the_picture(count, pixels, flip, data):
    run = Run(3, count, pixels, offset=7, flip=flip)
    low = data.draw(st.integers(3, 2 + count))
    high = data.draw(st.integers(low, 2 + count))
    first, last = run.to_view(low, high)
    assert 7 <= first <= last < 7 + pixels
