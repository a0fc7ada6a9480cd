"""From what a model said to grades and a box: the reading ladder of ReasonKnee-Bench.

Which object counts
    The last complete JSON object in which the asked lesion stands as a key. Case, blanks, underscores and
    punctuation of the key do not matter; an object for another lesion never counts. Where no object names
    any lesion of the benchmark, the last object whose attributes stand at its top, or directly under a
    wrapper, counts (`lesion_key`).
    If the object that counts is bad, an earlier good one does not replace it.

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
       published.
    5. `json_in_text`: a JSON string, or `{"response": "..."}`, that holds the answer.

What stands under the lesion
    An object of attributes or, for a lesion with one attribute, the grade itself. Both spellings that exist
    are exact: the prompt's (`MOAKS_scores`, `Size of lesion`) and the released records' (`final_diagnosis`,
    `size`), as given by the table in `rows/moaks.py`. All else is a named repair: `wrapper`, `lesion_key`,
    `attribute_key`, `bare_grade`, `list`, and those of `grades` for one grade. Unknown keys beside the
    asked ones are ignored (note `extra_key`).

What makes an answer invalid
    `empty`; `error` (the run recorded an error); `no_object` (no complete object); `other_lesion`;
    `no_lesion`; `attribute_missing`, `null_grade`, `not_a_grade`, `out_of_range` (never clipped); in strict
    mode `needs_repair`.
    Digits in free text are not read as grades; with `free_digits=True` a question with one attribute takes
    the answer's only `grade N`, or a text that is a grade and nothing else (repair `free_digits`).

Strict mode turns all repairs off: what would need one is invalid with the reason `needs_repair`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from reasonknee_hf.bench import jsonish
from reasonknee_hf.bench.box_reading import BoxReading, read_box
from reasonknee_hf.bench.grade_reading import read_grade
from reasonknee_hf.bench.lookup import (
    BOX_KEYS,
    Hit,
    attribute_hits,
    attribute_of,
    bare_members,
    box_values,
    lesion_hits,
    names_lesion,
    place_repairs,
    squash,
)
from reasonknee_hf.knee.moaks import Question

MARKER = re.compile(r"final diagnosis\s*:", re.IGNORECASE)
_TAGS = r"(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad)"
_TAG = re.compile(rf"(?:<|◁)(/?){_TAGS}(?:>|▷)", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)(?:</answer>|$)", re.IGNORECASE | re.DOTALL)
_FENCE = re.compile(r"\s*(?:```[ \t]*[\w-]*)?\s*")
_SPECIAL = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?s>|<eos>|<end_of_turn>", re.IGNORECASE)
_ONLY_GRADE = re.compile(r"\b(?:grade|score)\s*(?:is|of|[:=])?\s*([0-9]+)\b(?![.\-–/%]\d)", re.IGNORECASE)


@dataclass(slots=True)
class Reading:
    """What an answer says.

    Args:
        reason: `None` where every asked attribute has a valid grade, else the first reason why not.
        grades: The valid grades by short attribute name.
        problems: The reason for each asked attribute without a valid grade.
        box: Six numbers as answered, in the answer's own order and scale; `None` where there is no readable
            box.
        box_problem: Why a box that was given cannot be read.
        repairs: Names of the repairs used, in the order of use.
        notes: What was seen and did not have to be repaired: `reasoning`, `answer_tags`, `marker` (how the
            answer was set apart), `extra_key`, `earlier_answer` (another answer stood before),
            `repeated_answer` (the same one did).
        span: Where the object that counts stands in the answer's text.
    """

    reason: str | None = None
    grades: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    box: tuple[float, ...] | None = None
    box_problem: str | None = None
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    span: tuple[int, int] | None = None

    @property
    def valid(self) -> bool:
        return self.reason is None


def read_answer(
    answer: Any, question: Question, *, strict: bool = False, free_digits: bool = False
) -> Reading:
    """Reads one answer by the rules of this module.

    Args:
        answer: Raw model text, or an object as parsed from JSON.
        question: What was asked.
        strict: Turns all repairs off.
        free_digits: Lets a question with one attribute be answered by `grade N` in free text.
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
    text = _SPECIAL.sub(lambda match: " " * len(match.group()), text)
    if not text.strip():
        return _invalid("empty", question)
    visible, hidden = _split_reasoning(text)
    start, stop, notes = _set_apart(visible)
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
    reading = _choose(list(jsonish.objects(visible)), question, visible)
    if reading.reason == "no_object" and free_digits:
        reading = _read_free(visible, question)
    if reading.span and hidden is not visible:
        repairs += _surroundings(text, reading.span)
    reading.repairs = repairs + reading.repairs
    return reading


def _set_apart(text: str) -> tuple[int, int, list[str]]:
    """Where the part of `text` lies that says of itself that it is the answer; all of it if none does."""
    for match in reversed(list(_ANSWER.finditer(text))):
        return match.start(1), match.end(1), ["answer_tags"]
    for match in reversed(list(MARKER.finditer(text))):
        return match.end(), len(text), ["marker"]
    return 0, len(text), []


def _split_reasoning(text: str) -> tuple[str, str | None]:
    """`text` without its reasoning, and its reasoning alone; the rest is blanked so that places stay."""
    spans: list[tuple[int, int]] = []
    opened = None
    for tag in _TAG.finditer(text):
        if not tag.group(1):
            opened = tag.start() if opened is None else opened
        elif opened is None:
            # No opening tag: it stood in the prompt, as chat templates of reasoning models have it.
            spans = [(0, tag.end())]
        else:
            spans.append((opened, tag.end()))
            opened = None
    if opened is not None:
        spans.append((opened, len(text)))
    if not spans:
        return text, None
    visible, hidden, last = [], [], 0
    for start, stop in spans:
        visible += [text[last:start], " " * (stop - start)]
        hidden += [" " * (start - last), text[start:stop]]
        last = stop
    return "".join([*visible, text[last:]]), _TAG.sub(lambda m: " " * len(m.group()), "".join(hidden))


def _surroundings(text: str, span: tuple[int, int]) -> list[str]:
    before, after = text[: span[0]], text[span[1] :]
    if not before.strip() and not after.strip():
        return []
    fenced = _FENCE.fullmatch(before) and _FENCE.fullmatch(after)
    return ["code_fence" if fenced else "surrounding_text"]


def _choose(found: list[jsonish.Found], question: Question, text: str = "") -> Reading:
    """The reading of the last object for the asked lesion among `found`."""
    wanted = squash(question.prompt_key)
    hits = [(item, hit) for item in found for hit in lesion_hits(item.value, (), wanted)]
    bare = False
    if not hits and text:
        hits = [(item, Hit((), key, item.value)) for key, item in bare_members(text, wanted)]
        bare = bool(hits)
    others = not hits and any(names_lesion(item.value) for item in found)
    if not hits and not others:
        hits = [(item, hit) for item in found for hit in attribute_hits(item.value, (), question)]
    boxes = [(item, raw) for item in found for raw in box_values(item.value)]
    if text and not boxes:
        boxes = [(item, item.value) for key, item in bare_members(text, *BOX_KEYS)]
    if not hits:
        reason = "no_object" if not found else "other_lesion" if others else "no_lesion"
        reading = _invalid(reason, question)
        _add_box(reading, boxes, None)
        return reading
    item, hit = hits[-1]
    reading = Reading(span=(item.start, item.stop))
    reading.repairs += item.repairs
    if len(hits) > 1:
        same = all(other.value == hit.value for _, other in hits)
        reading.notes.append("repeated_answer" if same else "earlier_answer")
    if bare:
        reading.repairs.append("bare_member")
    else:
        reading.repairs += place_repairs(hit, question)
    _read_grades(reading, hit.value, question)
    _add_box(reading, boxes, item)
    return reading


def _add_box(reading: Reading, boxes: list[tuple[jsonish.Found, Any]], chosen: jsonish.Found | None) -> None:
    """The last box in the object that counts, else the last one anywhere in the answer; `null` is no box."""
    given = [(item, raw) for item, raw in boxes if raw is not None]
    if not given:
        return
    inside = [(item, raw) for item, raw in given if item is chosen]
    read: BoxReading = read_box((inside or given)[-1][1])
    reading.box, reading.box_problem = read.values, read.problem
    if read.repair:
        reading.repairs.append(read.repair)


def _read_grades(reading: Reading, value: Any, question: Question) -> None:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
        reading.repairs.append("list")
    given: dict[str, Any] = {}
    first = question.attributes[0]
    if isinstance(value, dict):
        for key, raw in value.items():
            name = attribute_of(str(key), question)
            if name is None:
                _once(reading.notes, "extra_key")
                continue
            if name in given and given[name] != raw:
                _once(reading.repairs, "repeated_key")
            given[name] = raw
            if not any(key in (attribute.name, attribute.prompt_key) for attribute in question.attributes):
                _once(reading.repairs, "attribute_key")
    elif len(question.attributes) == 1:
        given[first.name] = value
        if first.prompt_key is not None:
            reading.repairs.append("bare_grade")
    else:
        reading.problems = {attribute.name: "attribute_missing" for attribute in question.attributes}
        reading.reason = "attribute_missing"
        return
    for attribute in question.attributes:
        if attribute.name not in given:
            reading.problems[attribute.name] = "attribute_missing"
            continue
        grade, remark = read_grade(given[attribute.name], question, attribute)
        if grade is None:
            reading.problems[attribute.name] = remark or "not_a_grade"
        else:
            reading.grades[attribute.name] = grade
            if remark:
                _once(reading.repairs, remark)
    reading.reason = next(iter(reading.problems.values()), None)


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
