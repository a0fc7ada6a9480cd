"""What a model should say about a row: the texts it is trained on, and what a row must hold for each.

The JSON of every target is the one that the row's prompt asks for. The scorer of the bench reads it back
without a repair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.moaks import QUESTIONS, Question
from reasonknee_hf.knee.records import MARKER
from reasonknee_hf.prompting.lessons import name_of

Target = Literal["grades", "box_grades", "reasoning_grades", "think", "think_box"]
TARGETS: tuple[str, ...] = get_args(Target)

BOX_TARGETS = ("box_grades", "think_box")
"""Targets that hold a box, so that the prompt must ask for one."""

BOX_KEY = "bounding_box"
"""The key of the box in the JSON, as released records spell it."""


def target_text(
    row: Mapping[str, Any], target: Target = "grades", *, box: Sequence[int] | None = None
) -> str:
    """The text that a model should answer to a row's question.

    | target | text |
    |---|---|
    | `grades` | the JSON that the prompt asks for |
    | `box_grades` | the same object with the member `bounding_box` in front |
    | `reasoning_grades` | the row's reasoning, `Final diagnosis:`, the JSON of `grades` |
    | `think` | `<think>` the reasoning `</think><answer>` the JSON of `grades` `</answer>` |
    | `think_box` | the same with the JSON of `box_grades` |

    Args:
        row: A row of the config `full` or `high_fidelity`; `bench` has no reasoning.
        target: One of the table.
        box: Six ints to say instead of the row's `bbox`, such as the box in the coordinates of a view.

    Raises:
        OptionError: There is no such target.
        RecordError: The row lacks what the target says: grades, a box, reasoning or a known question.

    Examples:
        >>> from reasonknee_hf.train import target_text
        >>> target_text(row, "box_grades")[:32]
        '{"bounding_box": [14, 18, 18, 34'
    """
    if target not in TARGETS:
        raise OptionError(f"There is no target {target!r}. Valid: {', '.join(TARGETS)}.")
    answer = row_question(row).answer(row_grades(row))
    if target in BOX_TARGETS:
        answer = {BOX_KEY: _box(row) if box is None else [int(end) for end in box], **answer}
    text = json.dumps(answer, ensure_ascii=False)
    if target == "reasoning_grades":
        return f"{_reasoning(row)}\n{MARKER} {text}"
    if target in ("think", "think_box"):
        return f"<think>{_reasoning(row)}</think><answer>{text}</answer>"
    return text


def row_question(row: Mapping[str, Any]) -> Question:
    """The question of the table that a row asks.

    Raises:
        RecordError: The row's prompt is none of the 69, so its `question_id` is null.
    """
    number = row.get("question_id")
    if number is None:
        raise RecordError(
            f"{name_of(row)}: its prompt is none of the 69 questions, so no grades can be asked for. Drop"
            " such rows with"
            ' ds.filter(lambda row: row["question_id"] is not None)'
        )
    return QUESTIONS[int(number)]


def row_grades(row: Mapping[str, Any]) -> dict[str, int]:
    """The grades of a row by short attribute name, one for every attribute of its question.

    Raises:
        RecordError: The row has no grades, or not all that its question asks for.
    """
    question = row_question(row)
    grades = {item["attribute"]: int(item["grade"]) for item in row.get("grades") or ()}
    missing = [attribute.name for attribute in question.attributes if attribute.name not in grades]
    if missing:
        raise RecordError(
            f"{name_of(row)}: it has no grade for {', '.join(missing)} of {question.lesion!r}, so it"
            " cannot be a target."
            " Drop such rows before training"
        )
    return {attribute.name: grades[attribute.name] for attribute in question.attributes}


def _box(row: Mapping[str, Any]) -> list[int]:
    if row.get("bbox") is None:
        raise RecordError(
            f"{name_of(row)}: it has no box (bbox is null). Choose a target without one, such as"
            " 'grades', or drop such rows"
        )
    return [int(end) for end in row["bbox"]]


def _reasoning(row: Mapping[str, Any]) -> str:
    text = row.get("cot")
    if not text:
        why = "the config bench leaves cot out; train on full" if "cot" not in row else "cot is empty"
        raise RecordError(
            f"{name_of(row)}: it has no reasoning ({why}). Or choose the target 'grades' or 'box_grades'"
        )
    return str(text).strip()
