"""Where voxels lie in what a model sees, and back. Pure functions of shapes.

Boxes have inclusive ends on both sides. Their outer edges are scaled and rounded to the nearest one of the
other grid, so a box that was moved there and back is the same where that grid is at least as fine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reasonknee_hf.errors import RecordError


def rescale(low: float, high: float, size: float, new_size: float) -> tuple[int, int]:
    """A range of places on an axis of `size` on one of `new_size`; ends inclusive, never empty."""
    first = _nearest(low * new_size / size)
    return first, max(_nearest((high + 1) * new_size / size) - 1, first)


def _nearest(edge: float) -> int:
    return math.floor(edge + 0.5)


@dataclass(frozen=True)
class Run:
    """One axis of a volume drawn along one axis of a picture.

    Args:
        start: First voxel that is drawn.
        count: How many voxels are drawn.
        pixels: How many pixels they fill.
        offset: First of these pixels in the picture.
        flip: Whether the last voxel comes first.
    """

    start: int
    count: int
    pixels: int
    offset: int = 0
    flip: bool = False

    def to_view(self, low: int, high: int) -> tuple[int, int]:
        """The pixels of the voxels `low` to `high`, which must lie inside the run."""
        low, high = self._turn(low - self.start, high - self.start)
        first, last = rescale(low, high, self.count, self.pixels)
        # The nearest edge to the last voxels may be that of the picture: they lie in its last pixel.
        return self.offset + min(first, self.pixels - 1), self.offset + min(last, self.pixels - 1)

    def to_voxels(self, low: float, high: float) -> tuple[int, int]:
        """The voxels of the pixels `low` to `high`."""
        first, last = rescale(low - self.offset, high - self.offset, self.pixels, self.count)
        first, last = self._turn(first, last)
        return self.start + first, self.start + last

    def _turn(self, low: int, high: int) -> tuple[int, int]:
        return (self.count - 1 - high, self.count - 1 - low) if self.flip else (low, high)

    @property
    def shown(self) -> tuple[int, int]:
        """First and last voxel that is drawn."""
        return self.start, self.start + self.count - 1


@dataclass(frozen=True)
class FrameRun:
    """The slice axis of a volume as frames: frame `i` shows slice `slices[i]`, which rise and may repeat.

    A frame stands for its slice and for the nearer half of the slices left out before the next one.
    """

    slices: tuple[int, ...]

    def to_view(self, low: int, high: int) -> tuple[int, int]:
        """The frames that stand for the slices `low` to `high`, which must lie inside `shown`."""
        touched = [i for i, (first, last) in enumerate(self._cells()) if first <= high and last >= low]
        return touched[0], touched[-1]

    def to_voxels(self, low: float, high: float) -> tuple[int, int]:
        """The slices that the frames `low` to `high` stand for."""
        cells = self._cells()
        return _cell(cells, _nearest(low))[0], _cell(cells, _nearest(high))[1]

    @property
    def shown(self) -> tuple[int, int]:
        """First and last slice that is shown."""
        return self.slices[0], self.slices[-1]

    def _cells(self) -> list[tuple[int, int]]:
        """First and last slice that each frame stands for."""
        unique = sorted(set(self.slices))
        starts = [
            unique[0],
            *((a + b + 2) // 2 for a, b in pairwise(unique)),
            unique[-1] + 1,
        ]
        cell = {s: (starts[i], starts[i + 1] - 1) for i, s in enumerate(unique)}
        return [cell[s] for s in self.slices]


def _cell(cells: Sequence[tuple[int, int]], frame: int) -> tuple[int, int]:
    """The slices of a frame. Beyond the view a frame counts as one slice, so that such an answer stays
    outside."""
    if 0 <= frame < len(cells):
        return cells[frame]
    slice_ = cells[0][0] + frame if frame < 0 else cells[-1][1] + frame - len(cells) + 1
    return slice_, slice_


def visible(box: Sequence[int], runs: Sequence[Run | FrameRun], *, clip: bool) -> list[int]:
    """The part of a box that is shown.

    Args:
        box: Six ints in the order of `runs`.
        runs: What is shown of each axis.
        clip: Whether a box may reach beyond; if not, such a box is refused.

    Raises:
        RecordError: The box reaches beyond what is shown and `clip` is off, or none of it is shown.
    """
    ends = [int(end) for end in box]
    for axis, run in enumerate(runs):
        low, high = ends[2 * axis], ends[2 * axis + 1]
        first, last = run.shown
        if low >= first and high <= last:
            continue
        if not clip or high < first or low > last:
            what = "none" if high < first or low > last else "only a part"
            raise RecordError(
                f"the view shows {what} of the box {list(box)}: {first}..{last} on axis {axis}. Take a view that"
                " shows it, such as 'upstream', give the answer in coordinates='voxels', or pass clip=True for the"
                " visible part"
            )
        ends[2 * axis : 2 * axis + 2] = [max(low, first), min(high, last)]
    return ends
