"""JSON text: parsed as `json.loads` does it, by `orjson` where it is installed and does the same; and places in it.

Places are found in text that is cut anywhere, by looking at few of its bytes and without parsing it. Those functions
take the text and a position in it. Where an end is not in the text, they give `None`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_as_json = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
_as_ascii_json = json.JSONEncoder(check_circular=False).encode

_CUTS_TRIED = 4

_BLANK = rb"[ \t\r\n]*"
_BLANKS = re.compile(_BLANK)
_BORDER = re.compile(rb"\}%b,%b\{" % (_BLANK, _BLANK))
_BEFORE_BORDER = re.compile(rb"\}%b,%b\Z" % (_BLANK, _BLANK))
_MARK = re.compile(rb'[{}\[\]"]')
_IN_STRING = re.compile(rb'["\\]')
# Constants, and what may be half of a surrogate pair, escaped or not: `json.loads` takes them, `orjson` does not.
_LOADS_ALONE = re.compile(rb"NaN|Infinity|\\u[dD]|\xed")
_SCALAR = re.compile(rb"[^,\]} \t\r\n]*")

_ARRAY_END = b"]   "  # with the blanks, the last words looked at by `_may_hold_long_integer` hold no text
_HIGH_HALVES, _OF_DIGITS = np.uint32(0xF0F0F0F0), np.uint32(0x30303030)  # of four bytes


def loads(data: bytes) -> Any:
    """What `json.loads` makes of UTF-8 text.

    Raises:
        ValueError: The text is not JSON (`json.JSONDecodeError`) or not UTF-8.
        RecursionError: It is nested too deep.
    """
    return json.loads(data.decode("utf-8", "surrogatepass"))


def parser() -> Callable[[bytes], list[Any] | None]:
    """A function that parses arrays made by [`as_array`], the fastest way there is.

    It gives the same as [`loads`], or `None` where the text is not JSON.
    """
    fast: Callable[[bytes], Any] | None = None
    with contextlib.suppress(ImportError):
        import orjson

        fast = orjson.loads

    def parse(array: bytes) -> list[Any] | None:
        values: list[Any]
        if fast is not None and not _may_hold_long_integer(array):
            try:
                values = fast(array)
                return values
            except (ValueError, RecursionError):
                if not _LOADS_ALONE.search(array):
                    return None
        try:
            values = loads(array)
        except (ValueError, RecursionError):
            return None
        return values

    return parse


def as_array(data: bytes | memoryview) -> bytes:
    """The text of values with commas between them as that of an array. Its first byte is the bracket."""
    return b"".join((b"[", data, _ARRAY_END))


def array_text(array: bytes) -> bytes:
    """What [`as_array`] was given."""
    return array[1 : -len(_ARRAY_END)]


def _may_hold_long_integer(data: bytes) -> bool:
    """Whether 16 digits (or their neighbours in ASCII) stand in a row, beginning at a multiple of four.

    `orjson` makes floats of integers beyond 64 bits. Those have 19 digits or more, so 16 of them stand so.
    The last three bytes of `data` are not looked at.
    """
    words = np.frombuffer(data, np.uint32, len(data) // 4)
    digits = (words & _HIGH_HALVES) == _OF_DIGITS
    pairs = digits[:-1] & digits[1:]
    return bool(np.count_nonzero(pairs[:-2] & pairs[2:]))  # in less time than `any` takes


def blanks_end(data: bytes, pos: int) -> int:
    """The first place from `pos` on that is not blank."""
    match = _BLANKS.match(data, pos)
    return match.end() if match else pos


def first_value(data: bytes, pos: int) -> int | None:
    """Where the value of the first member begins of the object at `pos`; 0 if it has no member."""
    key = blanks_end(data, pos + 1)
    if data[key : key + 1] not in (b'"', b""):
        return 0
    key_end = string_end(data, key + 1)
    colon = len(data) if key_end is None else blanks_end(data, key_end)
    if colon == len(data):
        return None
    return colon + 1 if data[colon : colon + 1] == b":" else 0


def string_end(data: bytes, pos: int) -> int | None:
    """End of the string whose text begins at `pos`, behind its closing quote."""
    while mark := _IN_STRING.search(data, pos):
        if mark[0] == b'"':
            return mark.end()
        pos = mark.end() + 1  # whatever is escaped
    return None


def nested_end(data: bytes, pos: int) -> int | None:
    """End of the object or array that begins at `pos`, behind its closing bracket."""
    depth = 0
    while mark := _MARK.search(data, pos):
        pos = mark.end()
        if mark[0] == b'"':
            end = string_end(data, pos)
            if end is None:
                return None
            pos = end
        elif mark[0] in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return pos
    return None


def value_end(data: bytes, pos: int) -> int | None:
    """End of the value that begins at `pos`."""
    first = data[pos : pos + 1]
    if first == b'"':
        return string_end(data, pos + 1)
    if first in (b"{", b"["):
        return nested_end(data, pos)
    match = _SCALAR.match(data, pos)
    end = match.end() if match else pos
    return None if end == len(data) else end


def array_in_object(data: bytes, pos: int, record_keys: tuple[bytes, ...]) -> int | None:
    """Where the array of objects begins that is a member of the object at `pos`.

    Returns -1 if the object has none, has one of the `record_keys` before it, or is broken. An empty array
    counts where there is no other.
    """
    empty = -1
    while True:
        key = blanks_end(data, pos + 1)  # behind the bracket or the comma
        if data[key : key + 1] != b'"':
            return None if key == len(data) else empty
        key_end = string_end(data, key + 1)
        colon = len(data) if key_end is None else blanks_end(data, key_end)
        value = blanks_end(data, colon + 1)
        if value >= len(data):
            return None
        if data[colon : colon + 1] != b":" or data[key + 1 : colon].rstrip(b' \t\r\n"') in record_keys:
            return -1
        if data[value : value + 1] == b"[":
            first = blanks_end(data, value + 1)
            if data[first : first + 1] == b"{":
                return value
            if data[first : first + 1] == b"]" and empty < 0:
                empty = value
        end = value_end(data, value)
        pos = len(data) if end is None else blanks_end(data, end)
        if pos == len(data):
            return None
        if data[pos : pos + 1] != b",":
            return empty


def cuts(data: bytes, pos: int) -> Iterator[tuple[int, int]]:
    """Ends of pieces of records that begin at `pos`, the last few, each with where the next record begins.

    A piece that ends at one of them may have been cut inside a record.
    """
    brace, tried = len(data), 0
    while tried < _CUTS_TRIED and (brace := data.rfind(b"{", pos + 1, brace)) >= 0:
        border = _BEFORE_BORDER.search(data, max(pos, brace - 256), brace)
        if border:
            tried += 1
            yield border.start() + 1, brace


def line_ends(data: bytes, pos: int) -> Iterator[tuple[int, int]]:
    """As `cuts`, for one record a line: the end of the last line that another one follows, and that of the first."""
    last = data.rfind(b"\n{", pos)
    if last >= 0:
        yield last, last + 1
    end = data.find(b"\n", pos)
    following = len(data) if end < 0 else blanks_end(data, end)
    if following < len(data) and end != last:
        yield end, following


def lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Beginning and end of each line of `data` that is not blank, from its first character that is none."""
    at = 0
    for line in data.split(b"\n"):
        if text := line.lstrip():
            yield at + len(line) - len(text), at + len(line)
        at += len(line) + 1


def spans(data: bytes, count: int) -> list[tuple[int, int]]:
    """Beginning and end of each of the `count` objects that `data` holds, with commas between them."""
    borders = [border.span() for border in _BORDER.finditer(data)]
    if len(borders) == count - 1:
        starts = [0, *(end - 1 for _, end in borders)]
        ends = [*(start + 1 for start, _ in borders), len(data)]
        return list(zip(starts, ends, strict=True))
    found, start = [], 0  # some of the borders lie inside the objects
    for _ in range(count):
        end = nested_end(data, start) or len(data)
        found.append((start, end))
        start = data.find(b"{", end)
    return found


def is_unicode(text: str) -> bool:
    """Whether a text column can hold it: there are no halves of surrogate pairs."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_json(value: Any) -> str:
    """What a JSON file held, as text that a column can hold: half of a surrogate pair is escaped."""
    text = _as_json(value)
    return text if is_unicode(text) else _as_ascii_json(value)


def shown(value: Any) -> str:
    """The same for messages: its first 57 characters, escaped."""
    text = _as_ascii_json(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
