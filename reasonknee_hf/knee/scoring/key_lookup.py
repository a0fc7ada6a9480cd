"""Where in parsed JSON the asked lesion, its attributes and a box stand, however their keys are spelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

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
BOX_KEY = "bounding_box"
BOX_KEYS = frozenset(("boundingbox", "bbox", "box", "boundingbox3d", "3dboundingbox", "bbox3d", "3dbbox"))
_GRADE_KEYS = frozenset(("grade", "score", "value", "moaksgrade", "moaksscore"))
_UNIT_KEYS = frozenset(("unit", "units", "uom"))
_MEMBER = re.compile(r"[\"'“‘]([^\"'“”‘’{}\[\]:\n]{2,80})[\"'”’]\s*:\s*")
_MAX_MEMBERS = 5_000

EXACT, RESPELLED, ALIAS = range(3)
"""How near a key is to the asked one."""


@dataclass
class Hit:
    """The asked lesion inside an object: under which keys, spelled how, with what below it.

    `scope` are the objects around it, from the one that has its key outward.
    """

    path: tuple[str, ...]
    key: str | None
    value: Any
    scope: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Member:
    """A key in quotes with a colon after it, wherever it stands in a text, and where its value begins."""

    key: str
    start: int
    value: int


@lru_cache(maxsize=8192)
def squash(key: str) -> str:
    """`key` by its letters and digits alone: case, blanks, underscores and punctuation do not matter."""
    return "".join(filter(str.isalnum, key)).casefold()


_LESIONS = {squash(question.prompt_key) for question in QUESTIONS.values()}


def lesion_hits(
    node: Any, path: tuple[str, ...], question: Question, scope: tuple[dict[str, Any], ...] = ()
) -> Iterator[Hit]:
    """Where the asked lesion stands; of two spellings of it in one object the exact one comes last."""
    if isinstance(node, list):
        for element in node:
            yield from lesion_hits(element, (*path, "[]"), question, scope)
    elif isinstance(node, dict):
        wanted, exact = squash(question.prompt_key), []
        for key, value in node.items():
            if squash(str(key)) == wanted:
                hit = Hit(path, str(key), value, (node, *scope))
                if key in (question.prompt_key, question.release_key):
                    exact.append(hit)
                else:
                    yield hit
            elif isinstance(value, dict | list):
                yield from lesion_hits(value, (*path, str(key)), question, (node, *scope))
        yield from exact


def names_lesion(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(names_lesion, node))
    return isinstance(node, dict) and any(
        squash(str(key)) in _LESIONS or names_lesion(value) for key, value in node.items()
    )


def attribute_hits(
    node: Any, path: tuple[str, ...], question: Question, scope: tuple[dict[str, Any], ...] = ()
) -> Iterator[Hit]:
    """Attributes at the top of an object or directly under wrappers, without a lesion key between."""
    if isinstance(node, list):
        for element in node:
            yield from attribute_hits(element, (*path, "[]"), question, scope)
    elif isinstance(node, dict):
        if any(attribute_of(str(key), question) for key in node):
            yield Hit(path, None, node, scope)
            return
        for key, value in node.items():
            if squash(str(key)) in WRAPPERS and isinstance(value, dict | list):
                yield from attribute_hits(value, (*path, str(key)), question, (node, *scope))


def members(text: str, start: int = 0) -> list[Member]:
    """All members that stand in `text` from `start` on; none if there are more than any answer has."""
    found = [
        Member(squash(match.group(1)), match.start(), match.end())
        for match in islice(_MEMBER.finditer(text, start), _MAX_MEMBERS + 1)
    ]
    return found if len(found) <= _MAX_MEMBERS else []


def is_lesion(key: str) -> bool:
    """Whether a squashed key is a lesion of the benchmark."""
    return key in _LESIONS


def box_values(node: Any) -> Iterator[Any]:
    """All boxes in `node`, those of an object after those of what is in it, its `bounding_box` last."""
    if isinstance(node, dict):
        for key, value in node.items():
            if squash(str(key)) not in BOX_KEYS:
                yield from box_values(value)
        boxes = [key for key in node if squash(str(key)) in BOX_KEYS]
        for key in sorted(boxes, key=lambda key: key == BOX_KEY):
            yield node[key]
    elif isinstance(node, list):
        for element in node:
            yield from box_values(element)


def boxes_in_scope(hit: Hit) -> list[Any]:
    """The boxes that stand where the asked lesion stands: inside it, else beside it, else further out.

    What belongs to another lesion is passed over. A box that is `null` is one too: it says that there is none.
    """
    inner = hit.value
    if boxes := list(box_values(inner)):
        return boxes
    for node in hit.scope:
        beside = {
            key: value
            for key, value in node.items()
            if value is not inner and squash(str(key)) not in _LESIONS and not names_lesion(value)
        }
        if boxes := list(box_values(beside)):
            return boxes
        inner = node
    return []


def attribute_of(key: str, question: Question) -> tuple[str, int] | None:
    """The short name of the attribute that `key` means, whatever its spelling, and how near the spelling is."""
    return _attribute_of(key, question.id)


@lru_cache(maxsize=8192)
def _attribute_of(key: str, question_id: int) -> tuple[str, int] | None:
    question = QUESTIONS[question_id]
    for attribute in question.attributes:
        if key in (attribute.name, attribute.prompt_key):
            return attribute.name, EXACT
    wanted = squash(key.replace("%", "percent"))
    for nearness in (RESPELLED, ALIAS):
        for attribute in question.attributes:
            spellings = attribute.aliases if nearness == ALIAS else (attribute.name, attribute.prompt_key)
            if wanted in [squash(text.replace("%", "percent")) for text in spellings if text]:
                return attribute.name, nearness
    alone = len(question.attributes) == 1 and wanted in _GRADE_KEYS
    return (question.attributes[0].name, ALIAS) if alone else None


def has_unit(node: dict[str, Any]) -> bool:
    """Whether what `node` says is a measurement."""
    return any(squash(str(key)) in _UNIT_KEYS for key in node)


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
