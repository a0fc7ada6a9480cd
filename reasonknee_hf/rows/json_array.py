"""Records of an annotation file, one after the other, in bounded memory whatever the size of the file.

The file is read in pieces of many whole records, which one call of a JSON parser turns into objects. That
needs no tokenizer: a piece is cut where `}`, a comma and `{` follow each other. Such a place is the border of
two records, or it lies inside a string or a nested array; a piece cut there is not valid JSON, so it cannot
be mistaken for whole records, and a cut further ahead is tried. Where none parses, or a piece holds what the
fast parser reads differently from `json.loads` (`NaN`, integers beyond 64 bits, lone surrogates), records are
read one by one: their end is found by counting brackets outside strings, and `json.loads` decides what they
are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.rows import json_text

RECORD_KEYS = ("image", "prompt")
"""Members that tell a record from any other object in the file."""

_RECORD_KEYS = tuple(key.encode() for key in RECORD_KEYS)

_PIECE = 1 << 16  # larger copies come from fresh pages, which costs more than the parsing
_LONGEST_RECORD = 1 << 26
_LONGEST_TAIL = 1 << 20  # what may follow an array that lies under a key


class RawRecord:
    """One record as it stands in the file.

    Attributes:
        value: The parsed object, exactly what `json.loads` makes of it.
        index: Its number in the file, from 0; in a share of a file, its number in the share.
        offset: Where its `{` stands in the file, in bytes.
        length: Its length in bytes, up to and with its `}`.
    """

    __slots__ = ("_piece", "_place", "index", "value")

    def __init__(self, value: dict[str, Any], index: int, piece: _Piece, place: int) -> None:
        self.value = value
        self.index = index
        self._piece = piece
        self._place = place

    @property
    def offset(self) -> int:
        return self._piece.spans()[self._place][0]

    @property
    def length(self) -> int:
        return self._piece.spans()[self._place][1]

    def __repr__(self) -> str:
        return (
            f"RawRecord(offset={self.offset}, length={self.length}, index={self.index}, value={self.value!r})"
        )


class _Piece:
    """Several records that were parsed together. Where each begins is worked out when it is asked for."""

    __slots__ = ("_count", "_data", "_offset", "_spans")

    def __init__(self, data: bytes, offset: int, count: int) -> None:
        self._data = data
        self._offset = offset
        self._count = count
        self._spans: list[tuple[int, int]] | None = None

    def spans(self) -> list[tuple[int, int]]:
        """Offset in the file and length of each record."""
        if self._spans is None:
            spans = json_text.spans(self._data, self._count)
            self._spans = [(self._offset + start, end - start) for start, end in spans]
            self._data = b""
        return self._spans


def iter_records(
    chunks: Iterable[bytes], *, name: str, start: int = 0, index: int = 0
) -> Iterator[RawRecord]:
    """The records of an annotation file, in order.

    The file may be an array of objects, pretty-printed or not, such an array under one key of an object, or
    one object after the other (JSON lines); it may begin with a byte-order mark.

    Args:
        chunks: The file's bytes from `start` on, cut anywhere. Taken one by one as they are needed; the first
            record is there as soon as the chunk that holds the beginning of the second one. The last chunk
            may end with a record if the caller takes no more than it asked for (`itertools.islice`).
        name: What to call the file in errors.
        start: Offset of the first byte of `chunks`: 0, or where a record begins.
        index: Number of the first record.

    Raises:
        AnnotationError: The file is not such JSON, or is cut short. The message gives the file, the byte
            offset and the number of the record. Records before that place have been given.
    """
    reader = _Reader(chunks, name, start, index)
    if start:
        if reader.peek() != b"{":
            raise reader.error(
                "no record begins here; the file is not the one that the offset was taken from"
            )
        yield from _records(reader, lines=None, wrapped=None)
    else:
        yield from _from_the_head(reader)


def iter_share(chunks: Iterable[bytes], *, name: str, start: int, stop: int) -> Iterator[RawRecord]:
    """The records of one share of an annotation file, found without an index.

    Whatever the borders, the shares `[0, a)`, `[a, b)`, …, `[z, size)` give every record exactly once: a
    share begins with the first record at or after `start` that has the members `image` and `prompt`, and ends
    before the one that the next share begins with.

    Why the first record is found wherever `start` falls: a candidate is a `{` from which an object parses
    that has both members. From a true record that is so. From a `{` inside a string it is not: JSON allows
    `}` or a quote after it. A `}` makes an empty object. A quote that belongs to the string's text is written
    `\\"`, and the backslash does not parse; so the quote is the one that ends the string, and from there on
    the parser takes the text between strings for strings. Names it reads that way consist of brackets,
    commas, colons, blanks, numbers and literals, and are never `image`. A `{` of an object inside a record
    has not both members, by the format.

    Args:
        chunks: The file's bytes from `start` on; taken as far as the share goes, and up to one record beyond.
        name: What to call the file in errors.
        start: Any byte offset.
        stop: Where the next share starts; the file's size for the last one.

    Raises:
        AnnotationError: As [`iter_records`]; records are numbered from the share's first.
    """
    reader = _Reader(chunks, name, start, 0)
    if start >= stop:
        return
    if not start:
        records = _from_the_head(reader)
    elif reader.seek_record():
        records = _records(reader, lines=None, wrapped=None)
    else:
        return
    for record in records:
        # The reader is beyond all records it has parsed; the offset of each is only asked for near the end.
        if reader.offset > stop and record.offset >= stop and _is_record(record.value):
            return
        yield record


def _from_the_head(reader: _Reader) -> Iterator[RawRecord]:
    reader.skip_mark()
    first = reader.peek()
    wrapped = False
    if first == b"{":
        wrapped = reader.enter_object()
        if not wrapped:
            yield from _records(reader, lines=True, wrapped=False)
            return
    elif first != b"[":
        raise reader.error(_wrong_beginning(reader.data[reader.pos :]))
    reader.pos += 1
    if reader.peek() == b"]":
        reader.finish(wrapped)
    else:
        yield from _records(reader, lines=False, wrapped=wrapped)


def _records(reader: _Reader, lines: bool | None, wrapped: bool | None) -> Iterator[RawRecord]:
    """Records from where the reader stands; `lines` and `wrapped` are `None` where that is not known yet."""
    while True:
        if lines is not None:
            yield from reader.pieces(lines)
        yield reader.record()
        following = reader.peek()
        if lines is None:
            lines = following not in (b",", b"]")
        if lines:
            if not following:
                return
        elif following == b"]":
            reader.finish(wrapped)
            return
        elif following == b",":
            reader.next_record()
        elif not following:
            raise reader.error("the file ends without the closing bracket of the array; it is cut short")
        else:
            raise reader.error(f"found {following!r} where a comma or the closing bracket should be")


class _Reader:
    """A window on the file: what has been read and not yet given away."""

    def __init__(self, chunks: Iterable[bytes], name: str, start: int, index: int) -> None:
        self.data = b""
        self.pos = 0
        self._base = start  # offset in the file of data[0]
        self._chunks = _small(chunks)
        self._name = name
        self._index = index
        self._slow_until = 0  # up to this offset pieces did not parse
        self._parse = _parser()

    @property
    def offset(self) -> int:
        """Offset in the file of the place where the reader stands."""
        return self._base + self.pos

    def error(self, what: str, offset: int | None = None) -> AnnotationError:
        where = self.offset if offset is None else offset
        return AnnotationError(f"{self._name}, byte {where}, record {self._index}: {what}.")

    def grow(self) -> bool:
        """Reads on, at least as much as is kept, so that looking again stays cheap; `False` at the end."""
        kept = self.data[self.pos :]
        parts, wanted = [kept], max(len(kept), 1)
        for chunk in self._chunks:
            parts.append(chunk)
            wanted -= len(chunk)
            if wanted <= 0:
                break
        self.data = b"".join(parts)
        self._base += self.pos
        self.pos = 0
        return len(self.data) > len(kept)

    def peek(self) -> bytes:
        """Moves to the next byte that is not blank, and gives it; `b""` at the end of the file."""
        while True:
            self.pos = json_text.blanks_end(self.data, self.pos)
            if self.pos < len(self.data) or not self.grow():
                return self.data[self.pos : self.pos + 1]

    def pieces(self, lines: bool) -> Iterator[RawRecord]:
        """Records as long as whole pieces of them parse; the next one must be read by itself."""
        cuts = json_text.line_end if lines else json_text.cuts
        while self.offset >= self._slow_until:
            end = None
            for end, following in cuts(self.data, self.pos):
                data = self.data[self.pos : end]
                values = self._parse(data)
                if values and (len(values) == 1 or not lines) and set(map(type, values)) == {dict}:
                    piece = _Piece(data, self.offset, len(values))
                    first, self._index = self._index, self._index + len(values)
                    self.pos = following
                    for place, value in enumerate(values):
                        yield RawRecord(value, first + place, piece, place)
                    break
            else:
                if end is not None:
                    self._slow_until = self._base + end
                elif not self._grow_record():
                    return

    def record(self) -> RawRecord:
        """The one record that begins here, read exactly."""
        if self.peek() != b"{":
            found = self.data[self.pos : self.pos + 1]
            raise self.error(
                f"found {found!r} where a record, an object, should begin" if found else _CUT_SHORT
            )
        end = self._end(json_text.nested_end)
        if end is None:
            raise self.error(_CUT_SHORT)
        data = self.data[self.pos : end]
        try:
            value = _loads(data)
        except json.JSONDecodeError as error:
            place = self.offset + len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
            raise self.error(f"not valid JSON: {error.msg}", place) from None
        except (ValueError, RecursionError) as error:
            raise self.error(f"not valid JSON: {error}") from None
        record = RawRecord(value, self._index, _Piece(data, self.offset, 1), 0)
        self._index += 1
        self.pos = end
        return record

    def next_record(self) -> None:
        """Moves from a comma to the record behind it."""
        comma = self.offset
        self.pos += 1
        if self.peek() == b"]":
            raise self.error("a comma stands before the closing bracket", comma)

    def finish(self, wrapped: bool | None) -> None:
        """Checks what follows the array, from its closing bracket on."""
        self.pos += 1
        following = self.peek()
        if wrapped is None:
            wrapped = following in (b",", b"}")
        if not wrapped:
            if following:
                raise self.error(f"found {following!r} after the array; there should be nothing")
            return
        while len(self.data) - self.pos <= _LONGEST_TAIL and self.grow():
            pass
        try:
            members = _loads(b'{"": 0' + self.data[self.pos :])
        except ValueError as error:
            raise self.error(f"what follows the array is not valid JSON: {error}") from None
        if any(
            isinstance(value, list) and value and isinstance(value[0], dict) for value in members.values()
        ):
            raise self.error("a second array of objects follows; which one holds the records is not clear")

    def skip_mark(self) -> None:
        """Steps over a byte-order mark."""
        while len(self.data) < 4 and self.grow():
            pass
        if self.data.startswith(b"\xef\xbb\xbf"):
            self.pos = 3

    def enter_object(self) -> bool:
        """Moves to the bracket of the array in the object that begins here; `False` if it is a record."""
        place = self._end(partial(json_text.array_in_object, record_keys=_RECORD_KEYS))
        if place is None or place < 0:
            return False
        self.pos = place
        return True

    def seek_record(self) -> bool:
        """Moves to the next true record, from anywhere; `False` if there is none. See [`iter_share`]."""
        while True:
            self.pos = self.data.find(b"{", self.pos)
            if self.pos < 0:
                self.pos = len(self.data)
                if not self.grow():
                    return False
                continue
            try:
                if self._end(json_text.first_value):
                    end = self._end(json_text.nested_end)
                    if end is not None and _is_record(_loads(self.data[self.pos : end])):
                        return True
            except (AnnotationError, ValueError, RecursionError):
                pass  # not a record: the brace stands inside a string
            self.pos += 1

    def _end(self, find: Callable[[bytes, int], int | None]) -> int | None:
        """What `find` gives once enough of the file has been read; `None` if there is not enough of it."""
        while (end := find(self.data, self.pos)) is None:
            if not self._grow_record():
                return None
        return end

    def _grow_record(self) -> bool:
        if len(self.data) - self.pos > _LONGEST_RECORD:
            raise self.error(
                f"no record ends within {_LONGEST_RECORD >> 20} MiB from here; the JSON is broken"
            )
        return self.grow()


_CUT_SHORT = "the file ends before the record does; it is cut short"


def _small(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if len(chunk) <= _PIECE:
            yield chunk
        else:
            for at in range(0, len(chunk), _PIECE):
                yield chunk[at : at + _PIECE]


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and all(key in value for key in RECORD_KEYS)


def _wrong_beginning(data: bytes) -> str:
    if not data:
        return "the file is empty"
    if data.startswith(b"version https://git-lfs"):
        return "this is the pointer of a large file, not the file; fetch the real one (git lfs pull)"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "the file is UTF-16; save it as UTF-8"
    return f"the file begins with {data[:20]!r}, not with an array of objects"


# --- parsing ------------------------------------------------------------------------------------------------


def _loads(data: bytes) -> Any:
    return json.loads(data.decode("utf-8", "surrogatepass"))


def _parser() -> Callable[[bytes], list[Any] | None]:
    """Parses records with commas between them; `None` if that is not what they are."""
    try:
        import orjson
    except ImportError:
        fast: Callable[[bytes], Any] | None = None
    else:
        fast = orjson.loads

    def parse(data: bytes) -> list[Any] | None:
        array = b"[%b]   " % data
        exact = fast is None or _may_hold_long_integer(array)
        try:
            values: list[Any] = _loads(array) if exact or fast is None else fast(array)
        except (ValueError, RecursionError):
            return None
        return values

    return parse


def _may_hold_long_integer(data: bytes) -> bool:
    """Whether 16 digits (or their neighbours in ASCII) stand in a row, beginning at a multiple of four.

    `orjson` makes floats of integers beyond 64 bits. Those have 19 digits or more, so 16 of them stand so.
    """
    words = np.frombuffer(data, np.uint32, len(data) // 4)
    digits = (words & np.uint32(0xF0F0F0F0)) == np.uint32(0x30303030)
    pairs = digits[:-1] & digits[1:]
    return bool((pairs[:-2] & pairs[2:]).any())
