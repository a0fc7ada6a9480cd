"""The references of a benchmark run as columns: items, and their grades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AttributeKind:
    """An attribute as asked by all questions of one family, e.g. the size of all BML questions.

    Args:
        name: For tables.
        category: Its category.
        high: The largest grade; grades run from 0.
        kind: `ordinal`, `nominal` or `binary`.
    """

    name: str
    category: str
    high: int
    kind: str


@dataclass(frozen=True)
class Scheme:
    """Which attributes a benchmark grades, and into which groups its questions fall.

    Args:
        kinds: All attributes.
        groups: Kind of group (`category` is one) to the names of its groups and the group of each question.
    """

    kinds: tuple[AttributeKind, ...]
    groups: Mapping[str, tuple[tuple[str, ...], Mapping[int, int]]]

    @property
    def categories(self) -> tuple[str, ...]:
        return self.groups["category"][0]

    @cached_property
    def widths(self) -> Ints:
        """Number of grades of each attribute."""
        return np.array([kind.high + 1 for kind in self.kinds])

    @cached_property
    def grade_offsets(self) -> Ints:
        """Where the grades of each attribute begin, all put in a row."""
        return np.concatenate([[0], np.cumsum(self.widths)])

    @cached_property
    def pair_offsets(self) -> Ints:
        """Where the pairs of grades of each attribute begin, all put in a row."""
        return np.concatenate([[0], np.cumsum(self.widths**2)])


@dataclass
class References:
    """Items sorted by id, and their grades as rows of (item, attribute, truth).

    Args:
        scheme: Which attributes and groups there are.
        ids: Item ids, sorted.
        questions: The question of each item; `None` where the row names none of the table.
        prompts: (scan id, prompt) to item index, for files that name items that way.
        patients: Patient code of each item.
        patient_ids: Patient ids, sorted; a code is an index into them.
        scan_ids: The scan of each item.
        boxes: Reference boxes (n, 6), NaN where there is none or the question is unknown.
        spacing: Voxel size in mm (n, 3) along slice, x, y; NaN where rows do not say.
        grade_item: Item index of each grade.
        grade_kind: Index into `scheme.kinds` of each grade.
        grade_name: Short attribute name of each grade.
        truth: The grades.
        unscored: Item id to the reason why (part of) it cannot be graded.
    """

    scheme: Scheme
    ids: list[str]
    questions: list[Any]
    prompts: dict[tuple[str, str], int]
    patients: Ints
    patient_ids: list[str]
    scan_ids: list[str]
    boxes: Floats
    spacing: Floats
    grade_item: Ints
    grade_kind: Ints
    grade_name: list[str]
    truth: Ints
    unscored: dict[str, str]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: list[int]) -> References:
        """The items at `indices` (ascending) alone."""
        kept = np.zeros(len(self), bool)
        kept[indices] = True
        new_index = np.cumsum(kept) - 1
        rows = np.flatnonzero(kept[self.grade_item])
        ids = [self.ids[index] for index in indices]
        patients = sorted({self.patient_ids[code] for code in self.patients[kept]})
        code = {patient: number for number, patient in enumerate(patients)}
        prompts = {key: int(new_index[index]) for key, index in self.prompts.items() if kept[index]}
        return References(
            scheme=self.scheme,
            ids=ids,
            questions=[self.questions[index] for index in indices],
            prompts=prompts,
            patients=np.array([code[self.patient_ids[old]] for old in self.patients[kept]], np.int64),
            patient_ids=patients,
            scan_ids=[self.scan_ids[index] for index in indices],
            boxes=self.boxes[kept],
            spacing=self.spacing[kept],
            grade_item=new_index[self.grade_item[rows]].astype(np.int64),
            grade_kind=self.grade_kind[rows],
            grade_name=[self.grade_name[row] for row in rows],
            truth=self.truth[rows],
            unscored={item: why for item, why in self.unscored.items() if item in set(ids)},
        )

    def item_codes(self, group: str) -> tuple[Ints, tuple[str, ...]]:
        """Group of each item (-1: unknown question) and the names of the groups of that kind."""
        names, codes = self.scheme.groups[group]
        return np.array([-1 if q is None else codes[q.id] for q in self.questions], np.int64), names
