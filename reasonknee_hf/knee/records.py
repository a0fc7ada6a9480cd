"""From one published record to one row.

A record is read as it stands: what does not fit the schema becomes null and is named as a [`Problem`]; its
text stays in `answer` and `final_diagnosis`. Nothing is clipped, rounded or guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2s
from typing import Any

from reasonknee_hf.dataset.contract import Problem
from reasonknee_hf.dataset.json_text import as_json, is_unicode, shown
from reasonknee_hf.knee.moaks import QUESTIONS, Question, fold, question_for_key, question_for_prompt
from reasonknee_hf.knee.scans import Scan

MARKER = "Final diagnosis:"
"""Stands between the reasoning and the diagnosis in `answer`."""

_WRAPPERS = frozenset(map(fold, ("final_diagnosis", "MOAKS_scores", "MOAKS_grade")))
_BOX_KEYS = frozenset(map(fold, ("bounding_box", "bbox")))
_ONLY_INT = frozenset((int,))
_INT8_MAX, _INT32_MAX = 2**7 - 1, 2**31 - 1


class _Unreadable(Exception):
    """Raised inside this module where a column cannot be read."""


class _OutOfRange(_Unreadable):
    """Raised inside this module for a grade outside its space."""


def to_row(
    record: Mapping[str, Any], scan: Scan, image: str | None, mask: str | None
) -> tuple[dict[str, Any], list[Problem]]:
    """The row of a record, with all columns of the config `full`, and what of the record does not fit.

    The row's `id` is `{scan_id}_{question_id}`. A row whose prompt is unknown has no question id: its `id`
    ends in `x` and eight hex digits of a hash of the prompt, so it depends on the scan and the prompt alone.

    Args:
        record: The published object.
        scan: The scan it belongs to.
        image: Path or URL of the volume.
        mask: Path or URL of the mask; `None` if the scan has none.
    """
    problems: list[Problem] = []
    prompt = _text(record, "prompt", problems)
    answer = _text(record, "answer", problems)
    cot = _text(record, "cot", problems)
    if record.get("prompt") is None:
        problems.append(Problem("prompt", "the record has none"))
    question = question_for_prompt(prompt) if prompt else None
    usual = _usual_diagnosis(record.get("final_diagnosis"), question)
    box, grades, final_diagnosis = usual or _diagnosis(record, question, problems)
    row = {
        "id": f"{scan.scan_id}_{question.id if question else _prompt_hash(prompt)}",
        **scan_columns(scan, image, mask),
        "question_id": question.id if question else None,
        "category": question.category if question else None,
        "structure": question.structure if question else None,
        "subregion": question.subregion if question else None,
        "prompt": prompt,
        "bbox": box,
        "cot": _reasoning(answer) if record.get("cot") is None else cot,
        "answer": answer,
        "grades": grades,
        "final_diagnosis": final_diagnosis,
    }
    return row, problems


def scan_columns(scan: Scan, image: str | None, mask: str | None) -> dict[str, Any]:
    """The columns that tell about the scan: all of a row of the config `scans`."""
    return {
        "scan_id": scan.scan_id,
        "patient_id": scan.patient_id,
        "visit": scan.visit,
        "study": scan.study,
        "series": scan.series,
        "knee_side": scan.knee_side,
        "image": None if image is None else {"bytes": None, "path": image},
        "mask": None if mask is None else {"bytes": None, "path": mask},
    }


def _text(record: Mapping[str, Any], column: str, problems: list[Problem]) -> str | None:
    value = record.get(column)
    if value is None or (type(value) is str and value.isascii()):
        return value
    if not isinstance(value, str):
        problems.append(Problem(column, f"{_kind(value)} instead of text"))
        return None
    if not is_unicode(value):
        problems.append(Problem(column, "it has half of a surrogate pair, which no text column can hold"))
        return None
    return value


def _prompt_hash(prompt: str | None) -> str:
    return "x" + blake2s((prompt or "").encode(), digest_size=4).hexdigest()


def _reasoning(answer: str | None) -> str | None:
    """What `answer` says before its (last) marker; `None` without one."""
    before, marker, _ = (answer or "").rpartition(MARKER)
    return before.strip() if marker else None


# --- the usual diagnosis ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """What diagnoses with the same keys have in common.

    Args:
        template: Their JSON text, with `%d` for each number.
        grades: Lesion, short attribute name and largest grade of each grade.
    """

    template: str
    grades: tuple[tuple[str, str, int], ...]


def _usual_diagnosis(
    value: Any, question: Question | None
) -> tuple[list[int], list[dict[str, Any]], str] | None:
    """Box, grades and JSON text of a diagnosis as nearly all are; `None` for any other.

    Those are `{box key: [six integers], wrapper: {lesion of the question: {attribute: grade, …}}}`, without
    anything to complain about. For them it gives the same as [`_diagnosis`], several times faster: what follows
    from the keys is worked out once.
    """
    if type(value) is not dict or len(value) != 2 or question is None:
        return None
    (box_key, box), (wrapper, lesions) = value.items()
    if type(box) is not list or type(lesions) is not dict or len(lesions) != 1:
        return None
    ((lesion, attributes),) = lesions.items()
    if type(attributes) is not dict:
        return None
    form = _form(question.id, box_key, wrapper, lesion, *attributes)
    numbers = (*box, *attributes.values())
    if form is None or len(box) != 6 or not _ONLY_INT.issuperset(map(type, numbers)):
        return None
    start, end, x_min, x_max, y_min, y_max = box
    if start > end or x_min > x_max or y_min > y_max or min(box) < -_INT32_MAX or max(box) > _INT32_MAX:
        return None
    grades = []
    for (name, attribute, high), grade in zip(form.grades, attributes.values(), strict=True):
        if not 0 <= grade <= high:
            return None
        grades.append({"lesion": name, "attribute": attribute, "grade": grade})
    return [*box], grades, form.template % numbers


@lru_cache(maxsize=1024)
def _form(question_id: int, box_key: str, wrapper: str, lesion: str, *names: str) -> _Form | None:
    """The form of diagnoses with these keys; `None` if not all of them are usual for the question."""
    question = QUESTIONS[question_id]
    attributes = [question.attribute(name) for name in names]
    known = [attribute for attribute in attributes if attribute is not None]
    if (
        fold(box_key) not in _BOX_KEYS
        or fold(wrapper) not in _WRAPPERS
        or question_for_key(lesion) is not question
        or not names
        or len(set(known)) < len(names)
    ):
        return None
    number = "\0"  # stands in no key, and json writes it in a way of its own
    text = as_json({box_key: [number] * 6, wrapper: {lesion: dict.fromkeys(names, number)}})
    template = text.replace("%", "%%").replace(json.dumps(number), "%d")
    return _Form(template, tuple((question.lesion, attribute.name, attribute.high) for attribute in known))


# --- box and grades -----------------------------------------------------------------------------------------


def _diagnosis(
    record: Mapping[str, Any], question: Question | None, problems: list[Problem]
) -> tuple[list[int] | None, list[dict[str, Any]] | None, str | None]:
    """Box, grades and JSON text of a record's diagnosis; null where they are absent or do not fit."""
    box = grades = None
    inner_box, lesions = _unwrap(record.get("final_diagnosis"))
    outer_box = next((record[key] for key in record if fold(key) in _BOX_KEYS), None)
    try:
        box = _box(outer_box if inner_box in (None, []) else inner_box)
    except _Unreadable as reason:
        problems.append(Problem("bbox", str(reason)))
    try:
        grades = _grades(lesions, question)
    except _Unreadable as reason:
        problems.append(Problem("grades", str(reason), isinstance(reason, _OutOfRange)))
    text = as_json(record["final_diagnosis"]) if "final_diagnosis" in record else None
    return box, grades, text


def _unwrap(value: Any) -> tuple[Any, Any]:
    """Box and `{lesion: …}` of a diagnosis, whatever it is wrapped in; `None` where it has none."""
    box = None
    while True:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return box, value
        if not isinstance(value, dict):
            return box, value
        lesions = {}
        for key, item in value.items():
            if fold(key) not in _BOX_KEYS:
                lesions[key] = item
            elif box is None:
                box = item
        if len(lesions) != 1 or fold(next(iter(lesions))) not in _WRAPPERS:
            return box, lesions
        (value,) = lesions.values()


def _box(value: Any) -> list[int] | None:
    """Six whole numbers. `12.0` is one, as coordinates are often written; `12.5` and `"12"` are not."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or len(value) != 6:
        raise _Unreadable(f"{shown(value)} instead of six whole numbers")
    for number in value:
        whole = type(number) is int or (type(number) is float and number.is_integer())
        if not whole or not -_INT32_MAX <= number <= _INT32_MAX:
            raise _Unreadable(f"{shown(value)} instead of six whole numbers")
    for low, high in (value[0:2], value[2:4], value[4:6]):
        if low > high:
            raise _Unreadable(f"{shown(value)} has a minimum, {low}, above its maximum, {high}")
    return [int(number) for number in value]


def _grades(lesions: Any, question: Question | None) -> list[dict[str, Any]] | None:
    if lesions is None:
        return None
    if lesions == []:
        return []
    if not isinstance(lesions, dict):
        raise _Unreadable(f"{shown(lesions)} in final_diagnosis instead of an object")
    grades: dict[tuple[str, str], int] = {}
    for key, value in lesions.items():
        graded = question_for_key(key)
        if graded is not None and question is not None and graded is not question:
            raise _Unreadable(f"{graded.lesion!r} is graded, but the prompt asks for {question.lesion!r}")
        lesion = graded.lesion if graded else key.replace("_", " ")
        for name, grade in value.items() if isinstance(value, dict) else [(None, value)]:
            attribute, high = _attribute(name, graded or question, lesion)
            # Not even 2.0: in the source tables a decimal is a pair of grades, size and depth.
            if type(grade) is not int:
                raise _Unreadable(f"{attribute} of {lesion!r} is {shown(grade)}, not a whole number")
            if not 0 <= grade <= high:
                raise _OutOfRange(f"{attribute} of {lesion!r} is {grade}, outside 0-{high}")
            if (lesion, attribute) in grades:
                raise _Unreadable(f"{attribute} of {lesion!r} is graded twice, under different keys")
            if not (is_unicode(lesion) and is_unicode(attribute)):
                raise _Unreadable(f"the key {shown(key)} or {shown(name)} has half of a surrogate pair")
            grades[lesion, attribute] = grade
    return [{"lesion": lesion, "attribute": name, "grade": grade} for (lesion, name), grade in grades.items()]


def _attribute(name: str | None, question: Question | None, lesion: str) -> tuple[str, int]:
    """Short name and largest grade of an attribute; one that the table does not know keeps its name."""
    if question is None:
        return name or "grade", _INT8_MAX
    if name is None:
        if len(question.attributes) > 1:
            raise _Unreadable(
                f"a single value for {lesion!r}, which has {len(question.attributes)} attributes"
            )
        return question.attributes[0].name, question.attributes[0].high
    attribute = question.attribute(name)
    if attribute is None:
        return name, max(known.high for known in question.attributes)
    return attribute.name, attribute.high


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {dict: "an object", list: "an array", str: "text", int: "a number", float: "a number"}
    return names[type(value)]
