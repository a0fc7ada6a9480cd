"""Boxes around regions of a volume. Pure functions.

A box is `[start_slice, end_slice, x_min, x_max, y_min, y_max]`: two inclusive ends for each of the three axes
of an array, in array order. In published rows the array is slice-first: axis 0 = slice, axis 1 = x,
axis 2 = y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reasonknee_hf.errors import RecordError
from reasonknee_hf.volumes.orientation import Array, Reorder

Box = Sequence[int]
Shape = tuple[int, int, int]


def check_box(box: Box, shape: Shape | None = None) -> list[int]:
    """Returns the box as a list of six ints.

    Args:
        box: six integers, ends inclusive.
        shape: shape of the array that the box must lie in; not checked where it is not given.

    Raises:
        RecordError: not six integers, an end before its start, or a box that leaves the array. A box is never
            clipped.
    """
    try:
        given = list(box)
        ends = [int(end) for end in given]
    except (TypeError, ValueError, OverflowError):  # not a sequence, or not of numbers, or not of finite ones
        given, ends = [], []
    if len(ends) != 6 or given != ends:
        raise RecordError(
            f"box {box}: six integers are needed, [start_slice, end_slice, x_min, x_max, y_min, y_max]"
        )
    for axis in range(3):
        low, high = ends[2 * axis : 2 * axis + 2]
        if low > high:
            raise RecordError(f"box {ends}: on axis {axis} the end {high} lies before the start {low}")
        if shape is not None and (low < 0 or high >= shape[axis]):
            raise RecordError(f"box {ends}: on axis {axis} {low}..{high} leaves the volume of shape {shape}")
    return ends


def clip_box(box: Box, shape: Shape) -> list[int]:
    """The part of a box that lies inside an array.

    Raises:
        RecordError: no part does.
    """
    ends = check_box(box)
    cut = [min(max(end, 0), shape[i // 2] - 1) for i, end in enumerate(ends)]
    if any(ends[2 * a] >= shape[a] or ends[2 * a + 1] < 0 for a in range(3)):
        raise RecordError(f"box {ends} lies wholly outside the volume of shape {shape}")
    return cut


def box_slices(box: Box) -> tuple[slice, slice, slice]:
    """Index of the box's region: `array[box_slices(box)]`. Its upper ends are one higher than the box's."""
    a, b, c, d, e, f = box
    return slice(a, b + 1), slice(c, d + 1), slice(e, f + 1)


def box_center(box: Box) -> tuple[int, int, int]:
    """Index of the voxel in the middle (the lower one of two)."""
    a, b, c, d, e, f = box
    return (a + b) // 2, (c + d) // 2, (e + f) // 2


def grow_box(box: Box, margin_mm: float, spacing: Sequence[float], shape: Shape) -> list[int]:
    """Grows a box by `margin_mm` on all sides, rounded up to whole voxels, as far as the volume goes."""
    grown = []
    for axis in range(3):
        extra = math.ceil(margin_mm / spacing[axis] - 1e-3)  # headers hold spacing as float32
        grown += [max(box[2 * axis] - extra, 0), min(box[2 * axis + 1] + extra, shape[axis] - 1)]
    return grown


def move_box(box: Box, change: Reorder, shape: Shape) -> list[int]:
    """The same region after the axes of its array were reordered; `shape` is the shape before."""
    moved: list[int] = []
    for source, flip in zip(change.axes, change.flips, strict=True):
        low, high = box[2 * source], box[2 * source + 1]
        if flip:
            low, high = shape[source] - 1 - high, shape[source] - 1 - low
        moved += [low, high]
    return moved


def box_of(region: Array) -> list[int] | None:
    """The smallest box around the true (non-zero) voxels, or None where there are none."""
    box: list[int] = []
    for axis in range(3):
        others = tuple(a for a in range(3) if a != axis)
        hit = np.flatnonzero(region.any(axis=others))
        if hit.size == 0:
            return None
        box += [int(hit[0]), int(hit[-1])]
    return box
