"""Boxes in answers: what convention they follow, and how well they fit.

A reference box is `[start_slice, end_slice, x_min, x_max, y_min, y_max]` in voxels of the slice-first array
(axis 0 = slice, axis 1 = x, axis 2 = y). What a model's numbers mean is said by a [`BoxConvention`] and
never guessed:

- `ends`: with `"inclusive"` (as the data) a side has max - min + 1 voxels; with `"continuous"` its length
  is max - min.
  It applies to both boxes.
- `order`: six letters that say what each number is; the first of a letter is the minimum, the second the
  maximum:
  `s` slice, `x`, `y`. `ssxxyy` is the order of the data, `sxysxy` two corners, `ssyyxx` swapped axes.
- `grid`: the grid the model answered in: `None` for the voxels themselves, `(1, 1, 1)` for fractions,
  `(1000, 1000, 1000)` for thousandths, or the shape of a resized input. Numbers are multiplied by `shape /
  grid`, minimum and maximum alike, without rounding or clipping.

A box that is malformed (not six numbers), not finite (or beyond 1e9 in size), reversed (min > max) or empty
(min = max with continuous ends) is invalid and scores 0. A box that reaches outside the volume is scored as
it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import OptionError

Floats = npt.NDArray[np.float64]
Ends = Literal["inclusive", "continuous"]

ORDER = "ssxxyy"

LIMIT = 1e9
"""No volume is as large."""


@dataclass(frozen=True)
class BoxConvention:
    """What the six numbers of an answer mean; see the module's text.

    Args:
        ends: `inclusive` or `continuous`.
        order: Six letters out of `s`, `x`, `y`, each twice.
        grid: Size of the answer's grid along (slice, x, y); `None` for voxels.
        shape: Size of the volumes along (slice, x, y) in voxels; needed with `grid`.

    Raises:
        OptionError: A value is not one of these.

    Examples:
        >>> convention = rk.bench.BoxConvention(ends="continuous", order="ssxxyy")
        >>> convention.describe()
        'ends continuous, order ssxxyy, voxels'
    """

    ends: Ends = "inclusive"
    order: str = ORDER
    grid: tuple[float, float, float] | None = None
    shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.ends not in ("inclusive", "continuous"):
            raise OptionError(f"Box ends are 'inclusive' or 'continuous', not {self.ends!r}.")
        if sorted(self.order) != sorted(ORDER):
            raise OptionError(
                f"A box order has each of s, x and y twice, e.g. {ORDER!r} or 'sxysxy', not {self.order!r}."
            )
        for name, sizes in (("grid", self.grid), ("shape", self.shape)):
            if sizes is not None:
                check_sizes(name, sizes)
        if self.grid is not None and self.shape is None:
            raise OptionError("Boxes on another grid need `shape`, the size of the volumes in voxels.")

    def to_voxels(self, boxes: Floats) -> Floats:
        """Boxes of shape (n, 6) as answered, in the data's order and in voxels."""
        columns = [i for letter in "sxy" for i, other in enumerate(self.order) if other == letter]
        boxes = boxes[:, columns]
        if self.grid is not None and self.shape is not None:
            boxes = boxes * np.repeat(np.divide(self.shape, self.grid), 2)
        return boxes

    def describe(self) -> str:
        """One line for reports."""
        grid = (
            "voxels"
            if self.grid is None
            else f"grid {_shape(self.grid)} of volumes {_shape(self.shape or ())}"
        )
        return f"ends {self.ends}, order {self.order}, {grid}"


def check_sizes(name: str, sizes: Sequence[float]) -> None:
    """Raises [`OptionError`] unless `sizes` are three finite numbers above 0."""
    try:
        fits = len(sizes) == 3 and all(0 < size < math.inf for size in sizes)
    except TypeError:
        fits = False
    if not fits:
        raise OptionError(f"{name} is three numbers above 0, along slice, x and y, not {sizes!r}.")


def _shape(sizes: tuple[float, ...]) -> str:
    return "x".join(f"{size:g}" for size in sizes)


def problems(boxes: Floats, ends: Ends) -> npt.NDArray[np.str_]:
    """For boxes (n, 6) in voxels: `""` where a box is valid, else `not_finite`, `reversed` or `empty`."""
    low, high = boxes[:, 0::2], boxes[:, 1::2]
    found = np.full(len(boxes), "", dtype="U12")
    if ends == "continuous":
        found[(high == low).any(axis=1)] = "empty"
    found[(high < low).any(axis=1)] = "reversed"
    found[~(np.abs(boxes) <= LIMIT).all(axis=1)] = "not_finite"
    return found


def iou(a: npt.ArrayLike, b: npt.ArrayLike, ends: Ends = "inclusive") -> Floats:
    """Intersection over union of boxes.

    Args:
        a: Boxes of shape (..., 6), `[start_slice, end_slice, x_min, x_max, y_min, y_max]`.
        b: Boxes of the same or a broadcastable shape.
        ends: `inclusive`: a side has max - min + 1 voxels; `continuous`: its length is max - min.

    Returns:
        Values from 0 to 1; 0 where either box is invalid.

    Examples:
        >>> import numpy as np
        >>> boxes = np.array([[0, 9, 0, 9, 0, 9], [5, 14, 0, 9, 0, 9]], float)
        >>> rk.bench.iou(boxes[:1], boxes[1:], "inclusive").round(3)
        array([0.333])
    """
    first, second = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    shape = first.shape[:-1]
    first, second = first.reshape(-1, 6), second.reshape(-1, 6)
    valid = (problems(first, ends) == "") & (problems(second, ends) == "")
    extra = 1.0 if ends == "inclusive" else 0.0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        overlap = (
            np.minimum(first[:, 1::2], second[:, 1::2]) - np.maximum(first[:, 0::2], second[:, 0::2]) + extra
        )
        shared = np.prod(np.maximum(overlap, 0.0), axis=1)
        volumes = [np.prod(box[:, 1::2] - box[:, 0::2] + extra, axis=1) for box in (first, second)]
        ratio = shared / (volumes[0] + volumes[1] - shared)
    # Rounding may leave a ratio a hair above 1, or 0 / 0 for sides too short for a float to hold their
    # volume.
    return np.where(valid, np.clip(np.nan_to_num(ratio), 0.0, 1.0), 0.0).reshape(shape)


def centre_distance(a: Floats, b: Floats, spacing: npt.ArrayLike) -> Floats:
    """Distance in mm between the centres of boxes (n, 6), with `spacing` in mm along (slice, x, y)."""
    offset = (a[:, 0::2] + a[:, 1::2] - b[:, 0::2] - b[:, 1::2]) / 2
    return np.asarray(np.sqrt(((offset * np.asarray(spacing, np.float64)) ** 2).sum(axis=1)))


def suspicions(answered: Floats, reference: Floats, convention: BoxConvention) -> list[str]:
    """What in the answered boxes looks like another scale or order than the declared one. Scores are not
    touched.

    Args:
        answered: Boxes (n, 6) as answered, before [`BoxConvention.to_voxels`].
        reference: The reference boxes (n, 6) of the same items.
        convention: The declared convention.
    """
    if not len(answered):
        return []
    warnings = []
    boxes = convention.to_voxels(answered)
    negative = int((boxes < 0).any(axis=1).sum())
    if negative:
        warnings.append(
            f"{negative} of {len(boxes)} boxes have negative coordinates: they reach outside the volume."
        )
    fractions = convention.grid is None and float(np.mean((np.abs(answered) <= 1).all(axis=1)))
    if fractions and fractions >= 0.5:
        return [
            *warnings,
            f"{fractions:.0%} of the boxes lie within 0 and 1: fractions? Then declare the grid 1,1,1.",
        ]
    if convention.shape is not None:
        limit = np.asarray(convention.shape, np.float64)
    else:
        limit = reference.max(axis=0)[1::2] * 1.25
    outside = int((boxes[:, 1::2] > limit).any(axis=1).sum())
    if outside * 5 >= len(boxes):
        text = "another scale, e.g. thousandths or a resized input?"
        warnings.append(f"{outside} of {len(boxes)} boxes reach far beyond the reference boxes: {text}")
    return warnings + _better_fits(answered, reference, convention)


def _better_fits(answered: Floats, reference: Floats, convention: BoxConvention) -> list[str]:
    """Other orders and scales under which the boxes would fit better by 0.1 and a third of mean IoU."""
    if len(answered) < 5:
        return []

    def fit(boxes: Floats) -> float:
        return float(iou(boxes, reference, convention.ends).mean())

    voxels = convention.to_voxels(answered)
    needed = max(fit(voxels) + 0.1, fit(voxels) * 4 / 3)
    orders: dict[str, float] = {}
    for axes in permutations("sxy"):
        for order in ("".join(2 * axis for axis in axes), "".join(axes) * 2):
            other = BoxConvention(convention.ends, order, convention.grid, convention.shape)
            orders[order] = fit(other.to_voxels(answered))
    best = max(orders, key=lambda order: orders[order])
    warnings = []
    if orders[best] >= needed:
        warnings.append(
            f"Read in the order {best} the boxes would fit better (mean IoU {orders[best]:.3f} instead of "
            f"{fit(voxels):.3f}): is the declared order {convention.order} right?"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        # Least squares through zero, one factor an axis; medians of ratios would suffer from boxes that
        # start at 0.
        pairs = voxels.reshape(-1, 3, 2), reference.reshape(-1, 3, 2)
        factors = (pairs[0] * pairs[1]).sum(axis=(0, 2)) / (pairs[0] ** 2).sum(axis=(0, 2))
    if np.isfinite(factors).all():
        scaled = fit(voxels * np.repeat(factors, 2))
        if scaled >= needed and scaled >= orders[best]:
            text = ", ".join(f"{factor:.3g}" for factor in factors)
            warnings.append(
                f"Multiplied by ({text}) along slice, x and y the boxes would fit better (mean IoU "
                f"{scaled:.3f} instead of {fit(voxels):.3f}): another grid?"
            )
    return warnings
