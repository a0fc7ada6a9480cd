"""JSON objects inside model text: strict JSON where it is strict JSON, else a small set of named repairs.

A reader of its own, not an evaluator: nothing in an answer is ever executed. What it takes beyond JSON,
each under the name that is recorded:

| repair | what is read |
|---|---|
| `quotes` | strings in single or typographic quotes |
| `trailing_comma` | a comma before a closing bracket |
| `comments` | `//`, `#` and `/* */` comments |
| `python_literals` | `True`, `False`, `None` |
| `unquoted_text` | keys and values without quotes that begin with a letter |
| `parentheses` | `(2)` for `2`, `(1, 2)` for a list |
| `number_spelling` | `+2`, `2.`, `.5`, `02` |
| `control_characters` | line feeds and tabs inside strings |
| `repeated_key` | one key twice in one object with different values: the last counts |

An object that is not closed is not an object. Work is bounded whatever the text holds: the last 400 opening
braces of a text are tried, an object has at most 20,000 characters and 24 levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_CHARACTERS = 20_000
MAX_LEVELS = 24
MAX_STARTS = 400

_BLANK = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"' r"|'((?:[^'\\]|\\.)*)'" r"|“([^“”]*)”|‘([^‘’]*)’", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,300}\.?[0-9]{0,300}|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,4})?(?![\w.])")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = re.compile(r"[^\W\d][\w%]*(?:[ \t]+[\w%]+)*")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf")}


class NotJson(ValueError):
    """The text at this place is no object, even with repairs."""


@dataclass(frozen=True)
class Found:
    """A value found in a text.

    Args:
        value: What was read.
        start: Index of its first character in the text.
        stop: Index after its last character.
        repairs: Names of the repairs that were needed, sorted.
    """

    value: Any
    start: int
    stop: int
    repairs: tuple[str, ...] = ()


def strict(text: str) -> Found | None:
    """`text` as one JSON object, list or string, blanks around it aside; `None` if it is anything else."""
    body = text.strip()
    repairs: set[str] = set()
    if body[:1] not in ("{", "[", '"'):  # other JSON values are no answers
        return None
    try:
        value = json.loads(body, object_pairs_hook=_pairs(repairs))
    except (ValueError, RecursionError):
        return None
    start = len(text) - len(text.lstrip())
    return Found(value, start, start + len(body), tuple(sorted(repairs)))


def objects(text: str) -> Iterator[Found]:
    """All complete objects of `text` that lie in no other, from left to right."""
    starts = [match.start() for match in re.finditer(r"\{", text)][-MAX_STARTS:]
    stop = 0
    for start in starts:
        if start < stop:
            continue
        found = value_at(text, start)
        if found is not None and isinstance(found.value, dict):
            stop = found.stop
            yield found


def value_at(text: str, start: int) -> Found | None:
    """The value that begins at `start`, strict or repaired; `None` if there is none or it is not complete."""
    window = text[start : start + MAX_CHARACTERS]
    repairs: set[str] = set()
    try:
        value, length = json.JSONDecoder(object_pairs_hook=_pairs(repairs)).raw_decode(window)
        if isinstance(value, dict | list | str):
            return Found(value, start, start + length, tuple(sorted(repairs)))
    except (ValueError, RecursionError):
        pass
    reader = _Reader(window)
    try:
        value = reader.value(0)
    except NotJson:
        return None
    return Found(value, start, start + reader.position, tuple(sorted(reader.repairs)))


def _pairs(repairs: set[str]) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs) and any(built[key] != value for key, value in pairs):
            repairs.add("repeated_key")
        return built

    return build


class _Reader:
    """One pass over `text` from its first character; `position` stands after what was read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.repairs: set[str] = set()

    def value(self, level: int) -> Any:
        self._skip()
        character = self._peek()
        if level > MAX_LEVELS:
            raise NotJson
        if character == "{":
            return self._object(level)
        if character in "[(":
            return self._list(level)
        if character in "\"'“‘":
            return self._string()
        number = _NUMBER.match(self.text, self.position)
        if number:
            return self._number(number)
        return self._word()

    def _object(self, level: int) -> dict[str, Any]:
        pairs: list[tuple[str, Any]] = []
        self.position += 1
        while not self._closes("}", after_member=bool(pairs)):
            key = self._string() if self._peek() in "\"'“‘" else self._word()
            self._skip()
            if not isinstance(key, str) or self._peek() != ":":
                raise NotJson
            self.position += 1
            pairs.append((key, self.value(level + 1)))
        return dict(_pairs(self.repairs)(pairs))

    def _list(self, level: int) -> Any:
        closing = "]" if self._peek() == "[" else ")"
        before = self.position
        self.position += 1
        values: list[Any] = []
        while not self._closes(closing, after_member=bool(values)):
            values.append(self.value(level + 1))
        if closing == ")":
            self.repairs.add("parentheses")
            one = len(values) == 1 and "," not in self.text[before : self.position]
            return values[0] if one else values
        return values

    def _closes(self, closing: str, *, after_member: bool) -> bool:
        """Whether the bracket closes here; otherwise the next member begins at `position`."""
        self._skip()
        if after_member and self._peek() != closing:
            if self._peek() != ",":
                raise NotJson
            self.position += 1
            self._skip()
            if self._peek() == closing:
                self.repairs.add("trailing_comma")
        if self._peek() != closing:
            return False
        self.position += 1
        return True

    def _string(self) -> str:
        match = _STRING.match(self.text, self.position)
        if not match:
            raise NotJson
        self.position = match.end()
        body = match.group(match.lastindex or 0)
        if match.lastindex != 1:
            self.repairs.add("quotes")
            return body.replace("\\'", "'").replace('\\"', '"')
        try:
            return str(json.loads(f'"{body}"'))
        except ValueError:
            self.repairs.add("control_characters")
            try:
                return str(json.loads(f'"{body}"', strict=False))
            except ValueError:
                raise NotJson from None

    def _number(self, match: re.Match[str]) -> int | float:
        text = match.group()
        self.position = match.end()
        if not _JSON_NUMBER.fullmatch(text):
            self.repairs.add("number_spelling")
        return float(text) if any(mark in text for mark in ".eE") else int(text)

    def _word(self) -> Any:
        sign = self.text.startswith("-", self.position)
        match = _WORDS.match(self.text, self.position + sign)
        if not match:
            raise NotJson
        self.position = match.end()
        word = match.group()
        if word in _CONSTANTS:
            return -_CONSTANTS[word] if sign else _CONSTANTS[word]
        if sign:
            raise NotJson
        if word in _LITERALS:
            if word[0].isupper():
                self.repairs.add("python_literals")
            return _LITERALS[word]
        self.repairs.add("unquoted_text")
        return word

    def _skip(self) -> None:
        match = _BLANK.match(self.text, self.position)
        assert match is not None  # the pattern matches the empty string too
        if not match.group().isspace() and match.group():
            self.repairs.add("comments")
        self.position = match.end()

    def _peek(self) -> str:
        if self.position >= len(self.text):
            raise NotJson
        return self.text[self.position]
