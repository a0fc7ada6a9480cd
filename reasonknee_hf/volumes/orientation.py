"""Which way the axes of an array run, and how to reorder them. Pure functions; nothing is ever resampled.

Axis codes are one letter an axis: the direction in which the index grows, of R/L (right, left), A/P
(anterior, posterior), S/I (superior, inferior). An oblique affine gets the codes of the closest of the 48
axis-parallel ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import OptionError

Array = npt.NDArray[Any]
Affine = npt.NDArray[np.float64]

# World axis -> letter for a falling and for a rising coordinate.
_LETTERS = (("L", "R"), ("P", "A"), ("I", "S"))
_WORLD_AXIS = {letter: world for world, pair in enumerate(_LETTERS) for letter in pair}


@dataclass(frozen=True)
class Reorder:
    """A permutation and flips of three axes: axis `i` of the result is axis `axes[i]` of the source."""

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    def array(self, array: Array) -> Array:
        """The reordered array, as a view."""
        step = tuple(slice(None, None, -1) if flip else slice(None) for flip in self.flips)
        return array.transpose(self.axes)[step]

    def shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Shape of the reordered array."""
        first, second, third = self.axes
        return shape[first], shape[second], shape[third]

    def affine(self, affine: Affine, shape: tuple[int, int, int]) -> Affine:
        """Affine of the reordered array; `shape` is the shape before."""
        matrix = np.zeros((4, 4))
        matrix[3, 3] = 1.0
        for axis, (source, flip) in enumerate(zip(self.axes, self.flips, strict=True)):
            matrix[source, axis] = -1.0 if flip else 1.0
            matrix[source, 3] = shape[source] - 1.0 if flip else 0.0
        return affine @ matrix


def axis_codes(affine: Affine) -> str:
    """The three axis codes of an affine, such as `"PIR"`; for oblique ones those of the closest order."""
    cosines = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    best = max(
        permutations(range(3)), key=lambda order: sum(abs(cosines[w, axis]) for axis, w in enumerate(order))
    )
    return "".join(_LETTERS[world][int(cosines[world, axis] > 0)] for axis, world in enumerate(best))


@cache
def check_codes(codes: str) -> str:
    """Returns valid axis codes in capitals.

    Raises:
        OptionError: not one letter of each of R/L, A/P and S/I.
    """
    upper = codes.upper()
    if sorted(_WORLD_AXIS.get(letter, -1) for letter in upper) != [0, 1, 2]:
        raise OptionError(
            f"axis codes {codes!r}: give one letter of each of R/L, A/P and S/I, such as 'RAS' or 'PIR'"
        )
    return upper


@cache
def slice_first_codes(codes: str, across: str = "R") -> str:
    """The slice-first order of a file: the axis that slices lie along first, the other two as stored, no flips.

    Args:
        codes: Of the file.
        across: A letter of the axis that slices lie along: R or L (left-right), A or P, S or I (head-feet).
    """
    front = next(letter for letter in codes if _WORLD_AXIS[letter] == _WORLD_AXIS[across])
    return front + codes.replace(front, "")


@cache  # 48 x 48 pairs at most
def reorder(source: str, target: str) -> Reorder:
    """How to get from axis codes `source` to axis codes `target`."""
    axes: list[int] = []
    flips: list[bool] = []
    for letter in target:
        axis = next(i for i, code in enumerate(source) if _WORLD_AXIS[code] == _WORLD_AXIS[letter])
        axes.append(axis)
        flips.append(source[axis] != letter)
    return Reorder((axes[0], axes[1], axes[2]), (flips[0], flips[1], flips[2]))


def affine_of_codes(codes: str, zooms: tuple[float, float, float]) -> Affine:
    """An axis-parallel affine with the given codes and voxel edges in mm, the first voxel at the origin."""
    affine = np.zeros((4, 4))
    affine[3, 3] = 1.0
    for axis, letter in enumerate(codes):
        world = _WORLD_AXIS[letter]
        affine[world, axis] = zooms[axis] if letter == _LETTERS[world][1] else -zooms[axis]
    return affine
