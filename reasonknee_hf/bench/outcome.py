"""What came of each item of a run: between scoring and the report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reasonknee_hf.bench.inputs import Merged
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.references import References

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STAGES = ("no valid answer", "wrong place", "wrong grade", "right")
"""The first link that broke, for each item; `wrong grade` means: right place, wrong grade."""


@dataclass
class Outcome:
    """What came of each item, in the order of `references`.

    Args:
        references: The items.
        merged: The answers by id, and what was seen while merging.
        readings: What each answer says; `None` where there is no answer.
        reasons: Why an item has no valid answer; `None` where it has one.
        predicted: The answered grade for each reference grade, -1 where there is no valid one.
        graded: Whether an item has reference grades.
        right: Whether all of them were met.
        boxes: Answered boxes (n, 6) in voxels and in the data's order, NaN where there is no valid one.
        box_problems: Why an item with a reference box has no valid answered one; `""` where it has.
        iou: NaN where there is no reference box; 0 without a valid answered one.
        distance: Between centres, in mm; NaN where either box is missing.
        stage: Index into `STAGES`; -1 where an item is not graded.
        places_judged: Whether any answer of the run holds a box; if not, no item fails for its place.
        warnings: What in the boxes looks wrong.
    """

    references: References
    merged: Merged
    readings: list[Reading | None]
    reasons: list[str | None]
    predicted: Ints
    graded: Bools
    right: Bools
    boxes: Floats
    box_problems: npt.NDArray[np.str_]
    iou: Floats
    distance: Floats
    stage: Ints
    places_judged: bool
    warnings: list[str]
