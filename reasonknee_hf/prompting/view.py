"""What a model sees of a volume: pixels in memory, and the way between their coordinates and voxels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.mapping import FrameRun, Run, rescale, visible
from reasonknee_hf.volumes import views
from reasonknee_hf.volumes.volume import KneeVolume

logger = logging.getLogger(__name__)
Scale = str | tuple[float, float, float]
SCALES: dict[str, float | None] = {"pixels": None, "fractions": 1.0, "thousandths": 1000.0}
"""Scales in which models answer, by name, and how long every axis is on them."""

VIDEO_ORDER = "[first_frame, last_frame, left, right, top, bottom]"
PLANES_ORDER = "[coronal_left, coronal_right, sagittal_left, sagittal_right, top, bottom]"


_looked_at: dict[Any, bool] = {}  # windows and volumes, and whether the one clips the other
_MOST_LOOKED_AT = 1000


def _warn_of_clipping(recipe: str, window: views.Window, volume: KneeVolume, array: Any) -> None:
    """Says once a process that a window with fixed ends clips most of a volume, as of a series it was not made for."""
    key = str(window), volume.cache_name
    if key in _looked_at or len(_looked_at) >= _MOST_LOOKED_AT or any(_looked_at.values()):
        return
    share = views.clipped_share(window, array)
    _looked_at[key] = share > 0.5
    if _looked_at[key]:
        logger.warning(
            "%r: the window %s of the view %r clips %.0f %% of the voxels that are not dark, as it does for series that"
            " it was not made for. Take another one, such as get_recipe(%r, window='percentile')",
            volume, window, recipe, 100 * share, recipe,
        )  # fmt: skip


@dataclass(frozen=True)
class View:
    """The layout of a view; made by `recipes.plan_view`. It holds no voxels and pickles small.

    A box in the view is `[first_frame, last_frame, left, right, top, bottom]`, ends inclusive, frames and
    pixels counted from 0. In the single picture of `planes` the first pair are the columns of its coronal
    plane that show the slices, and the others columns and rows of its sagittal plane.

    Args:
        recipe: Name of the recipe.
        kind: `video`, `images` or `planes`.
        window: Grey values, see `volumes.views`.
        fps: Frames a second.
        shape: Slice-first shape of the volume.
        frames: The slices.
        across: Axis of the volume (1: x, 2: y) that runs along the width, and how.
        down: Axis that runs along the height, and how.
        size: Height and width of a frame, or of the picture of `planes`.
        centre: The voxel that the three planes meet in.

    Examples:
        >>> from reasonknee_hf.train import plan_view
        >>> view = plan_view("region", (160, 384, 384), region=[60, 69, 100, 149, 80, 159])
        >>> view.to_voxels(view.to_view([60, 69, 100, 149, 80, 159]))
        [60, 69, 100, 149, 80, 159]
    """

    recipe: str
    kind: str
    window: views.Window
    fps: float
    shape: tuple[int, int, int]
    frames: FrameRun | Run
    across: tuple[int, Run]
    down: tuple[int, Run]
    size: tuple[int, int]
    centre: tuple[int, int, int] | None

    @property
    def slices(self) -> tuple[int, ...]:
        """The slice of each frame; for `planes` the one of the sagittal plane."""
        if isinstance(self.frames, FrameRun):
            return self.frames.slices
        assert self.centre is not None
        return (self.centre[0],)

    @property
    def pictures(self) -> int:
        """How many pictures are drawn."""
        return len(self.slices)

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many frames there are (columns for slices in `planes`), and their width and height in
        pixels."""
        frames = len(self.frames.slices) if isinstance(self.frames, FrameRun) else self.size[1]
        return frames, self.size[1], self.size[0]

    # --- boxes ----------------------------------------------------------------------------------------------

    def to_view(self, box: Sequence[int], *, clip: bool = False) -> list[int]:
        """A voxel box as the view shows it.

        Args:
            box: `[start_slice, end_slice, x_min, x_max, y_min, y_max]`, slice-first, ends inclusive.
            clip: Take the visible part of a box that reaches beyond the view.

        Raises:
            RecordError: The box reaches beyond the view and `clip` is off, or none of it is visible.
        """
        runs = dict(self._axes)
        ends = visible(box, [runs[axis] for axis in range(3)], clip=clip)
        return [end for axis, run in self._axes for end in run.to_view(ends[2 * axis], ends[2 * axis + 1])]

    def to_voxels(self, box: Sequence[float], *, scale: Scale = "pixels") -> list[int]:
        """The voxel box of what a model answered about the view.

        Args:
            box: Six numbers, `[first_frame, last_frame, left, right, top, bottom]`.
            scale: What the numbers count: `pixels` of the view (and its frames), `fractions` of each axis (0
                to 1), `thousandths` (0 to 1000), or the sizes (frames, width, height) of another grid of
                pixels, such as `(frames, 14 * grid_w, 14 * grid_h)` of frames that a processor resized.

        Returns:
            `[start_slice, end_slice, x_min, x_max, y_min, y_max]`. What lies outside the view is not cut off.

        Raises:
            OptionError: There is no such scale.
            RecordError: Not six finite numbers, a minimum above its maximum, or numbers that cannot be of
                this scale; the message says which one to declare.
        """
        numbers = self._checked(box, scale)
        ends = [0] * 6
        for place, (axis, run) in enumerate(self._axes):
            low, high = numbers[2 * place : 2 * place + 2]
            if scale != "pixels":
                length = self._lengths(scale)[place]
                # Fractions and thousandths are places of edges; numbers of pixels include the last one.
                low, high = rescale(low, high - isinstance(scale, str), length, self.grid[place])
            ends[2 * axis : 2 * axis + 2] = run.to_voxels(low, high)
        return ends

    def describe_box(self) -> str:
        """How to write a box in this view, for prompts."""
        frames, width, height = self.grid
        if self.kind == "planes":
            return (
                f"{PLANES_ORDER} in pixels of the picture, which is {width} wide and {height} high, counted"
                " from 0, ends included; the sagittal plane is top left, the coronal plane right of it"
            )
        size = f"there are {frames} frames of {width} x {height} pixels"
        return f"{VIDEO_ORDER}, counted from 0, ends included; {size}"

    def describe_place(self) -> str | None:
        """Which part of the volume the frames show, for prompts; `None` for all of it, and for `planes`."""
        if self.kind == "planes":
            return None
        shown = [end for _, run in sorted(self._axes, key=lambda run: run[0]) for end in run.shown]
        if shown == [end for length in self.shape for end in (0, length - 1)]:
            return None
        slices, x, y = self.shape
        return (
            f"You see the part {shown} of a volume of {slices} slices with {x} x {y} voxels, written as"
            " [start_slice, end_slice, x_min, x_max, y_min, y_max], ends included."
        )

    @property
    def sides(self) -> str:
        """Which side is which in the picture of `planes`, for prompts; nothing for frames, which show one plane."""
        if self.kind != "planes":
            return ""
        return (
            "The picture shows three planes of the volume: sagittal top left (front on its left), coronal right of it,"
            " axial below that (front at its top); the patient's right is on the left of the coronal and axial planes."
        )

    @property
    def _axes(self) -> tuple[tuple[int, Run | FrameRun], ...]:
        """In the order of a box in the view: the axis of the volume, and how it runs."""
        return ((0, self.frames), self.across, self.down)

    def _lengths(self, scale: Scale) -> tuple[float, float, float]:
        if not isinstance(scale, str):
            return scale
        if scale not in SCALES:
            raise OptionError(
                f"There is no scale {scale!r}. Valid: {', '.join(SCALES)}, or (frames, width, height)."
            )
        length = SCALES[scale]
        return self.grid if length is None else (length, length, length)

    def _checked(self, box: Sequence[float], scale: Scale) -> list[float]:
        lengths = self._lengths(scale)
        numbers = [float(number) for number in box]
        if len(numbers) != 6 or not np.isfinite(numbers).all():
            raise RecordError(f"the answered box {list(box)} is not six finite numbers")
        if any(numbers[i] > numbers[i + 1] for i in (0, 2, 4)):
            raise RecordError(f"the answered box {list(box)} has a minimum above its maximum")
        whole = all(number.is_integer() for number in numbers)
        if scale != "fractions" and not whole and max(map(abs, numbers)) <= 1:
            hint = "fractions of the view: declare scale='fractions'"
        elif all(abs(end) < 2 * lengths[i // 2] for i, end in enumerate(numbers)):
            return numbers
        elif scale != "thousandths" and max(map(abs, numbers)) <= 1000:
            hint = (
                "thousandths of the view, or pixels of another grid: declare scale='thousandths' or its sizes"
            )
        else:
            hint = "pixels of another grid: declare its sizes as scale=(frames, width, height)"
        raise RecordError(
            f"the answered box {list(box)} cannot be {scale} of a view with {self.grid[0]} frames of {self.grid[1]} x"
            f" {self.grid[2]} pixels; it looks like {hint}"
        )

    # --- pixels ---------------------------------------------------------------------------------------------

    def draw(self, volume: KneeVolume) -> views.Frames:
        """The frames, or the one picture of `planes`.

        Args:
            volume: The slice-first volume that the view was laid out for.

        Returns:
            uint8 array of shape (frames, height, width), C order.

        Raises:
            VolumeMissingError: There is no such file.
            VolumeDataError: The file is cut or fails its checksum.
        """
        array = volume.array()
        if array.shape != self.shape:
            raise OptionError(
                f"the view was laid out for a volume of shape {self.shape}, this one has {array.shape}"
            )
        _warn_of_clipping(self.recipe, self.window, volume, array)
        if self.kind == "planes":
            return self._draw_planes(volume, array)
        spans = {axis: run.shown for axis, run in (self.across, self.down)}
        (a, b), (c, d) = spans[1], spans[2]
        plane = array[:, a : b + 1, c : d + 1]
        first, last = self.frames.shown
        neighbours = self.slices == tuple(range(first, last + 1))
        chosen = plane[first : last + 1] if neighbours else views.select(plane, self.slices)
        grey = views.frames(chosen, views.levels(self.window, array, chosen, volume.header))
        return self._turned(grey)

    def _turned(self, grey: views.Frames) -> views.Frames:
        if self.down[0] == 2:
            grey = grey.transpose(0, 2, 1)
        grey = grey[:, :: -1 if self.down[1].flip else 1, :: -1 if self.across[1].flip else 1]
        height, width = self.down[1].pixels, self.across[1].pixels
        if grey.shape[1:] != (height, width):
            return views.resize(grey, (height, width))
        return np.ascontiguousarray(grey)

    def _draw_planes(self, volume: KneeVolume, array: Any) -> views.Frames:
        assert self.centre is not None
        (column_axis, across), (row_axis, down) = self.across, self.down
        sideways = -1 if isinstance(self.frames, Run) and self.frames.flip else 1
        planes = []
        for rows, columns in ((row_axis, column_axis), (row_axis, 0), (column_axis, 0)):
            fixed = 3 - rows - columns
            flat = array.transpose(fixed, rows, columns)[self.centre[fixed], None]
            planes.append(views.frames(flat, views.levels(self.window, array, flat, volume.header))[0])
        sagittal, coronal, axial = planes
        sagittal = sagittal[:: -1 if down.flip else 1, :: -1 if across.flip else 1]
        coronal = coronal[:: -1 if down.flip else 1, ::sideways]
        axial = axial[:: -1 if across.flip else 1, ::sideways]
        depth = self.size[1] - across.pixels
        picture = np.zeros((1, *self.size), dtype=np.uint8)
        picture[0, : down.pixels, : across.pixels] = views.resize(
            sagittal[None], (down.pixels, across.pixels)
        )[0]
        picture[0, : down.pixels, across.pixels :] = views.resize(coronal[None], (down.pixels, depth))[0]
        picture[0, down.pixels :, across.pixels :] = views.resize(axial[None], (across.pixels, depth))[0]
        return picture
