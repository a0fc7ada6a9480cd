"""Records of an annotation file, one after the other, in bounded memory whatever the size of the file.

The file is read in pieces of many whole records, which one call of a JSON parser turns into objects. That
needs no tokenizer: a piece is cut where `}`, a comma and `{` follow each other. Such a place is the border of
two records, or it lies inside a string or a nested array; a piece cut there is not valid JSON, so it cannot
be mistaken for whole records, and a cut further ahead is tried. Where records stand one a line, a piece ends
with a line. Pieces with what the fast parser reads differently from `json.loads` (`NaN`, integers beyond 64
bits, lone surrogates) are given to that. Where no piece parses, records are read one by one: their end is
found by counting brackets outside strings, and `json.loads` decides what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from reasonknee_hf.dataset import json_text
from reasonknee_hf.dataset.json_record import (
    RECORD_KEYS,
    Parsed,
    Piece,
    RawRecord,
    is_record,
    read_record,
    record_error,
)
from reasonknee_hf.errors import AnnotationError

_PIECE = 1 << 16  # larger copies come from fresh pages, which costs more than the parsing
_LONGEST_RECORD = 1 << 26
_LONGEST_TAIL = 1 << 20  # what may follow an array that lies under a key


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
    return _records(iter_parsed(chunks, name=name, start=start, index=index))


def iter_parsed(
    chunks: Iterable[bytes], *, name: str, start: int = 0, index: int = 0, keys: Sequence[str] = RECORD_KEYS
) -> Iterator[Parsed]:
    """As [`iter_records`], many at once: as they were parsed together."""
    return _parsed(Reader(chunks, name, start, index, keys))


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
    if start < stop:
        yield from _records(parsed_from(chunks, name=name, start=start), stop)


def parsed_from(
    chunks: Iterable[bytes], *, name: str, start: int, keys: Sequence[str] = RECORD_KEYS
) -> Iterator[Parsed]:
    """All records from the first one on that [`iter_share`] finds at or after `start`, as they were parsed.

    `keys` are the members that tell a record from any other object, in the place of `image` and `prompt`.
    """
    reader = Reader(chunks, name, start, 0, keys)
    if not start or reader.seek_record():
        yield from _parsed(reader)


def parsed_behind(chunks: Iterable[bytes], *, name: str, start: int) -> Iterator[Parsed]:
    """The records behind one of an annotation file, as they were parsed.

    Args:
        chunks: The file's bytes from `start` on.
        name: What to call the file in errors.
        start: The byte behind a record's `}`.

    Raises:
        AnnotationError: As [`iter_records`]; records are numbered from the first one given.
    """
    reader = Reader(chunks, name, start, 0)
    if reader.advance():
        yield from _parsed(reader)


def _parsed(reader: Reader) -> Iterator[Parsed]:
    """All records from where the reader stands on."""
    more = reader.enter()
    while more:
        yield from reader.pieces()
        yield Parsed.of_one(reader.record())
        more = reader.advance()


def _records(parsed: Iterable[Parsed], stop: int | None = None) -> Iterator[RawRecord]:
    """One by one; with `stop`, those before the first true record behind it."""
    for some in parsed:
        if stop is None or some.piece.end <= stop:
            yield from some.records()
            continue
        for record in some.records():
            if _begins_behind(record, stop):
                return
            yield record


def _begins_behind(record: RawRecord, stop: int) -> bool:
    return not record.begins_before(stop) and is_record(record.value)


class Reader:
    """A window on the file: what has been read and not yet given away."""

    def __init__(
        self, chunks: Iterable[bytes], name: str, start: int, index: int, keys: Sequence[str] = RECORD_KEYS
    ) -> None:
        self._data = b""
        self._pos = 0
        self._base = start  # offset in the file of _data[0]
        self._chunks = _small(chunks)
        self._name = name
        self._keys = keys
        self._index = index  # of the next record
        self._lines: bool | None = None  # one object after the other, without commas; None: not known yet
        self._wrapped: bool | None = None  # the array is a member of an object; None: not known yet
        self._slow_until = 0  # up to this offset pieces did not parse
        self._parse = json_text.parser()

    @property
    def offset(self) -> int:
        """Offset in the file of the place where the reader stands."""
        return self._base + self._pos

    # --- records --------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Moves to the first record; `False` if the file has none."""
        if self.offset:
            if self._peek() != b"{":
                raise self._error("no record begins here; the file is not the one the offset was taken from")
            return True
        while len(self._data) < 4 and self._grow():
            pass
        if self._data.startswith(b"\xef\xbb\xbf"):
            self._pos = 3
        first = self._peek()
        if first == b"{":
            keys = tuple(key.encode() for key in self._keys)
            array = self._find(partial(json_text.array_in_object, record_keys=keys))
            self._wrapped = array is not None and array >= 0
            self._lines = not self._wrapped
            if array is None or array < 0:
                return True
            self._pos = array
        elif first == b"[":
            self._lines = self._wrapped = False
        else:
            raise self._error(_wrong_beginning(self._data[self._pos :]))
        self._pos += 1
        if self._peek() != b"]":
            return True
        self._finish()
        return False

    def pieces(self) -> Iterator[Parsed]:
        """Records, as long as whole pieces of them parse.

        The record that the reader then stands at must be read by itself.
        """
        if self._lines is None:
            return
        cuts = json_text.line_ends if self._lines else json_text.cuts
        while self.offset >= self._slow_until:
            end = None
            for end, following in cuts(self._data, self._pos):
                found = self._piece(self._data[self._pos : end])
                if found is not None:
                    first = self._index
                    self._pos = following
                    self._index += len(found[0])
                    yield Parsed(*found, first)
                    break
            else:
                if end is not None:
                    self._slow_until = self._base + end
                elif not self._grow_record():
                    return

    def _piece(self, text: bytes) -> tuple[list[dict[str, Any]], Piece] | None:
        """The records of a text that holds whole ones from where the reader stands; `None` where it does not."""
        if self._lines:
            # Each line in brackets of its own: what goes on in the next line, a string or an object, does not parse,
            # and brackets in a line that close its own make more values than there are lines.
            array = json_text.as_array(b"[%b]" % text.replace(b"\n", b"],\n["))
            parsed = self._parse(array) or []
            values = [value for line in parsed for value in line]
            if len(parsed) != text.count(b"\n") + 1 or any(len(line) > 1 for line in parsed):
                return None
        else:
            array = json_text.as_array(text)
            values = self._parse(array) or []
        if set(map(type, values)) != {dict}:
            return None
        start = self.offset
        if self._lines:
            return values, Piece.of([(start + low, start + high) for low, high in json_text.lines(text)])
        return values, Piece(array, start, start + len(text), len(values))

    def record(self) -> RawRecord:
        """The one record that begins here, read exactly."""
        found = self._peek()
        if found and found != b"{":
            raise self._error(f"found {found!r} where a record, an object, should begin")
        end = self._find(json_text.nested_end) if found else None
        if end is None:
            raise self._error("the file ends before the record does; it is cut short")
        record = read_record(
            self._data[self._pos : end], name=self._name, offset=self.offset, index=self._index
        )
        self._index += 1
        self._pos = end
        return record

    def advance(self) -> bool:
        """Moves from the end of a record to the next one; `False` if there is none."""
        following = self._peek()
        if self._lines is None:
            self._lines = following not in (b",", b"]")
        if self._lines:
            return following != b""
        if following == b"]":
            self._finish()
            return False
        if following != b",":
            what = (
                f"found {following!r} where a comma or"
                if following
                else "the file is cut short: it ends without"
            )
            raise self._error(f"{what} the closing bracket of the array")
        comma = self.offset
        self._pos += 1
        if self._peek() == b"]":
            raise self._error("a comma stands before the closing bracket", comma)
        return True

    def seek_record(self) -> bool:
        """Moves to the next true record, from anywhere; `False` if there is none. See [`iter_share`]."""
        while True:
            self._pos = self._data.find(b"{", self._pos)
            if self._pos < 0:
                self._pos = len(self._data)
                if not self._grow():
                    return False
                continue
            try:
                if self._find(json_text.first_value):
                    end = self._find(json_text.nested_end)
                    if end is not None and is_record(
                        json_text.loads(self._data[self._pos : end]), self._keys
                    ):
                        return True
            except (AnnotationError, ValueError, RecursionError):
                pass  # not a record: the brace stands inside a string
            self._pos += 1

    def _finish(self) -> None:
        """Checks what follows the array, from its closing bracket on."""
        self._pos += 1
        following = self._peek()
        if self._wrapped is None:
            self._wrapped = following in (b",", b"}")
        if not self._wrapped:
            if following:
                raise self._error(f"found {following!r} after the array; there should be nothing")
            return
        while len(self._data) - self._pos <= _LONGEST_TAIL and self._grow():
            pass
        try:
            members = json_text.loads(b'{"": 0' + self._data[self._pos :])
        except ValueError as error:
            raise self._error(f"what follows the array is not valid JSON: {error}") from None
        for value in members.values():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                raise self._error(
                    "a second array of objects follows; it is not clear which holds the records"
                )

    # --- bytes ----------------------------------------------------------------------------------------------

    def _error(self, what: str, offset: int | None = None) -> AnnotationError:
        return record_error(what, self._name, self.offset if offset is None else offset, self._index)

    def _peek(self) -> bytes:
        """Moves to the next byte that is not blank, and gives it; `b""` at the end of the file."""
        while True:
            self._pos = json_text.blanks_end(self._data, self._pos)
            if self._pos < len(self._data) or not self._grow():
                return self._data[self._pos : self._pos + 1]

    def _find(self, find: Callable[[bytes, int], int | None]) -> int | None:
        """What `find` gives once enough of the file has been read; `None` if there is not enough of it."""
        while (place := find(self._data, self._pos)) is None:
            if not self._grow_record():
                return None
        return place

    def _grow_record(self) -> bool:
        if len(self._data) - self._pos > _LONGEST_RECORD:
            raise self._error(
                f"no record ends within {_LONGEST_RECORD >> 20} MiB from here; the JSON is broken"
            )
        return self._grow()

    def _grow(self) -> bool:
        """Reads on, at least as much as is kept, so that looking again stays cheap; `False` at the end."""
        kept = self._data[self._pos :]
        parts, wanted = [kept], max(len(kept), 1)
        for chunk in self._chunks:
            parts.append(chunk)
            wanted -= len(chunk)
            if wanted <= 0:
                break
        self._data = b"".join(parts)
        self._base += self._pos
        self._pos = 0
        return len(self._data) > len(kept)


def _small(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if len(chunk) <= _PIECE:
            yield chunk
        else:
            for at in range(0, len(chunk), _PIECE):
                yield chunk[at : at + _PIECE]


def _wrong_beginning(data: bytes) -> str:
    if not data:
        return "the file is empty"
    if data.startswith(b"version https://git-lfs"):
        return "this is the pointer of a large file, not the file; fetch the real one (git lfs pull)"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "the file is UTF-16; save it as UTF-8"
    return f"the file begins with {data[:20]!r}, not with an array of objects"
