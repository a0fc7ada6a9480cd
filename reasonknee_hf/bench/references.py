"""The references of a benchmark run as columns: one pass over `bench` rows, no volume touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import RecordError
from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS, Attribute, Question

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

COLUMNS = ("id", "scan_id", "patient_id", "question_id", "prompt", "bbox", "grades")
"""The columns that scoring needs."""

PAPER_COLUMNS = ("BML", "Cartilage", "Osteophyte", "Meniscus", "Others")
"""The paper's five columns; the last is all categories that are not one of the first four."""


@dataclass(frozen=True)
class AttributeKind:
    """An attribute as asked by all questions of one family, e.g. the size of all BML questions."""

    family: str
    category: str
    attribute: Attribute

    @property
    def name(self) -> str:
        return f"{self.family}: {self.attribute.name}"


def _attribute_kinds() -> dict[tuple[str, str], AttributeKind]:
    kinds: dict[tuple[str, str], AttributeKind] = {}
    for question in QUESTIONS.values():
        for attribute in question.attributes:
            # Ligaments share a family, but a tear of the ACL and one of the PCL are not one thing to grade.
            family = question.structure if question.family == "ligament/tendon" else question.family
            key = (str(question.id), attribute.name)
            same = next(
                (k for k in kinds.values() if (k.family, k.attribute.name) == (family, attribute.name)), None
            )
            kinds[key] = same or AttributeKind(family, question.category, attribute)
    return kinds


_KIND_OF = _attribute_kinds()
ATTRIBUTE_KINDS: tuple[AttributeKind, ...] = tuple(dict.fromkeys(_KIND_OF.values()))
"""All attributes, in the order of the questions."""
_KIND_CODE = {key: ATTRIBUTE_KINDS.index(kind) for key, kind in _KIND_OF.items()}

STRUCTURES: tuple[str, ...] = tuple(dict.fromkeys(question.structure for question in QUESTIONS.values()))


@dataclass
class References:
    """Items sorted by id, and their grades as rows of (item, attribute, truth).

    Args:
        ids: Item ids, sorted.
        questions: The question of each item; `None` where the row names none of the table.
        prompts: (scan id, prompt) to item index, for files that name items that way.
        patients: Patient code of each item.
        patient_ids: Patient ids, sorted; a code is an index into them.
        scan_ids: The scan of each item.
        boxes: Reference boxes (n, 6), NaN where there is none or the question is unknown.
        spacing: Voxel size in mm (n, 3) along slice, x, y; NaN where rows do not say.
        grade_item: Item index of each grade.
        grade_kind: Index into `ATTRIBUTE_KINDS` of each grade.
        grade_name: Short attribute name of each grade.
        truth: The grades.
        unscored: Item id to the reason why (part of) it cannot be graded.
    """

    ids: list[str]
    questions: list[Question | None]
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
        """Group of each item (-1: unknown question) and group names; by `category`, `paper`, `structure`."""
        names = {"category": CATEGORIES, "paper": PAPER_COLUMNS, "structure": STRUCTURES}[group]
        codes = {question.id: names.index(_group_of(question, group)) for question in QUESTIONS.values()}
        return np.array([-1 if q is None else codes[q.id] for q in self.questions], np.int64), names


def _group_of(question: Question, group: str) -> str:
    if group == "structure":
        return question.structure
    if group == "paper" and question.category not in PAPER_COLUMNS:
        return "Others"
    return question.category


def needed_columns(rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """`rows` without the columns that scoring does not need, if `rows` is a dataset that can drop them."""
    select, names = getattr(rows, "select_columns", None), getattr(rows, "column_names", None)
    if select is None or not names:
        return rows
    kept: Iterable[Mapping[str, Any]] = select([name for name in (*COLUMNS, "spacing") if name in names])
    return kept


def read_references(rows: Iterable[Mapping[str, Any]]) -> References:
    """Reads rows of the `bench` config (or any rows with the columns `COLUMNS`).

    Rows that come twice, as samplers that pad repeat them, count once.

    Args:
        rows: A dataset of any kind, or dicts. Of a dataset only the columns that are needed are read, so
            that no volume is opened.

    Raises:
        RecordError: A row lacks a column or comes twice with different content.
    """
    seen: dict[str, _Row] = {}
    texts: dict[str, str] = {}  # a prompt is the same text in every scan: kept once
    for number, row in enumerate(needed_columns(rows)):
        missing = [name for name in ("id", "question_id", "grades", "bbox") if name not in row]
        if missing:
            raise RecordError(
                f"Reference row {number} has no {', '.join(missing)}. Take rows of the `bench` config."
            )
        item = str(row["id"])
        kept = _row(item, row, texts)
        if seen.setdefault(item, kept) != kept:
            raise RecordError(f"Reference {item} comes twice with different content. Pass one release only.")
    return _columns(dict(sorted(seen.items())))


class _Row(NamedTuple):
    """What is kept of one row, small."""

    scan_id: str
    patient_id: str
    question_id: int | None
    prompt: str
    box: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    grades: tuple[tuple[str, int], ...]
    problem: str | None


def _row(item: str, row: Mapping[str, Any], texts: dict[str, str]) -> _Row:
    def text(name: str, default: str) -> str:
        value = str(row.get(name, default))
        return texts.setdefault(value, value)

    question = None if row["question_id"] is None else QUESTIONS.get(int(row["question_id"]))
    grades, problem = (
        _truth(row["grades"], question) if question else ({}, "the question is not in the table")
    )
    spacing = row.get("spacing")
    return _Row(
        scan_id=text("scan_id", item),
        patient_id=text("patient_id", item),
        question_id=question.id if question else None,
        prompt=text("prompt", ""),
        box=tuple(row["bbox"]) if question and row["bbox"] is not None else None,
        spacing=None if spacing is None else tuple(spacing),
        grades=tuple(grades.items()),
        problem=problem,
    )


def _columns(rows: dict[str, _Row]) -> References:
    patient_ids = sorted({row.patient_id for row in rows.values()})
    patient_code = {patient: code for code, patient in enumerate(patient_ids)}
    boxes, spacing = np.full((len(rows), 6), np.nan), np.full((len(rows), 3), np.nan)
    grades: list[tuple[int, int, int]] = []
    names: list[str] = []
    for index, row in enumerate(rows.values()):
        if row.box is not None:
            boxes[index] = row.box
        if row.spacing is not None:
            spacing[index] = row.spacing
        for name, grade in row.grades:
            grades.append((index, _KIND_CODE[str(row.question_id), name], grade))
            names.append(name)
    table = np.array(grades, np.int64).reshape(-1, 3)
    return References(
        ids=list(rows),
        questions=[None if row.question_id is None else QUESTIONS[row.question_id] for row in rows.values()],
        prompts={(row.scan_id, row.prompt): index for index, row in enumerate(rows.values())},
        patients=np.array([patient_code[row.patient_id] for row in rows.values()], np.int64),
        patient_ids=patient_ids,
        scan_ids=[row.scan_id for row in rows.values()],
        boxes=boxes,
        spacing=spacing,
        grade_item=table[:, 0],
        grade_kind=table[:, 1],
        grade_name=names,
        truth=table[:, 2],
        unscored={item: row.problem for item, row in rows.items() if row.problem},
    )


def _truth(grades: Any, question: Question) -> tuple[dict[str, int], str | None]:
    """The reference grades by short attribute name, and what could not be used of them."""
    if isinstance(grades, Mapping):  # a struct of lists, as some versions of `datasets` give lists of structs
        grades = [dict(zip(grades, values, strict=True)) for values in zip(*grades.values(), strict=True)]
    read: dict[str, int] = {}
    problem = None
    for entry in grades or []:
        attribute = question.attribute(entry["attribute"])
        grade = entry["grade"]
        if attribute is None or grade is None or grade not in attribute.grades:
            problem = f"reference grade {entry['attribute']}={grade} is not a grade of question {question.id}"
        else:
            read[attribute.name] = int(grade)
    if not read and problem is None:
        problem = "the reference has no grades"
    return read, problem
