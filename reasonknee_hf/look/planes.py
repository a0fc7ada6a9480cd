"""A volume as readers of MRI expect to see it: sagittal, coronal and axial pictures, head up.

Everything here is in the order L, P, I: axis 0 runs to the patient's left, axis 1 to the back, axis 2 to the
feet. A picture has its two axes as (rows, columns), so the front is on the left of sagittal pictures, and the
patient's right is on the left of the others, as on any light box. What is written beside pictures are the numbers
of rows: those of their boxes, counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reasonknee_hf.volumes import boxes, views
from reasonknee_hf.volumes import grid as grids
from reasonknee_hf.volumes.orientation import Array, Reorder, reorder
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.voxels import label_counts

ORDER = "LPI"
ROW_AXES = ("slice", "x", "y")  # what the axes of a row's box are called
BOX_RGB = (255, 64, 64)
# name, axis that is cut, axis of the rows, axis of the columns, words at (left, right, top, bottom)
PLANES = (
    ("sagittal", 0, 2, 1, ("A", "P", "S", "I")),
    ("coronal", 1, 2, 0, ("R", "L", "S", "I")),
    ("axial", 2, 1, 0, ("R", "L", "A", "P")),
)


@dataclass(frozen=True)
class Scene:
    """A volume, its labels and a box, all in the order L, P, I.

    Attributes:
        volume: where it comes from, in the order of rows.
        change: from that order to this one.
        array: voxels.
        labels: ids on the grid of `array`, or None.
        names: what to call the ids.
        box: six inclusive ends in this order, or None.
        row_box: the same as the row has it.
        spacing: mm between voxels along each axis.
        window: grey values for `array`.
    """

    volume: KneeVolume
    change: Reorder
    array: Array
    labels: Array | None
    names: dict[int, str]
    spacing: tuple[float, float, float]
    window: views.Levels
    box: list[int] | None = None
    row_box: list[int] | None = None

    def with_box(self, box: boxes.Box | None) -> Scene:
        """The same with another box, given as rows have it.

        Raises:
            RecordError: it leaves the volume.
            GridMismatchError: it lives on another grid.
        """
        if box is None:
            return replace(self, box=None, row_box=None)
        self.volume.check_box_grid()
        ends = boxes.check_box(box, self.volume.shape)
        return replace(self, box=boxes.move_box(ends, self.change, self.volume.shape), row_box=ends)

    def numbers(self, axis: int) -> tuple[str, int, int]:
        """How the indices of an axis are counted in rows: its name there, the number of index 0, and the step."""
        back = self.change.flips[axis]
        return ROW_AXES[self.change.axes[axis]], self.array.shape[axis] - 1 if back else 0, -1 if back else 1

    def caption(self, plane: int, index: int) -> str:
        """Name and number of a plane, as the row counts."""
        name, axis, *_ = PLANES[plane]
        word, first, step = self.numbers(axis)
        return f"{name}, {word} {first + step * index} of 0..{self.array.shape[axis] - 1}"

    @cached_property
    def center(self) -> tuple[int, int, int]:
        """The voxel through which planes are cut: the middle of the box, else of the volume."""
        whole = [end for length in self.array.shape for end in (0, length - 1)]
        return boxes.box_center(whole if self.box is None else self.box)

    def picture(self, plane: int, index: int) -> views.Frames:
        """One picture in grey values, (rows, columns)."""
        frames = self.window.grey(self._cut(self.array, plane, index)[np.newaxis])
        return np.asarray(frames[0])

    def label_picture(self, plane: int, index: int) -> Array | None:
        """The ids on one picture, (rows, columns)."""
        return None if self.labels is None else self._cut(self.labels, plane, index)

    def extent(self, plane: int) -> tuple[float, float]:
        """Height and width of a picture in mm."""
        _, _, rows, columns, _ = PLANES[plane]
        return self.array.shape[rows] * self.spacing[rows], self.array.shape[columns] * self.spacing[columns]

    def box_edges(self, plane: int) -> tuple[float, float, float, float] | None:
        """Top, bottom, left and right outer edge of the box in mm, or None without a box."""
        if self.box is None:
            return None
        _, _, rows, columns, _ = PLANES[plane]
        edges = [
            (self.box[2 * axis + end] + end) * self.spacing[axis]
            for axis in (rows, columns)
            for end in (0, 1)
        ]
        return edges[0], edges[1], edges[2], edges[3]

    def ranked_ids(self, margin_mm: float = 5.0) -> list[int]:
        """The ids in and around the box (everywhere without one), the largest there first."""
        if self.labels is None:
            return []
        region = self.labels
        if self.box is not None:
            shape = self.array.shape
            grown = boxes.grow_box(self.box, margin_mm, self.spacing, (shape[0], shape[1], shape[2]))
            region = region[boxes.box_slices(grown)]
        found, counts = label_counts(region)
        ranked = found[np.argsort(-counts, kind="stable")]
        return [int(number) for number in ranked if number != 0]

    def _cut(self, array: Array, plane: int, index: int) -> Array:
        _, axis, rows, columns, _ = PLANES[plane]
        cut = np.take(array, index, axis=axis)
        return np.asarray(cut.T if rows > columns else cut)


def scene(
    volume: KneeVolume,
    mask: KneeVolume | None = None,
    box: boxes.Box | None = None,
    window: views.Window = "percentile",
) -> Scene:
    """Brings a volume, its mask and a box into one order. Reads both files whole.

    Args:
        volume: the image.
        mask: labels in the same space; brought onto the grid of the image where they lie on another.
        box: in slice-first order, as published.
        window: grey values; one window for all pictures.

    Raises:
        GridMismatchError: image and mask lie in different spaces.
        RecordError: the box leaves the volume.
    """
    if box is not None:
        volume.check_box_grid()
    shown = volume.oriented(ORDER)
    array = shown.array()
    names = {} if mask is None else {number: str(name) for number, name in mask.labels().items()}
    labels = None
    if mask is not None:
        own = mask.oriented(ORDER)
        equal = grids.check_relation(shown.grid, own.grid) == "equal"
        labels = own.array() if equal else own.array_on(shown)
    change, grey = reorder(volume.axcodes, ORDER), views.levels(window, array, array, volume.header)
    return Scene(volume, change, array, labels, names, shown.spacing, grey).with_box(box)


def side_by_side(shown: Scene, side: int) -> Array:
    """The three planes in one picture, each in true proportions in a square, with the edges of the box.

    Returns:
        uint8 array of (side, 3 * side, 3).
    """
    canvas = np.zeros((side, 3 * side, 3), np.uint8)
    for plane in range(3):
        extent = np.array(shown.extent(plane))
        height, width = np.maximum(1, np.round(extent * side / extent.max())).astype(int)
        grey = shown.picture(plane, shown.center[PLANES[plane][1]])
        nearest = [
            ((np.arange(n) + 0.5) * size / n).astype(int)
            for n, size in ((height, grey.shape[0]), (width, grey.shape[1]))
        ]
        picture = np.repeat(grey[np.ix_(*nearest)][..., None], 3, axis=2)
        edges = shown.box_edges(plane)
        if edges is not None:
            scale = np.array([height, height, width, width]) / np.repeat(extent, 2)
            top, bottom, left, right = np.array(edges) * scale + 1e-6
            rows, columns = (
                (int(top), int(np.ceil(bottom - 2e-6)) - 1),
                (int(left), int(np.ceil(right - 2e-6)) - 1),
            )
            picture[list(rows), columns[0] : columns[1] + 1] = BOX_RGB
            picture[rows[0] : rows[1] + 1, list(columns)] = BOX_RGB
        y, x = (side - height) // 2, plane * side + (side - width) // 2
        canvas[y : y + height, x : x + width] = picture
    return canvas
