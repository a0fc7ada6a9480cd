"""A window on an annotation file, which moves from record to record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from reasonknee_hf.dataset import json_parser, json_text
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

_RECORD_KEYS = tuple(key.encode() for key in RECORD_KEYS)
_PIECE = 1 << 16  # larger copies come from fresh pages, which costs more than the parsing
_LONGEST_RECORD = 1 << 26
_LONGEST_TAIL = 1 << 20  # what may follow an array that lies under a key


class Reader:
    """A window on the file: what has been read and not yet given away."""

    def __init__(self, chunks: Iterable[bytes], name: str, start: int, index: int) -> None:
        self._data = b""
        self._pos = 0
        self._base = start  # offset in the file of _data[0]
        self._chunks = _small(chunks)
        self._name = name
        self._index = index  # of the next record
        self._lines: bool | None = None  # one object after the other, without commas; None: not known yet
        self._wrapped: bool | None = None  # the array is a member of an object; None: not known yet
        self._slow_until = 0  # up to this offset pieces did not parse
        self._parse = json_parser.parser()

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
            array = self._find(partial(json_text.array_in_object, record_keys=_RECORD_KEYS))
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
        cuts = json_text.line_end if self._lines else json_text.cuts
        while self.offset >= self._slow_until:
            end = None
            for end, following in cuts(self._data, self._pos):
                array = json_parser.as_array(memoryview(self._data)[self._pos : end])
                values = self._parse(array)
                if values and set(map(type, values)) == {dict} and (len(values) == 1 or not self._lines):
                    piece = Piece(array, self.offset, self._base + end, len(values))
                    first = self._index
                    self._pos = following
                    self._index += len(values)
                    yield Parsed(values, piece, first)
                    break
            else:
                if end is not None:
                    self._slow_until = self._base + end
                elif not self._grow_record():
                    return

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
                    if end is not None and is_record(json_parser.loads(self._data[self._pos : end])):
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
            members = json_parser.loads(b'{"": 0' + self._data[self._pos :])
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
