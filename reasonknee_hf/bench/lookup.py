"""Where in parsed JSON the asked lesion, its attributes and a box stand, however their keys are spelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from reasonknee_hf.bench import jsonish
from reasonknee_hf.knee.moaks import QUESTIONS, Question

WRAPPERS = frozenset(
    (
        "moaksscores",
        "moaksscore",
        "moaksgrade",
        "moaksgrades",
        "finaldiagnosis",
        "diagnosis",
        "answer",
        "result",
    )
)
BOX_KEYS = frozenset(("boundingbox", "bbox", "box", "boundingbox3d", "3dboundingbox", "bbox3d", "3dbbox"))
_GRADE_KEYS = frozenset(("grade", "score", "value", "moaksgrade", "moaksscore"))
_MEMBER = re.compile(r"[\"'“‘]([^\"'“”‘’{}\[\]:\n]{2,80})[\"'”’]\s*:\s*")


@dataclass
class Hit:
    """The asked lesion inside an object: under which keys, spelled how, with what below it."""

    path: tuple[str, ...]
    key: str | None
    value: Any


@lru_cache(maxsize=8192)
def squash(key: str) -> str:
    """`key` by its letters and digits alone: case, blanks, underscores and punctuation do not matter."""
    return "".join(filter(str.isalnum, key)).casefold()


_LESIONS = {squash(question.prompt_key) for question in QUESTIONS.values()}


def lesion_hits(node: Any, path: tuple[str, ...], wanted: str) -> Iterator[Hit]:
    if isinstance(node, list):
        for element in node:
            yield from lesion_hits(element, (*path, "[]"), wanted)
    elif isinstance(node, dict):
        for key, value in node.items():
            if squash(str(key)) == wanted:
                yield Hit(path, str(key), value)
            elif isinstance(value, dict | list):
                yield from lesion_hits(value, (*path, str(key)), wanted)


def names_lesion(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(names_lesion, node))
    return isinstance(node, dict) and any(
        squash(str(key)) in _LESIONS or names_lesion(value) for key, value in node.items()
    )


def attribute_hits(node: Any, path: tuple[str, ...], question: Question) -> Iterator[Hit]:
    """Attributes at the top of an object or directly under wrappers, without a lesion key between."""
    if isinstance(node, list):
        for element in node:
            yield from attribute_hits(element, (*path, "[]"), question)
    elif isinstance(node, dict):
        if any(attribute_of(str(key), question) for key in node):
            yield Hit(path, None, node)
            return
        for key, value in node.items():
            if squash(str(key)) in WRAPPERS and isinstance(value, dict | list):
                yield from attribute_hits(value, (*path, str(key)), question)


def bare_members(text: str, *wanted: str) -> Iterator[tuple[str, jsonish.Found]]:
    for match in _MEMBER.finditer(text):
        if squash(match.group(1)) in wanted:
            found = jsonish.value_at(text, match.end())
            if found is not None:
                yield match.group(1), jsonish.Found(found.value, match.start(), found.stop, found.repairs)


def box_values(node: Any) -> Iterator[Any]:
    children: list[Any] = []
    if isinstance(node, dict):
        for key, value in node.items():
            if squash(str(key)) in BOX_KEYS:
                yield value
            else:
                children.append(value)
    elif isinstance(node, list):
        children = node
    for child in children:
        yield from box_values(child)


def attribute_of(key: str, question: Question) -> str | None:
    """The short name of the attribute that `key` means, whatever its spelling."""
    return _attribute_of(key, question.id)


@lru_cache(maxsize=8192)
def _attribute_of(key: str, question_id: int) -> str | None:
    question = QUESTIONS[question_id]
    wanted = squash(key.replace("%", "percent"))
    for attribute in question.attributes:
        for spelling in (attribute.name, attribute.prompt_key, *attribute.aliases):
            if spelling and squash(spelling.replace("%", "percent")) == wanted:
                return attribute.name
    return question.attributes[0].name if len(question.attributes) == 1 and wanted in _GRADE_KEYS else None


def place_repairs(hit: Hit, question: Question) -> list[str]:
    """How the keys above the grades differ from the prompt's spelling and from that of released records."""
    path = tuple(key for key in hit.path if key != "[]")
    repairs = ["list"] if path != hit.path else []
    wrapped = path == ((question.wrapper,) if question.wrapper else ())
    released = path in [("final_diagnosis",) * depth for depth in range(3)]
    if hit.key not in (question.prompt_key, question.release_key):
        repairs.append("lesion_key")
        right_path = wrapped or released
    else:
        right_path = (wrapped and hit.key == question.prompt_key) or (
            released and hit.key == question.release_key
        )
    return repairs if right_path else [*repairs, "wrapper"]
