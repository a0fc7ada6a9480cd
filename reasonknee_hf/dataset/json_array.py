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

from collections.abc import Iterable, Iterator

from reasonknee_hf.dataset.json_reader import Reader
from reasonknee_hf.dataset.json_record import Parsed, RawRecord, is_record


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


def iter_parsed(chunks: Iterable[bytes], *, name: str, start: int = 0, index: int = 0) -> Iterator[Parsed]:
    """As [`iter_records`], many at once: as they were parsed together."""
    return _parsed(Reader(chunks, name, start, index))


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


def parsed_from(chunks: Iterable[bytes], *, name: str, start: int) -> Iterator[Parsed]:
    """All records from the first one on that [`iter_share`] finds at or after `start`, as they were parsed."""
    reader = Reader(chunks, name, start, 0)
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
