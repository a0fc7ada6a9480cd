"""One grade as a model may write it.

| repair | what is read |
|---|---|
| `number_spelling` | `2.0`, `"2"`, `"2.0"`, `"Grade 2"`, `"grade: 2"`, `"Score = 2"`, `"two"` |
| `explained_grade` | `"2 (33-66%)"`, `"Grade 2: medium"`, `"2 - medium"`: a grade, a mark, then words |
| `label` | the name that the prompt gives a grade: `"present"`, `"absent"`, `"medium"`, `"radial tear"` |
| `boolean` | `true` and `false` where 0 and 1 are asked |

Refused, because it would be a guess: `"1-2"`, `"1 or 2"`, `"2/3"`, `"about 2"`, `2.5`, `"33-66%"`.
A grade outside its range is `out_of_range`; it is never moved into the range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from reasonknee_hf.knee.moaks import Attribute, Question

_NUMBER = re.compile(r"(?:(?:moaks\s+)?(?:grade|score)\s*[:=]?\s*)?([+-]?[0-9]{1,9})(?:\.0*)?", re.IGNORECASE)
_NOT_ANOTHER = r"(?!\s*(?:or\b|[0-9<>≥≤]))"
_EXPLAINED = re.compile(
    _NUMBER.pattern
    + rf"(?:\s*\((?!\s*(?:or\b|[0-9]+\s*\)))[^()]*\)|\s*[:=]{_NOT_ANOTHER}.*|\s+[-–—](?=\s){_NOT_ANOTHER}.*)",
    re.IGNORECASE | re.DOTALL,
)
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")

_BINARY = {
    0: ("absent", "no", "not present", "not detected", "negative"),
    1: ("present", "yes", "detected", "positive"),
}
_SIZES = {0: ("none", "absent"), 1: ("small",), 2: ("medium",), 3: ("large",)}
_SEVERITIES = {0: ("normal",), 1: ("mild",), 2: ("moderate",), 3: ("severe",)}
_FLUID = {
    grade: (size, f"{size} amount of fluid")
    for grade, size in enumerate(("physiologic", "small", "medium", "large"))
}
_NONE = {0: ("none",)}
_DEPTHS = {0: ("none", "no full-thickness loss")}
_MORPHOLOGY = {
    0: ("normal", "normal meniscus"),
    1: ("signal abnormality",),
    2: ("radial tear",),
    3: ("horizontal tear",),
    4: ("vertical tear",),
    5: ("complex tear",),
    6: ("partial maceration",),
    7: ("progressive partial maceration",),
    8: ("complete maceration",),
}
_BY_FAMILY: dict[str, Mapping[int, Sequence[str]]] = {
    "osteophyte": _SIZES,
    "Hoffa-synovitis": _SEVERITIES,
    "effusion-synovitis": _FLUID,
}
_NO_TEAR = ("none", "no tear", "no tear detected")


def grade_labels(question: Question, attribute: Attribute) -> Mapping[int, Sequence[str]]:
    """The names that the prompt gives the grades of `attribute`, lower case, where it gives names."""
    if attribute.name == "tear_location":
        side = question.structure.split()[0]
        parts = ("anterior", "body", "posterior")
        places = {
            code: (part, f"{side} meniscus {part}", f"{side[0]}m{part[0]}") for code, part in enumerate(parts)
        }
        return {**places, 3: _NO_TEAR}
    if attribute.kind == "binary":
        return _BINARY
    if attribute.kind == "nominal":
        return _MORPHOLOGY
    if question.family in _BY_FAMILY:
        return _BY_FAMILY[question.family]
    if attribute.name == "depth":
        return _DEPTHS
    return _NONE if question.category in ("BML", "Cartilage") else {}


@lru_cache(maxsize=512)
def _by_label(question: Question, attribute: Attribute) -> dict[str, int]:
    return {label: grade for grade, labels in grade_labels(question, attribute).items() for label in labels}


def read_grade(value: Any, question: Question, attribute: Attribute) -> tuple[int | None, str | None]:
    """Reads one grade.

    Args:
        value: What stands where the grade should stand.
        question: The question that asks for it.
        attribute: The attribute of the question.

    Returns:
        The grade and the repair that was needed, if any; or `None` and the reason why there is no grade:
        `null_grade`, `not_a_grade` or `out_of_range`.
    """
    number, repair = _number(value, question, attribute)
    if number is None:
        return None, repair
    return (number, repair) if number in attribute.grades else (None, "out_of_range")


def _number(value: Any, question: Question, attribute: Attribute) -> tuple[int | None, str | None]:
    if value is None:
        return None, "null_grade"
    if isinstance(value, bool):
        return (int(value), "boolean") if attribute.kind == "binary" else (None, "not_a_grade")
    if isinstance(value, int):
        return value, None
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer()
        return (int(value), "number_spelling") if whole else (None, "not_a_grade")
    if hasattr(value, "tolist"):  # a number of numpy or torch, in answers that never were text
        return _number(value.tolist(), question, attribute)
    if not isinstance(value, str):
        return None, "not_a_grade"
    text = " ".join(value.split())
    if match := _NUMBER.fullmatch(text):
        return int(match.group(1)), "number_spelling"
    label = text.casefold().rstrip(".")
    if label in _WORDS:
        return _WORDS.index(label), "number_spelling"
    if label in ("true", "false") and attribute.kind == "binary":
        return int(label == "true"), "boolean"
    grade = _by_label(question, attribute).get(label.replace("_", " "))
    if grade is not None:
        return grade, "label"
    if match := _EXPLAINED.fullmatch(text):
        return int(match.group(1)), "explained_grade"
    return None, "not_a_grade"
