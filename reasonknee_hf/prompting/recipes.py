"""Which part of a volume a model sees, how it is drawn, and in which coordinates it is asked about.

| recipe | what | drawn as |
|---|---|---|
| `upstream` | the first 160 slices at 4 frames a second, as in the published fine-tuning | video |
| `o1` | 32 slices from 32 to 128 of 160, as in the published script of that name | images |
| `eight` | 8 consecutive slices around the region, upright | video |
| `middle` | 8 consecutive slices in the middle of the volume, upright, for rows without a region | video |
| `slice` | the slice in the middle, upright | image |
| `region` | the region with 5 mm around it at full resolution, upright | video |
| `jitter` | a large crop that holds the region and does not tell where, 32 slices of it, upright | video |
| `planes` | three planes through the middle of the region, or of the volume, as radiologists look | one image |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.mapping import FrameRun, Run
from reasonknee_hf.prompting.view import View
from reasonknee_hf.volumes import boxes, views

Kind = Literal["video", "images", "planes"]
Slices = Literal["all", "o1", "eight", "middle", "region"]

JITTER = (0.75, 1.0)
"""Shares of an axis within which the crops of `jitter` are drawn: from these sizes on, a predictor that knows size and
place of the crop, and sees no pixel, does not guess the region better than one that always says the same (see
`tests/train/test_honest_views.py`)."""


@dataclass(frozen=True)
class Recipe:
    """How a view is made out of a volume.

    Args:
        name: Its name.
        kind: `video` (one video), `images` (one image a slice) or `planes` (one image with three planes).
        slices: Which slices: `all`, `o1`, `eight` around the region, as many as `most` says in the `middle`, or those
            of the `region`. Planes take none.
        window: Grey values, see `volumes.views`.
        fps: Frames a second that the processor is told; the published fine-tuning says 4.
        crop: Whether frames are cut to the region in the plane as well.
        margin_mm: With `crop`, how far the region is grown on all sides before it is cut out.
        multiple: With `crop`, the sides of frames are grown to multiples of this where the volume allows it,
            so that processors, which want whole patches (28 pixels for Qwen2.5-VL), need not resample.
        size: Height and width of frames, or one number for both; by default a pixel is a voxel.
        most: With `slices="region"`, at most so many slices, evenly spread; `None` for all. In the `middle`, so many.
        jitter: Instead of the region itself, a crop that is drawn anew for every row, and for every epoch of a
            `training_stream`: along each axis its length is a share of the axis, drawn evenly between these two, and
            its place is drawn evenly among those at which it holds the region. For models that are to find the region.
        upright: Turn frames so that the head is up and the front left, whatever order the file has. If not,
            rows of a frame run along x and columns along y, as the published scripts draw them.

    Examples:
        >>> from reasonknee_hf.train import Recipe
        >>> Recipe("mine", kind="images", slices="middle", most=4).needs_region
        False
    """

    name: str
    kind: Kind = "video"
    slices: Slices = "all"
    window: views.Window = "upstream"
    fps: float = 4.0
    crop: bool = False
    margin_mm: float = 5.0
    multiple: int = 28
    size: int | tuple[int, int] | None = None
    most: int | None = None
    jitter: tuple[float, float] | None = None
    upright: bool = True

    @property
    def needs_region(self) -> bool:
        """Whether the view can only be made for a row with a box."""
        return self.kind != "planes" and (self.crop or self.slices in ("eight", "region"))

    @property
    def tells_region(self) -> bool:
        """Whether the view, by its place and size alone, tells where the region lies that it was made around."""
        return self.jitter is None and (self.needs_region or self.kind == "planes")


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("upstream", upright=False),
        Recipe("o1", kind="images", slices="o1", window="o1", upright=False),
        Recipe("eight", slices="eight"),
        Recipe("middle", slices="middle", most=8),
        Recipe("slice", kind="images", slices="middle", most=1),
        Recipe("region", slices="region", crop=True),
        Recipe("jitter", slices="region", crop=True, margin_mm=0.0, most=32, jitter=JITTER),
        Recipe("planes", kind="planes", window=(0.0, 400.0)),
    )
}
"""The named recipes."""

_PUBLISHED_SLICES = 160


def get_recipe(recipe: str | Recipe, **changes: Any) -> Recipe:
    """A named recipe, or the given one, with fields changed: `get_recipe("region", margin_mm=10)`.

    Raises:
        OptionError: There is no such recipe or field, or a value is none of its field's.

    Examples:
        >>> from reasonknee_hf.train import get_recipe
        >>> get_recipe("eight", size=224, kind="images").size
        224
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise OptionError(f"There is no view {recipe!r}. Valid: {', '.join(RECIPES)}, or a Recipe.")
        recipe = RECIPES[recipe]
    fields = {field.name for field in dataclasses.fields(Recipe)}
    if unknown := sorted(changes.keys() - fields):
        raise OptionError(f"A view has no option {unknown[0]!r}. Valid: {', '.join(sorted(fields))}.")
    changed = dataclasses.replace(recipe, **changes)
    for option, value, valid in (
        ("kind", changed.kind, ("video", "images", "planes")),
        ("slices", changed.slices, get_args(Slices)),
    ):
        if value not in valid:
            raise OptionError(f"{option}={value!r} of a view is none of {', '.join(valid)}.")
    sides = 1 if changed.size is None else changed.size
    smallest = min(sides) if isinstance(sides, tuple) else sides
    if (
        min(changed.multiple, smallest) < 1
        or changed.fps <= 0
        or changed.margin_mm < 0
        or (changed.most or 1) < 1
    ):
        raise OptionError("fps, multiple, size and most of a view are above 0, margin_mm is not below 0.")
    if changed.jitter is not None and not 0 < changed.jitter[0] <= changed.jitter[1] <= 1:
        raise OptionError(f"jitter={changed.jitter} of a view is two shares of an axis, such as {JITTER}.")
    return changed


def plan_view(
    recipe: str | Recipe,
    shape: tuple[int, int, int],
    *,
    spacing: Sequence[float] = (0.7, 0.3646, 0.3646),
    axcodes: str = "RPI",
    region: Sequence[int] | None = None,
    name: str = "the row",
    draw: str = "",
) -> View:
    """Lays out a view. Nothing is read: shape, spacing and axis codes stand in a volume's header.

    Args:
        recipe: Name of a recipe, or one from [`get_recipe`].
        shape: Slice-first shape of the volume: (slices, x, y).
        spacing: Voxel size in mm along the same axes.
        axcodes: Direction in which each of these axes grows, such as `"RPI"`.
        region: Six ints, `[start_slice, end_slice, x_min, x_max, y_min, y_max]`, ends inclusive.
        name: What to call the row in errors.
        draw: What the crop of a recipe with `jitter` is drawn by: the same text gives the same crop.

    Raises:
        RecordError: The recipe needs a region and there is none, or it leaves the volume.

    Examples:
        >>> from reasonknee_hf.train import plan_view
        >>> plan_view("middle", (160, 384, 384)).slices
        (76, 77, 78, 79, 80, 81, 82, 83)
    """
    recipe = get_recipe(recipe)
    if region is not None:
        region = _named(name, lambda box: boxes.check_box(box, shape), region)
    elif recipe.needs_region:
        raise RecordError(
            f"{name}: the view {recipe.name!r} is made around a region and the row has none (bbox is null). Take the"
            " view 'upstream', 'o1' or 'planes', or drop such rows"
        )
    if recipe.kind == "planes":
        return _planes(recipe, shape, spacing, axcodes, region)
    if recipe.jitter is not None and region is not None:
        region = _drawn_around(region, shape, recipe.jitter, draw)
    slices = _slices(recipe, shape, spacing, region)
    x, y = (0, shape[1] - 1), (0, shape[2] - 1)
    if recipe.crop and region is not None:
        box = boxes.grow_box(region, recipe.margin_mm, spacing, shape)
        x = _whole_patches(box[2], box[3], shape[1], recipe.multiple)
        y = _whole_patches(box[4], box[5], shape[2], recipe.multiple)
    rows, columns = _upright(axcodes) if recipe.upright else ((1, False), (2, False))
    spans = {1: x, 2: y}
    lengths = [spans[axis][1] - spans[axis][0] + 1 for axis, _ in (rows, columns)]
    height, width = lengths if recipe.size is None else _pair(recipe.size)
    return View(
        recipe=recipe.name,
        kind=recipe.kind,
        window=recipe.window,
        fps=recipe.fps,
        shape=shape,
        frames=FrameRun(tuple(slices)),
        across=(columns[0], Run(spans[columns[0]][0], lengths[1], width, flip=columns[1])),
        down=(rows[0], Run(spans[rows[0]][0], lengths[0], height, flip=rows[1])),
        size=(height, width),
        centre=None,
    )


def _slices(
    recipe: Recipe, shape: tuple[int, int, int], spacing: Sequence[float], region: Sequence[int] | None
) -> list[int]:
    count = shape[0]
    if recipe.slices == "all":
        chosen = list(range(min(count, _PUBLISHED_SLICES)))
    elif recipe.slices == "o1":
        chosen = views.o1_indices(count)
    elif recipe.slices == "middle":
        chosen = views.slice_indices(count, min(recipe.most or 8, count), consecutive=True)
    elif recipe.slices == "eight":
        chosen = views.slice_indices(count, min(8, count), around=_middle(region), consecutive=True)
    else:
        assert region is not None
        grown = boxes.grow_box(region, recipe.margin_mm, spacing, shape)
        chosen = list(range(grown[0], grown[1] + 1))
        if recipe.most is not None and len(chosen) > recipe.most:
            chosen = [
                chosen[place] for place in np.linspace(0, len(chosen) - 1, recipe.most).round().astype(int)
            ]
        elif len(chosen) % 2 and len(chosen) < count:
            chosen = [*chosen, chosen[-1] + 1] if chosen[-1] + 1 < count else [chosen[0] - 1, *chosen]
    if recipe.kind == "video" and len(chosen) % 2:
        chosen.append(chosen[-1])  # processors take frames in pairs and would add this one themselves
    return chosen


def _drawn_around(
    region: Sequence[int], shape: tuple[int, int, int], shares: tuple[float, float], draw: str
) -> list[int]:
    """A box that holds the region, of a size and at a place that are drawn; see `Recipe.jitter`."""
    random = np.random.default_rng(int.from_bytes(blake2b(draw.encode(), digest_size=8).digest(), "little"))
    box: list[int] = []
    for axis, length in enumerate(shape):
        low, high = region[2 * axis : 2 * axis + 2]
        size = max(round(random.uniform(*shares) * length), high - low + 1)
        start = int(random.integers(max(0, high + 1 - size), min(low, length - size), endpoint=True))
        box += [start, start + size - 1]
    return box


def _middle(region: Sequence[int] | None) -> list[int]:
    """A region of one slice in the middle, so that slices around it are consecutive."""
    assert region is not None
    middle = (region[0] + region[1]) // 2
    return [middle, middle, *region[2:]]


def _whole_patches(low: int, high: int, count: int, multiple: int) -> tuple[int, int]:
    """Grows a range to a multiple of `multiple`, evenly, inside an axis of `count`; as it is if that is
    too short."""
    wanted = -(-(high - low + 1) // multiple) * multiple
    if wanted > count:
        return low, high
    start = min(max(low - (wanted - (high - low + 1)) // 2, 0), count - wanted)
    return start, start + wanted - 1


def _upright(axcodes: str) -> tuple[tuple[int, bool], tuple[int, bool]]:
    """For rows and columns of upright frames: the axis of the volume (1 or 2) and whether it is flipped.

    Heads are up; in axial frames, which have none, the front is. The front is left; where it cannot be, the right is.
    """
    down = "IS" if set(axcodes[1:]) & set("IS") else "AP"
    vertical = 1 if axcodes[1] in down else 2
    other = 3 - vertical
    return (vertical, axcodes[vertical] in "SA"), (other, axcodes[other] in "AR")


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _planes(
    recipe: Recipe,
    shape: tuple[int, int, int],
    spacing: Sequence[float],
    axcodes: str,
    region: Sequence[int] | None,
) -> View:
    """Sagittal top left, coronal right of it, axial below that, as radiologists look: see `View.sides`.

    Pixels are square: slices are stretched.
    """
    (row_axis, row_flip), (column_axis, column_flip) = _upright(axcodes)
    height, width = (shape[row_axis], shape[column_axis]) if recipe.size is None else _pair(recipe.size)
    pixel = spacing[row_axis] * shape[row_axis] / height
    depth = max(round(shape[0] * spacing[0] / pixel), 1)
    across = Run(0, shape[column_axis], width, flip=column_flip)
    down = Run(0, shape[row_axis], height, flip=row_flip)
    middle = boxes.box_center(region) if region is not None else tuple(length // 2 for length in shape)
    return View(
        recipe=recipe.name,
        kind="planes",
        window=recipe.window,
        fps=recipe.fps,
        shape=shape,
        frames=Run(0, shape[0], depth, offset=width, flip=axcodes[0] == "R"),
        across=(column_axis, across),
        down=(row_axis, down),
        size=(height + width, width + depth),
        centre=(middle[0], middle[1], middle[2]),
    )


def _named(name: str, check: Any, box: Sequence[int]) -> list[int]:
    try:
        checked: list[int] = check(box)
    except RecordError as error:
        raise RecordError(f"{name}: {error}") from error
    return checked
