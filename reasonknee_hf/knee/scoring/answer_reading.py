"""From what a model said to grades and a box: the reading ladder of ReasonKnee-Bench.

The rules as published, each with the golden case that fixes it: `BENCHMARK.md`.

Which object counts
    The last complete JSON object in which the asked lesion stands as a key. Case, blanks, underscores and
    punctuation of the key do not matter; an object for another lesion never counts. Where no object names
    any lesion of the benchmark, the last object whose attributes stand at its top, or directly under a
    wrapper, counts (`lesion_key`).
    If the object that counts is bad, an earlier good one does not replace it, nor one after which another
    answer begins that is never finished (`truncated`).

Which box counts
    The one inside the asked lesion; else the one beside it; else the one further out; else that of an object
    without a lesion right before it, or after it at the end. `null` says that there is none. A box of another
    lesion, of an earlier answer or of an answer about another lesion never counts.

The ladder (each step only where the one before found nothing; what was used is recorded)
    1. The answer is one JSON value: all of it, or what is set apart in a known way, which is noted and no
       repair.
       Notes: `reasoning` (it follows text in reasoning tags, `<think>` and its kind), `answer_tags`
       (it is what the last `<answer>` holds), `marker` (it follows the last `Final diagnosis:`). Special
       tokens (`<|im_end|>`) are no part of an answer.
    2. `surrounding_text`, `code_fence`: the object stands in other text. Text inside reasoning tags, closed
       or not, does not count, unless nothing stands outside of them (`inside_reasoning`).
    3. The repairs of `jsonish`: quotes, trailing commas, comments, ...
    4. `bare_member`: `"lesion": {...}` without the braces around it, which prompts 58 and 59 ask for as
       published. A number or text there counts only where `,`, `}` or the end follows: `0-3` is no 0.
    5. `json_in_text`: a JSON string, or `{"response": "..."}`, that holds the answer.

What stands under the lesion
    An object of attributes or, for a lesion with one attribute, the grade itself. Both spellings that exist
    are exact: the prompt's (`MOAKS_scores`, `Size of lesion`) and the released records' (`final_diagnosis`,
    `size`), as given by the table in `knee/moaks.py`. All else is a named repair: `wrapper`, `lesion_key`,
    `attribute_key`, `bare_grade`, `list`, and those of `grade_reading` for one grade. An alias (`score`, `value`,
    `percentage`) counts only where the asked key is absent, and not beside a unit. Unknown keys beside the
    asked ones are ignored (note `extra_key`).

What makes an answer invalid
    `empty`; `error` (the run recorded an error); `no_object` (no complete object); `other_lesion`;
    `no_lesion`; `truncated`; `attribute_missing`, `null_grade`, `not_a_grade`, `out_of_range` (never
    clipped), `conflicting` (one attribute twice with different grades); in strict mode `needs_repair`.
    Digits in free text are not read as grades; with `free_digits=True` a question with one attribute takes
    the answer's only `grade N`, or a text that is a grade and nothing else (repair `free_digits`).

Strict mode turns all repairs off: what would need one is invalid with the reason `needs_repair`.
"""

from __future__ import annotations

import re
from typing import Any

from reasonknee_hf.bench import jsonish
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.knee.moaks import Question
from reasonknee_hf.knee.scoring.answer_parts import (
    add_box,
    bare_boxes,
    lone_boxes,
    set_apart,
    split_reasoning,
    surroundings,
    without_special_tokens,
)
from reasonknee_hf.knee.scoring.grade_reading import read_grade
from reasonknee_hf.knee.scoring.key_lookup import (
    ALIAS,
    EXACT,
    Hit,
    Member,
    attribute_hits,
    attribute_of,
    box_values,
    boxes_in_scope,
    has_unit,
    is_lesion,
    lesion_hits,
    members,
    names_lesion,
    place_repairs,
    squash,
)

RULES_VERSION = 2
"""Number of the rules in `BENCHMARK.md`; raised whenever a score could change."""

_ENDED = re.compile(r"\s*(?:[,}]|(?:```\s*)?\Z)")
_ONLY_GRADE = re.compile(
    r"\b(?:grade|score)\s{0,9}(?:is|of|[:=])?\s{0,9}([0-9]+)\b"
    r"(?!\s{0,9}(?:[.\-–—/|]\s{0,9}[0-9]|%|(?:or|to|and|percent|mm|cm)\b))",
    re.IGNORECASE,
)


def read_answer(
    answer: Any, question: Question, *, strict: bool = False, free_digits: bool = False
) -> Reading:
    """Reads one answer by the rules of this module.

    Args:
        answer: Raw model text, or an object as parsed from JSON.
        question: What was asked.
        strict: Turns all repairs off.
        free_digits: Lets a question with one attribute be answered by `grade N` in free text.

    Examples:
        >>> from reasonknee_hf.knee.moaks import QUESTIONS
        >>> from reasonknee_hf.knee.scoring.answer_reading import read_answer
        >>> read_answer('{"size": 2, "depth": 1}', QUESTIONS[24]).grades
        {'size': 2, 'depth': 1}
    """
    try:
        reading = _read(answer, question, strict=strict, free_digits=free_digits)
    except RecursionError:  # nested hundreds of levels deep: no answer to any question
        return _invalid("no_object", question)
    if strict and reading.repairs:
        return _invalid(
            "needs_repair", question, repairs=reading.repairs, notes=reading.notes, span=reading.span
        )
    return reading


def _invalid(reason: str, question: Question, **details: Any) -> Reading:
    return Reading(reason, problems={attribute.name: reason for attribute in question.attributes}, **details)


def _read(answer: Any, question: Question, *, strict: bool, free_digits: bool) -> Reading:
    if isinstance(answer, str):
        return _read_text(answer, question, strict=strict, free_digits=free_digits)
    if answer is None or answer in ({}, []):
        return _invalid("empty", question)
    if not isinstance(answer, dict | list):
        return _read_free(str(answer), question) if free_digits else _invalid("no_object", question)
    reading = _choose([jsonish.Found(answer, 0, 0)], question)
    reading.span = None
    if reading.reason not in ("no_lesion", "no_object") or not isinstance(answer, dict):
        return reading
    if "error" in answer:
        return _invalid("error", question)
    nested = answer.get("response")
    if isinstance(nested, str):  # how the published scripts keep a text that is not JSON
        return _read_text(nested, question, strict=strict, free_digits=free_digits)
    return reading


def _read_text(text: str, question: Question, *, strict: bool, free_digits: bool) -> Reading:
    text = without_special_tokens(text)
    if not text.strip():
        return _invalid("empty", question)
    visible, hidden = split_reasoning(text)
    start, stop, notes = set_apart(visible)
    if hidden is not None:
        notes.insert(0, "reasoning")
    whole = jsonish.strict(text)
    if whole is not None:
        start, notes = 0, []
    else:
        whole = jsonish.strict(visible[start:stop])
    if whole is not None:
        value, span = whole.value, (start + whole.start, start + whole.stop)
        if isinstance(value, str) or (isinstance(value, dict) and list(value) in (["response"], ["error"])):
            reading = _read(value, question, strict=strict, free_digits=free_digits)
            if reading.reason not in ("error", "empty"):
                reading.repairs.insert(0, "json_in_text")
            reading.span = span
            return reading
        if isinstance(value, dict | list):
            found = jsonish.Found(value, *span, whole.repairs)
            reading = _choose([found], question) if value else _invalid("empty", question)
            reading.notes = notes + reading.notes
            return reading
    repairs: list[str] = []
    if hidden and not visible.strip():
        visible, repairs = hidden, ["inside_reasoning"]
    reading = _choose(jsonish.Search(visible).objects(), question, visible)
    if reading.reason == "no_object" and free_digits:
        reading = _read_free(visible, question)
    if reading.span and hidden is not visible:
        repairs += surroundings(text, reading.span)
    reading.repairs = repairs + reading.repairs
    return reading


def _choose(items: list[jsonish.Found], question: Question, text: str = "") -> Reading:
    """The reading of the last object for the asked lesion among `items`, which were found in `text`."""
    found = [one for item in items for one in _elements(item)]
    hits = [
        (n, hit) for n, (item, path) in enumerate(found) for hit in lesion_hits(item.value, path, question)
    ]
    if not hits:
        return _choose_bare(text, items, question) or _choose_unnamed(found, question, text)
    return _reading_of(found, hits, question, text)


def _choose_unnamed(
    found: list[tuple[jsonish.Found, tuple[str, ...]]], question: Question, text: str
) -> Reading:
    """The reading of the last object with the asked attributes, where nothing names a lesion."""
    keys = {member.key for member in members(text)} - {squash(question.prompt_key)}
    if any(names_lesion(item.value) for item, _ in found) or any(map(is_lesion, keys)):
        # An answer about another lesion says nothing about the place of this one either.
        return _invalid("other_lesion" if found else "no_object", question)
    hits = [
        (n, hit) for n, (item, path) in enumerate(found) for hit in attribute_hits(item.value, path, question)
    ]
    if hits:
        return _reading_of(found, hits, question, text)
    reading = _invalid("no_lesion" if found else "no_object", question)
    with_box = [boxes for item, _ in found if (boxes := box_values(item.value))]
    add_box(reading, with_box[-1] if with_box else lone_boxes(text))
    return reading


def _reading_of(
    found: list[tuple[jsonish.Found, tuple[str, ...]]],
    hits: list[tuple[int, Hit]],
    question: Question,
    text: str,
) -> Reading:
    at, hit = hits[-1]
    item = found[at][0]
    if text and _goes_on(text, item.stop, question):
        return _invalid("truncated", question)
    reading = Reading(span=(item.start, item.stop), repairs=[*item.repairs])
    if len(hits) > 1:
        same = all(other.value == hit.value for _, other in hits)
        reading.notes.append("repeated_answer" if same else "earlier_answer")
    reading.repairs += place_repairs(hit, question)
    _read_grades(reading, hit.value, question)
    boxes = boxes_in_scope(hit)
    if not boxes and len(found) > 1:
        boxes = _box_apart([item for item, _ in found], at, {place for place, _ in hits}, text)
    add_box(reading, boxes)
    return reading


def _elements(item: jsonish.Found) -> list[tuple[jsonish.Found, tuple[str, ...]]]:
    """The objects of a list one by one, for each has its own lesion and box."""
    if not isinstance(item.value, list):
        return [(item, ())]
    return [
        (jsonish.Found(element, item.start, item.stop, item.repairs), ("[]",))
        for element in item.value
        if isinstance(element, dict | list)
    ]


def _goes_on(text: str, start: int, question: Question) -> bool:
    """Whether another answer begins after `start` that is never finished; one for another lesion is none."""
    begun = jsonish.unclosed(text, start)
    if begun is None:
        return False
    keys = [member.key for member in members(text, start) if member.value >= begun]
    return squash(question.prompt_key) in keys or not any(map(is_lesion, keys))


def _box_apart(items: list[jsonish.Found], at: int, taken: set[int], text: str) -> list[Any]:
    """The boxes of an object without a lesion right before the one that counts, or after it at the end."""
    places = [at - 1] if at else []
    places += [at + 1] if at + 2 == len(items) else []
    for place in places:
        if place not in taken and _apart(items[place], text):
            boxes = box_values(items[place].value)
            if boxes:
                return boxes
    return []


def _apart(item: jsonish.Found, text: str) -> bool:
    """Whether an object names no lesion and is no member of something that does."""
    return not names_lesion(item.value) and not text[max(0, item.start - 20) : item.start].rstrip().endswith(
        ":"
    )


def _choose_bare(text: str, items: list[jsonish.Found], question: Question) -> Reading | None:
    """The reading of the last `"lesion": value` that stands in no object; `None` where there is none."""
    wanted, all_members, search = squash(question.prompt_key), members(text), jsonish.Search(text)
    values = []
    for at, member in reversed(list(enumerate(all_members))):
        if member.key == wanted and (value := _bare_value(search, member)):
            values.append((at, value))
    if not values:
        return None
    at, value = values[0]
    if _goes_on(text, value.stop, question):
        return _invalid("truncated", question)
    reading = Reading(span=(value.start, value.stop), repairs=[*value.repairs, "bare_member"])
    if len(values) > 1:
        same = all(other.value == value.value for _, other in values)
        reading.notes.append("repeated_answer" if same else "earlier_answer")
    _read_grades(reading, value.value, question)
    boxes = box_values(value.value) or _boxes_beside(text, items, all_members, at, value)
    add_box(reading, boxes or bare_boxes(search, all_members, at, value))
    return reading


def _bare_value(search: jsonish.Search, member: Member) -> jsonish.Found | None:
    """The value of a member that stands in no object. A number or a text counts only if nothing follows it.

    `0-3`, `1 or 2` and `3 mm` begin with a number and are none.
    """
    try:
        found = search.value_at(member.value)
    except jsonish.TooLong:
        return None
    if found is None:
        return None
    if not isinstance(found.value, dict | list) and not _ENDED.match(search.text, found.stop):
        return None
    return jsonish.Found(found.value, member.start, found.stop, found.repairs)


def _boxes_beside(
    text: str, items: list[jsonish.Found], all_members: list[Member], at: int, value: jsonish.Found
) -> list[Any]:
    """The boxes of the object without a lesion right before a lesion that stands in none."""
    before = [item for item in items if item.stop <= value.start][-1:]
    if not before or not _apart(before[0], text):
        return []
    between = [member.key for member in all_members[:at] if member.start >= before[0].start]
    return [] if any(map(is_lesion, between)) else box_values(before[0].value)


def _read_grades(reading: Reading, value: Any, question: Question) -> None:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
        reading.repairs.append("list")
    first = question.attributes[0]
    if isinstance(value, dict):
        given = _given(reading, value, question)
    elif len(question.attributes) == 1:
        given = {first.name: [value]}
        if first.prompt_key is not None:
            reading.repairs.append("bare_grade")
    else:
        given = {}
    for attribute in question.attributes:
        values = given.get(attribute.name, [])
        if not values:
            reading.problems[attribute.name] = "attribute_missing"
            continue
        if any(other != values[0] for other in values[1:]):
            reading.problems[attribute.name] = "conflicting"
            continue
        grade, remark = read_grade(values[0], question, attribute)
        if grade is None:
            reading.problems[attribute.name] = remark or "not_a_grade"
        else:
            reading.grades[attribute.name] = grade
            if remark:
                _once(reading.repairs, remark)
    reading.reason = next(iter(reading.problems.values()), None)


def _given(reading: Reading, value: dict[str, Any], question: Question) -> dict[str, list[Any]]:
    """What stands for each attribute under the key that comes nearest to the asked one.

    An alias counts only where the asked key is absent, and not beside a unit: then it is a measurement.
    """
    given: dict[str, tuple[int, list[Any]]] = {}
    for key, raw in value.items():
        meant = attribute_of(str(key), question)
        if meant is None or (meant[1] == ALIAS and has_unit(value)):
            _once(reading.notes, "extra_key")
            continue
        name, nearness = meant
        nearest, values = given.get(name, (nearness, []))
        if nearness != nearest:
            _once(reading.notes, "extra_key")
        if nearness < nearest:
            values = []
        if nearness <= nearest:
            given[name] = nearness, [*values, raw]
    if any(nearness != EXACT for nearness, _ in given.values()):
        _once(reading.repairs, "attribute_key")
    return {name: values for name, (_, values) in given.items()}


def _once(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _read_free(text: str, question: Question) -> Reading:
    if len(question.attributes) != 1:
        return _invalid("no_object", question)
    attribute = question.attributes[0]
    grade, remark = read_grade(text.strip(), question, attribute)
    if grade is None and remark != "out_of_range":
        # No grade has ten digits, and what has thousands cannot be converted.
        numbers = {int(number.lstrip("0")[:10] or 0) for number in _ONLY_GRADE.findall(text)}
        if len(numbers) != 1:
            return _invalid("no_object", question)
        grade, remark = read_grade(numbers.pop(), question, attribute)
    if grade is None:
        return _invalid(remark or "no_object", question)
    return Reading(grades={attribute.name: grade}, repairs=["free_digits"])
