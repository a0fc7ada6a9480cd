"""Mirroring a knee, with everything that depends on its side."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reasonknee_hf.errors import OptionError
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.voxels import Array

_OTHER = {"right": "left", "left": "right"}


@dataclass(frozen=True)
class Mirrored:
    """A mirrored knee; see `mirror`."""

    array: Array
    mask: Array | None
    box: list[int] | None
    side: str | int | None
    text: str | None


def mirror(
    array: Array,
    *,
    mask: Array | None = None,
    box: boxes.Box | None = None,
    side: str | int | None = None,
    text: str | None = None,
) -> Mirrored:
    """Mirrors a slice-first volume from left to right. A right knee becomes a left one.

    Structures keep their names: what was medial is still medial, so labels, grades and such words stay true.
    What changes is the side. This is the only flip that makes another possible knee: one along another axis,
    which swaps front and back or head and feet, would be wrong, and there is no helper for it.

    Args:
        array: voxels, slices (the left-right axis) on axis 0.
        mask: labels on the same grid.
        box: in the order of `array`.
        side: "right" or "left", or 0 or 1 as the column `knee_side` stores them.
        text: reasoning or question; its words "left" and "right" are swapped.

    Returns:
        Views of the arrays, and the box, side and text that belong to them.

    Raises:
        OptionError: an unknown side.
        RecordError: the box leaves the volume.
    """
    if side is not None and side not in (0, 1, "right", "left"):
        raise OptionError(f"side {side!r}: give 'right' or 'left', or 0 or 1 as in the column knee_side")
    moved = None
    if box is not None:
        low, high, *rest = boxes.check_box(box, (array.shape[0], array.shape[1], array.shape[2]))
        moved = [len(array) - 1 - high, len(array) - 1 - low, *rest]
    return Mirrored(
        array=array[::-1],
        mask=None if mask is None else mask[::-1],
        box=moved,
        side=_OTHER[side] if isinstance(side, str) else None if side is None else 1 - side,
        text=None if text is None else re.sub(r"\b(left|right)\b", _swapped, text, flags=re.IGNORECASE),
    )


def _swapped(found: re.Match[str]) -> str:
    word = found[0]
    other = _OTHER[word.lower()]
    return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other
