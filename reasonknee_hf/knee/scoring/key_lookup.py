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


def lesion_hits(node: Any, path: tuple[str, ...], question: Question) -> list[Hit]:
    """Where the asked lesion stands; of two spellings of it in one object the exact one comes last."""
    hits: list[Hit] = []
    _collect(node, path, (), question, squash(question.prompt_key), hits)
    return hits


def _collect(
    node: Any,
    path: tuple[str, ...],
    scope: tuple[dict[str, Any], ...],
    question: Question,
    wanted: str,
    hits: list[Hit],
) -> None:
    if isinstance(node, list):
        for element in node:
            if isinstance(element, dict | list):
                _collect(element, (*path, "[]"), scope, question, wanted, hits)
        return
    exact: list[Hit] = []
    for key, value in node.items():
        key = str(key)
        if squash(key) == wanted:
            named = key in (question.prompt_key, question.release_key)
            (exact if named else hits).append(Hit(path, key, value, (node, *scope)))
        elif isinstance(value, dict | list):
            _collect(value, (*path, key), (node, *scope), question, wanted, hits)
    hits += exact


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


def box_values(node: Any) -> list[Any]:
    """All boxes in `node`, those of an object after those of what is in it, its `bounding_box` last."""
    if isinstance(node, list):
        return [box for element in node for box in box_values(element)]
    if not isinstance(node, dict):
        return []
    deeper = [value for key, value in node.items() if isinstance(value, dict | list) and not _is_box(key)]
    return [box for value in deeper for box in box_values(value)] + _own_boxes(node)


def _is_box(key: object) -> bool:
    return squash(str(key)) in BOX_KEYS


def _own_boxes(node: dict[str, Any]) -> list[Any]:
    keys = [key for key in node if _is_box(key)]
    if len(keys) > 1:
        keys.sort(key=lambda key: key == BOX_KEY)
    return [node[key] for key in keys]


def boxes_in_scope(hit: Hit) -> list[Any]:
    """The boxes that stand where the asked lesion stands: inside it, else beside it, else further out.

    What belongs to another lesion is passed over. A box that is `null` is one too: it says that there is none.
    """
    inner = hit.value
    if boxes := box_values(inner):
        return boxes
    for node in hit.scope:
        if boxes := _own_boxes(node):
            return boxes
        for key, value in node.items():
            if value is not inner and squash(str(key)) not in _LESIONS and not names_lesion(value):
                boxes += box_values(value)
        if boxes:
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
