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

An object that is not closed is not an object, and one with more than 24 levels is none either. Work grows
with the length of the text and no faster: what a failed object held is not read again, and a text that
takes more than 12,000 steps (a member, a value or an opening brace each) holds no object at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_LEVELS = 24
MAX_STEPS = 12_000

_SPACE = re.compile(r"\s*")
_STRING = re.compile(
    r'"([^"\\]*(?:\\.[^"\\]*)*)"' r"|'([^'\\]*(?:\\.[^'\\]*)*)'|“([^“”]*)”|‘([^‘’]*)’", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?(?![\w.])")
_LONGEST_NUMBER = 600
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = re.compile(r"[^\W\d][\w%]*(?:[ \t]+[\w%]+)*")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf")}
_BRACES = re.compile(r"[{}]")
_BRACES_AND_STRINGS = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|[{}]')
_BEGUN = re.compile(r"\{\s*(?:[\"'“‘]\w|[\"'“‘]?\Z|\w[\w %()/-]{0,79}:)")


class NotJson(ValueError):
    """The text at this place is no object, even with repairs."""


class TooLong(ValueError):
    """The text takes more steps than any answer needs."""


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


def _sorted(repairs: set[str]) -> tuple[str, ...]:
    return tuple(sorted(repairs)) if repairs else ()


def _fits(text: str) -> bool:
    """Whether what the parser of the standard library makes of `text` is small enough to be walked through."""
    return len(text) <= MAX_STEPS or sum(map(text.count, ",[{")) <= MAX_STEPS


def strict(text: str) -> Found | None:
    """`text` as one JSON object, list or string, blanks around it aside; `None` if it is anything else."""
    body = text.strip()
    repairs: set[str] = set()
    if body[:1] not in ("{", "[", '"') or not _fits(body):  # other JSON values are no answers
        return None
    try:
        value = json.loads(body, object_pairs_hook=_pairs(repairs))
    except (ValueError, RecursionError):
        return None
    start = len(text) - len(text.lstrip())
    return Found(value, start, start + len(body), _sorted(repairs))


def unclosed(text: str, start: int = 0) -> int | None:
    """Where in `text` from `start` on an object begins that is never closed; the outermost one."""
    opening = text.count("{", start)
    if not opening:
        return None
    if opening + text.count('"', start) > MAX_STEPS:
        return start if opening > text.count("}", start) else None
    begun = []
    for marks in (
        _BRACES,
        _BRACES_AND_STRINGS,
    ):  # a quote in prose must not hide an object, nor a string close it
        opened: list[int] = []
        for match in marks.finditer(text, start):
            if match.group() == "{":
                opened.append(match.start())
            elif match.group() == "}" and opened:
                opened.pop()
        begun += [place for place in opened if _BEGUN.match(text, place)]
    return min(begun, default=None)


def _pairs(repairs: set[str]) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs) and any(built[key] != value for key, value in pairs):
            repairs.add("repeated_key")
        return built

    return build


class Search:
    """Finds values in one text. All that is read of it shares one budget of `MAX_STEPS` steps.

    `position` stands after what was read, `steps` says how many steps were taken.

    Example:
        >>> [found.value for found in Search("It is {'grade': 2}, not {grade: 1").objects()]
        [{'grade': 2}]
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = self.steps = 0
        self.repairs: set[str] = set()
        self._plain = _fits(text)
        self._known: dict[int, Found | None] = {}
        self._next: dict[str, tuple[int, int]] = {}

    def objects(self) -> list[Found]:
        """All complete objects of the text that lie in no other, from left to right; none if it is too long."""
        found, place = [], 0
        try:
            while (start := self.text.find("{", place)) >= 0:
                # What stood inside a failed object is known by now and not read again.
                value = self._known[start] if start in self._known else self.value_at(start)
                place = start + 1
                if value is not None:
                    found.append(value)
                    place = value.stop
        except TooLong:
            return []
        return found

    def value_at(self, start: int) -> Found | None:
        """The value that begins at `start`, strict or repaired; `None` if there is none or it is not complete.

        Raises:
            TooLong: The text took too many steps.
        """
        self._step()
        if self._plain:
            repairs: set[str] = set()
            try:
                value, stop = json.JSONDecoder(object_pairs_hook=_pairs(repairs)).raw_decode(self.text, start)
                if isinstance(value, dict | list | str):
                    return Found(value, start, stop, _sorted(repairs))
            except (ValueError, RecursionError):
                self._plain = False  # a failure takes the time of the whole text: once is enough
        self.position, self.repairs = start, set()
        try:
            value = self._value(0)
        except NotJson:
            self._known.setdefault(start, None)
            return None
        return Found(value, start, self.position, _sorted(self.repairs))

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooLong

    def _value(self, level: int) -> Any:
        self._step()
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
        start, outer = self.position, self.repairs
        self._known[start], self.repairs = None, set()
        pairs: list[tuple[str, Any]] = []
        self.position += 1
        while not self._closes("}", after_member=bool(pairs)):
            key = self._string() if self._peek() in "\"'“‘" else self._word()
            self._skip()
            if not isinstance(key, str) or self._peek() != ":":
                raise NotJson
            self.position += 1
            pairs.append((key, self._value(level + 1)))
        built = dict(_pairs(self.repairs)(pairs))
        self._known[start] = Found(built, start, self.position, _sorted(self.repairs))
        self.repairs |= outer
        return built

    def _list(self, level: int) -> Any:
        closing = "]" if self._peek() == "[" else ")"
        before = self.position
        self.position += 1
        values: list[Any] = []
        while not self._closes(closing, after_member=bool(values)):
            values.append(self._value(level + 1))
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
        if len(text) > _LONGEST_NUMBER:
            raise NotJson
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
        """Passes over blanks and comments."""
        while True:
            self.position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
            if self.text.startswith(("#", "//"), self.position):
                end = self._after("\n", len(self.text))
            elif self.text.startswith("/*", self.position):
                end = self._after("*/", -1)
            else:
                return
            if end < 0:
                raise NotJson
            self._step()
            self.repairs.add("comments")
            self.position = end

    def _after(self, mark: str, otherwise: int) -> int:
        """The place after the next `mark`; looked for once, for many comments may end at the same one."""
        since, place = self._next.get(mark, (0, -2))
        if place == -2 or self.position < since or 0 <= place < self.position:
            place = self.text.find(mark, self.position)
            self._next[mark] = self.position, place
        return otherwise if place < 0 else place + len(mark)

    def _peek(self) -> str:
        if self.position >= len(self.text):
            raise NotJson
        return self.text[self.position]
