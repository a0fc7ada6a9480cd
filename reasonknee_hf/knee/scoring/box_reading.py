"""The box of an answer: six numbers, as a list or by the names that the prompts give them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from reasonknee_hf.bench.box_geometry import LIMIT

NAMES = ("start_slice", "end_slice", "x_min", "x_max", "y_min", "y_max")
OAI_DESS_SPACING = (0.7, 0.3646, 0.3646)
"""Voxel size in mm (slice, x, y) of the stored OAI DESS series; used for distances where rows have none."""
_ONLY_INT = frozenset((int,))


@dataclass(frozen=True)
class BoxReading:
    """A box as answered: six finite numbers in the answer's own convention, or why there are none."""

    values: tuple[float, ...] | None
    problem: str | None = None
    repair: str | None = None


def read_box(raw: Any) -> BoxReading:
    """Reads a box value; repairs: `box_by_name` (six named numbers), `box_as_text` (numbers in quotes)."""
    if type(raw) is list and len(raw) == 6 and _ONLY_INT.issuperset(map(type, raw)):  # as nearly all are
        within = min(raw) >= -LIMIT and max(raw) <= LIMIT
        return BoxReading(tuple(map(float, raw))) if within else BoxReading(None, "not_finite")
    repair = None
    if hasattr(raw, "tolist"):  # an array of numpy or torch, in answers that never were text
        raw = raw.tolist()
    if isinstance(raw, str):
        try:
            raw, repair = json.loads(raw), "box_as_text"
        except (ValueError, RecursionError):
            return BoxReading(None, "malformed")
    if isinstance(raw, dict):
        named = {str(key).strip().casefold().replace(" ", "_"): value for key, value in raw.items()}
        if not named.keys() >= set(NAMES):
            return BoxReading(None, "malformed")
        raw, repair = [named[name] for name in NAMES], "box_by_name"
    if not isinstance(raw, list | tuple) or len(raw) != 6:
        return BoxReading(None, "malformed")
    values: list[float] = []
    for number in raw:
        number = number.tolist() if hasattr(number, "tolist") else number
        if isinstance(number, str):
            repair = repair or "box_as_text"
        elif isinstance(number, bool) or not isinstance(number, int | float):
            return BoxReading(None, "malformed")
        try:
            values.append(float(number))
        except (ValueError, OverflowError):
            return BoxReading(None, "malformed")
    if not all(math.isfinite(value) and abs(value) <= LIMIT for value in values):
        return BoxReading(None, "not_finite")
    return BoxReading(tuple(values), None, repair)
