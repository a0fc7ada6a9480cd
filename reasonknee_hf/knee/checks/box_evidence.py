"""How the six numbers of a box are meant, by the evidence of the masks. Pure functions over arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.knee.moaks import QUESTIONS, Question, fold, question_for_key
from reasonknee_hf.volumes.boxes import box_of, box_slices

Boxes = npt.NDArray[np.int64]
"""`(n, 6)`; slice-first, in pairs, ends inclusive, unless said otherwise."""

_AXES = ("slice", "x", "y")
_ENOUGH = 5  # boxes; fewer prove nothing


@dataclass(frozen=True)
class Convention:
    """One way to write a box.

    Args:
        axes: Which axes of the slice-first array the numbers speak of, in order.
        inclusive: Whether the upper ends belong to the box.
        corners: Whether all lower ends come first, instead of two ends for each axis.
    """

    axes: tuple[int, int, int] = (0, 1, 2)
    inclusive: bool = True
    corners: bool = False

    def __str__(self) -> str:
        order = ", ".join(_AXES[axis] for axis in self.axes)
        layout = "lower corner, upper corner" if self.corners else "two ends an axis"
        return f"axes {order}; {layout}; upper ends {'inclusive' if self.inclusive else 'exclusive'}"

    def write(self, boxes: Boxes) -> Boxes:
        """Boxes as this convention writes them."""
        axes = list(self.axes)
        low, high = boxes[:, 0::2][:, axes], boxes[:, 1::2][:, axes] + (not self.inclusive)
        return np.concatenate([low, high], axis=1) if self.corners else _paired(low, high)

    def read(self, written: Boxes) -> Boxes:
        """The boxes that this convention wrote."""
        low, high = (written[:, :3], written[:, 3:]) if self.corners else (written[:, 0::2], written[:, 1::2])
        back = np.argsort(self.axes)
        return _paired(low[:, back], high[:, back] - (not self.inclusive))


DECLARED = Convention()
"""How rows read the numbers: `[start_slice, end_slice, x_min, x_max, y_min, y_max]`, ends inclusive."""


def conventions() -> Iterator[Convention]:
    """All that are compared, the declared one first."""
    for corners in (False, True):
        for first, second, third in permutations(range(3)):
            for inclusive in (True, False):
                yield Convention((first, second, third), inclusive, corners)


@dataclass(frozen=True)
class BoxEvidence:
    """Which convention fits the masks best.

    Args:
        compared: Boxes that were compared with the box of their structure in the mask.
        ranking: All conventions, the best one first, each with how many boxes are equal to the digit, and the
            mean distance of an end from that of the mask in voxels.
    """

    compared: int
    ranking: tuple[tuple[Convention, int, float], ...]

    @property
    def best(self) -> Convention:
        """The convention that most boxes agree with."""
        return self.ranking[0][0]

    @property
    def conclusive(self) -> bool:
        """Whether the best one is right for half of the boxes or more, and for twice as many as any other."""
        first, second = self.ranking[0][1], self.ranking[1][1]
        return self.compared >= _ENOUGH and 2 * first >= self.compared and first >= 2 * second

    def lines(self) -> list[str]:
        """The verdict and the best three conventions, one line each."""
        verdict = "settle" if self.conclusive else "do not settle"
        return [
            f"{self.compared:,} boxes, compared with the masks, {verdict} how the six numbers are meant",
            *(
                f"{exact:,} equal, mean deviation {deviation:.2f} voxels: {convention}"
                for convention, exact, deviation in self.ranking[:3]
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reasonknee verify --json` prints them."""
        return {
            "compared": self.compared,
            "conclusive": self.conclusive,
            "best_is_declared": self.best == DECLARED,
            "ranking": [
                {"convention": str(convention), "exact": exact, "mean_deviation": round(deviation, 4)}
                for convention, exact, deviation in self.ranking
            ],
        }

    def __str__(self) -> str:
        return "; ".join(self.lines())


def weigh(published: Boxes, structures: Boxes) -> BoxEvidence | None:
    """Compares published boxes with those of their structures under every convention.

    Args:
        published: `(n, 6)` as published.
        structures: `(n, 6)`, the boxes of the same structures in the masks.

    Returns:
        The evidence; `None` without a box to compare.
    """
    if not len(published):
        return None
    ranking = []
    for convention in conventions():
        off = np.abs(convention.write(structures) - published)
        ranking.append((convention, int((off == 0).all(axis=1).sum()), float(off.mean())))
    ranking.sort(key=lambda entry: (-entry[1], entry[2]))  # stable: of equals the declared one wins
    return BoxEvidence(len(published), tuple(ranking))


def outside(boxes: Boxes, shapes: Boxes) -> npt.NDArray[np.bool_]:
    """Which boxes leave their volume of shape `(slices, x, y)`."""
    low, high = boxes[:, 0::2], boxes[:, 1::2]
    leaves: npt.NDArray[np.bool_] = np.any((low < 0) | (high >= shapes) | (low > high), axis=1)
    return leaves


def label_boxes(mask: npt.NDArray[Any]) -> dict[int, list[int]]:
    """The box around each label of a mask, without background 0, in the axis order of the array."""
    boxes: dict[int, list[int]] = {}
    around = box_of(mask)
    if around is None:
        return boxes
    labelled = mask[box_slices(around)]  # mostly a small part, and counting costs by the voxel
    ids = None
    if labelled.dtype.itemsize > 2:  # one stray label may be in the billions: no table goes up to it
        ids, ranks = np.unique(labelled, return_inverse=True)
        labelled = ranks.reshape(labelled.shape)
    top = int(labelled.max()) + 1
    for axis in range(3):
        present = np.zeros((labelled.shape[axis], top), dtype=bool)
        for index in range(labelled.shape[axis]):
            plane = labelled[(slice(None),) * axis + (index,)].ravel(order="K")
            present[index] = np.bincount(plane, minlength=top) > 0
        for rank in np.flatnonzero(present.any(axis=0)):
            label = int(rank if ids is None else ids[rank])
            if label:
                where = np.flatnonzero(present[:, rank]) + around[2 * axis]
                boxes.setdefault(label, []).extend((int(where[0]), int(where[-1])))
    return boxes


def union(boxes: list[list[int]]) -> list[int]:
    """The smallest box around some boxes, at least one."""
    return [(min, max)[end % 2](box[end] for box in boxes) for end in range(6)]


def _paired(low: Boxes, high: Boxes) -> Boxes:
    return np.stack([low, high], axis=2).reshape(-1, 6)


# --- structures --------------------------------------------------------------------------------------------

_SAME_WORD = {"femoral": "femur", "tibial": "tibia", "patellar": "patella"}


def question_labels(labels: Mapping[str, int], mapping: Mapping[str, object]) -> dict[int, frozenset[int]]:
    """Question to the label ids whose common box is its box, as far as they can be told.

    The published mapping counts first. Where it says nothing, the label whose name has the same words as
    structure and subregion of the question is taken, if there is one.

    Args:
        labels: Name to id, from `labels.json`.
        mapping: `question_subregion_mapping.json`: question id or lesion key to the name or id of a label, or
            to several.
    """
    by_name = {fold(name): number for name, number in labels.items()}
    found: dict[int, frozenset[int]] = {}
    for key, value in mapping.items():
        question = QUESTIONS.get(int(key)) if key.isdecimal() else question_for_key(key)
        ids = _ids(value, by_name)
        if question is not None and ids:
            found[question.id] = ids
    by_words = {_words(name): number for name, number in labels.items()}
    for question in QUESTIONS.values():
        number = by_words.get(_words(_site(question)))
        if question.id not in found and number:
            found[question.id] = frozenset([number])
    return found


def _ids(value: object, by_name: Mapping[str, int]) -> frozenset[int]:
    """Label ids of a value of the mapping; none if one of its names is unknown."""
    values = value if isinstance(value, list) else [value]
    ids = [by_name.get(fold(one)) if isinstance(one, str) else one for one in values]
    known = [number for number in ids if type(number) is int and number > 0]
    return frozenset(known) if len(known) == len(ids) else frozenset()


def _site(question: Question) -> str:
    whole = question.subregion in ("whole", "anywhere")
    return question.structure if whole else f"{question.structure} {question.subregion}"


def _words(name: str) -> frozenset[str]:
    return frozenset(_SAME_WORD.get(word, word) for word in re.findall(r"\w+", fold(name)))
