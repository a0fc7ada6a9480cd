"""Rows of the `bench` config as references: one pass, no volume touched."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from reasonknee_hf.bench.references import AttributeKind, References, Scheme
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS, Question
from reasonknee_hf.knee.records import to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import unlisted_scan

COLUMNS = ("id", "scan_id", "patient_id", "question_id", "prompt", "bbox", "grades")
"""The columns that scoring needs."""

PAPER_COLUMNS = ("BML", "Cartilage", "Osteophyte", "Meniscus", "Others")
"""The paper's five columns; the last is all categories that are not one of the first four."""


def _attribute_kinds() -> dict[tuple[str, str], AttributeKind]:
    kinds: dict[tuple[str, str], AttributeKind] = {}
    for question in QUESTIONS.values():
        for attribute in question.attributes:
            # Ligaments share a family, but a tear of the ACL and one of the PCL are not one thing to grade.
            family = question.structure if question.family == "ligament/tendon" else question.family
            name = f"{family}: {attribute.name}"
            kinds[str(question.id), attribute.name] = AttributeKind(
                name, question.category, attribute.high, attribute.kind
            )
    return kinds


_KIND_OF = _attribute_kinds()
ATTRIBUTE_KINDS: tuple[AttributeKind, ...] = tuple(dict.fromkeys(_KIND_OF.values()))
"""All attributes, in the order of the questions."""
_KIND_CODE = {key: ATTRIBUTE_KINDS.index(kind) for key, kind in _KIND_OF.items()}

STRUCTURES: tuple[str, ...] = tuple(dict.fromkeys(question.structure for question in QUESTIONS.values()))


COMPARTMENTS = ("patellofemoral", "medial tibiofemoral", "lateral tibiofemoral", "no compartment")


def _compartment(question: Question) -> str:
    where = f"{question.structure} {question.subregion}"
    if "patella " in where or "trochlea" in where:
        return COMPARTMENTS[0]
    sides = [name for name in COMPARTMENTS[1:3] if name.split()[0] in where]
    return sides[0] if sides else COMPARTMENTS[3]


def _group_of(question: Question, group: str) -> str:
    if group == "compartment":
        return _compartment(question)
    if group == "structure":
        return question.structure
    if group == "paper" and question.category not in PAPER_COLUMNS:
        return "Others"
    return question.category


def _groups(group: str, names: tuple[str, ...]) -> tuple[tuple[str, ...], dict[int, int]]:
    return names, {question.id: names.index(_group_of(question, group)) for question in QUESTIONS.values()}


SCHEME = Scheme(
    ATTRIBUTE_KINDS,
    {
        group: _groups(group, names)
        for group, names in (
            ("category", CATEGORIES),
            ("paper", PAPER_COLUMNS),
            ("structure", STRUCTURES),
            ("compartment", COMPARTMENTS),
        )
    },
)


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

    Examples:
        >>> from reasonknee_hf.knee.scoring.reference_reading import read_references
        >>> rows = rk.load_dataset("bench", split="test", streaming=True, source="sample", masks=False)
        >>> len(read_references(rows))
        124
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
        scheme=SCHEME,
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


logger = logging.getLogger(__name__)


def release_rows(
    release: Release, split: str = "test", *, annotations: str = "all", scans: int | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of one split; `image` is the stored `{bytes, path}` of the volume, not opened.

    Args:
        release: From `open_release`.
        split: The split.
        annotations: `all` or `balanced`.
        scans: The first so many scans only, at least 1.

    Raises:
        OptionError: There is no such split or kind, or `scans` is below 1.
        ReleaseError: The release has no annotations of that split and kind.
        AnnotationError: The annotation file is not the JSON it should be.
    """
    for option, value, valid in (
        ("split", split, layout.SPLITS),
        ("annotations", annotations, ("all", "balanced")),
    ):
        if value not in valid:
            raise OptionError(f"There is no {option} {value!r}. Valid: {', '.join(valid)}.")
    if scans is not None and scans < 1:
        raise OptionError(f"scans= is a number of scans, at least 1, not {scans}.")
    path = release.annotation_path(split, annotations)
    images: dict[str, str] = {}

    def within(row: dict[str, Any]) -> bool:
        return scans is None or len(images) <= scans

    def rows() -> Iterator[dict[str, Any]]:
        for record in iter_records(release.tree.stream(path), name=f"{path} of {release.tree.name}"):
            named = record.value.get("image")
            scan = release.scan_of(named, split) or unlisted_scan(named, split)
            if scan.scan_id not in images:
                images[scan.scan_id] = release.image_url(scan)
            row, problems = to_row(record.value, scan, images[scan.scan_id], None)
            for problem in problems:
                logger.warning("row %s: %s", row["id"], problem)
            yield row

    return takewhile(within, rows())
