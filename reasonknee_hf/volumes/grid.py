"""Whether two volumes lie on the same grid, and how to bring a mask onto the grid of its image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from reasonknee_hf.errors import GridMismatchError
from reasonknee_hf.volumes.header import corner_distance
from reasonknee_hf.volumes.orientation import Affine, Array

Relation = Literal["equal", "same space", "different"]
_EQUAL = 0.05  # voxels by which corners of equal grids may differ: headers keep float32 and converters round
_OVERHANG = 2.0  # voxels by which the smaller of two fields of view may stick out of the larger one


@dataclass(frozen=True)
class Grid:
    """Where the voxels of an array lie: its shape, and the affine from its indices to mm in the world."""

    shape: tuple[int, int, int]
    affine: Affine


def relation(image: Grid, other: Grid) -> Relation:
    """How two grids relate. Distances are measured in voxels, so the answer does not hang on the voxel size.

    Returns:
        `"equal"`: same shape, and no corner is off by more than 0.05 voxels. `"same space"`: another grid
        (shifted, flipped, finer, cropped), but the field of view of one lies in that of the other, up to two
        voxels. `"different"`: anything else, such as an affine that was lost on the way.
    """
    if image.shape == other.shape and corner_distance(image.affine, other.affine, image.shape) <= _EQUAL:
        return "equal"
    if _lies_within(other, image) or _lies_within(image, other):
        return "same space"
    return "different"


def check_relation(image: Grid, other: Grid, name: str = "the mask") -> Relation:
    """The relation of two grids, as `relation` gives it.

    Raises:
        GridMismatchError: they are in different spaces. The message says by how much.
    """
    found = relation(image, other)
    if found == "different":
        raise GridMismatchError(
            f"{name} (shape {other.shape}) lies elsewhere than its image (shape {image.shape}), on another grid:"
            f" in voxels of the image it spans {_span(other, image)}; check that it belongs to this image and that its"
            " affine is intact"
        )
    return found


def check_equal(image: Grid, other: Grid, name: str = "the mask") -> None:
    """Checks that two grids, whose axes run the same way, are one: same shape, corners within 0.05 voxels.

    Boxes and arrays pass from one to the other unchanged then, and not otherwise: a grid that was resampled, cut or
    shifted would need them resampled too.

    Raises:
        GridMismatchError: they are two. The message says by how much.
    """
    found = check_relation(image, other, name)
    if found != "equal":
        raise GridMismatchError(
            f"{name} (shape {other.shape}) lies in the space of its image (shape {image.shape}) but on another grid: in"
            f" voxels of the image it spans {_span(other, image)}. Boxes live on the grid of the mask and are not"
            " resampled; take the image as it was acquired, or bring the mask onto it with array_on"
        )


def resample(labels: Array, source: Grid, target: Grid) -> Array:
    """Brings labels onto another grid by nearest neighbour. Outside of the source there is 0.

    Args:
        labels: array on `source`, of any type.
        source: grid of the labels.
        target: grid wanted.

    Returns:
        Array of `target.shape`, the type of `labels`.
    """
    matrix = np.linalg.inv(source.affine) @ target.affine
    out = np.zeros(target.shape, dtype=labels.dtype)
    rows, columns = np.meshgrid(np.arange(target.shape[1]), np.arange(target.shape[2]), indexing="ij")
    for index in range(target.shape[0]):
        inside = np.ones(target.shape[1:], dtype=bool)
        places = []
        for axis in range(3):
            a, b, c, shift = matrix[axis]
            # Half a voxel up, then down to the integer: ties go one way, and noise in the affine does not
            # move them.
            place = np.floor(a * index + b * rows + c * columns + shift + 0.5 + 1e-6).astype(np.intp)
            inside &= (place >= 0) & (place < source.shape[axis])
            places.append(place)
        x, y, z = (place[inside] for place in places)
        out[index][inside] = labels[x, y, z]
    return out


def _corners(grid: Grid, into: Grid) -> Affine:
    """The outer corners of a grid (edges of voxels, not centres) in voxel coordinates of another, 3 x 8."""
    ends = np.array(np.meshgrid(*[(-0.5, length - 0.5) for length in grid.shape], indexing="ij")).reshape(
        3, -1
    )
    placed = np.linalg.inv(into.affine) @ grid.affine @ np.vstack([ends, np.ones(8)])
    return np.asarray(placed[:3])


def _lies_within(inner: Grid, outer: Grid) -> bool:
    corners = _corners(inner, outer)
    edges = np.linalg.norm(outer.affine[:3, :3], axis=0)
    slack = _OVERHANG * max(np.linalg.norm(inner.affine[:3, :3], axis=0).max(), edges.max()) / edges
    low, high = corners.min(axis=1) + 0.5, corners.max(axis=1) + 0.5
    return bool((low >= -slack).all() and (high <= np.array(outer.shape) + slack).all())


def _span(grid: Grid, into: Grid) -> str:
    corners = _corners(grid, into)
    return " x ".join(
        f"{low:.1f}..{high:.1f}" for low, high in zip(corners.min(1), corners.max(1), strict=True)
    )
