"""The reader of annotation arrays against `json.loads`."""

from __future__ import annotations

import itertools
import json
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.dataset import json_array
from reasonknee_hf.dataset.json_array import iter_records, iter_share
from reasonknee_hf.dataset.json_record import RawRecord, read_record
from reasonknee_hf.errors import AnnotationError

# Text that looks like structure, so that cuts and candidates fall into strings.
_TRICKY = st.text(st.sampled_from('{}[]",:\\ \n\t0aé😀'), max_size=12)
_STRINGS = st.one_of(
    _TRICKY, st.sampled_from(['}, {"image": 1, "prompt": 2}, {', ", {", '{"', ": 1, ", ':{"', "]"])
)
_NUMBERS = st.one_of(
    st.integers(-(10**25), 10**25),
    st.integers(-9, 9),
    st.floats(allow_nan=False),
    st.just(float("inf")),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _STRINGS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(_STRINGS, inner, max_size=3),
        st.lists(st.dictionaries(_STRINGS, inner, max_size=2), max_size=3),
    ),
    max_leaves=6,
)
_PROPERTY = settings(max_examples=60, deadline=None)
_PLAIN = st.dictionaries(_STRINGS, _VALUES, max_size=4)
_RECORDS = st.builds(
    lambda image, prompt, rest: {"image": image, "prompt": prompt} | rest, _STRINGS, _STRINGS, _PLAIN
)


@pytest.fixture(params=["orjson", "json"], autouse=True, scope="module")
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of this file runs with the fast parser and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "json":
            patch.setitem(sys.modules, "orjson", None)
        else:
            pytest.importorskip("orjson")
        yield


@st.composite
def dumps(draw: st.DrawFn, value: Any) -> str:
    """`value` as JSON in one of many layouts."""
    indent = draw(st.sampled_from([None, None, 0, 1, 4, "\t"]))
    separators = None if indent is not None else draw(st.sampled_from([None, (",", ":"), (" ,\r\n ", " : ")]))
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` in chunks cut anywhere, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    if draw(st.booleans()):
        places = list(range(len(data)))
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)])]


def same(found: Any, expected: Any) -> bool:
    """Equal, also in the order of keys and in the types of numbers."""
    return repr(found) == repr(expected)


def check(records: Iterable[RawRecord], expected: list[Any], data: bytes) -> None:
    found = list(records)
    assert same([record.value for record in found], expected)
    assert [record.index for record in found] == list(range(len(expected)))
    for record in found:
        assert same(json.loads(data[record.offset : record.offset + record.length]), record.value)
        assert data[record.offset : record.offset + 1] == b"{"


@_PROPERTY
@given(st.data(), st.lists(st.one_of(_RECORDS, _PLAIN), max_size=6), st.booleans())
def test_array_in_any_layout_and_chunking(data: st.DataObject, values: list[Any], mark: bool) -> None:
    text = data.draw(dumps(values))
    padding = data.draw(st.text(st.sampled_from(" \t\r\n"), max_size=3))
    content = b"\xef\xbb\xbf" * mark + f"{padding}{text}{padding}".encode("utf-8", "surrogatepass")
    check(iter_records(data.draw(cut(content)), name="a.json"), json.loads(text), content)


@_PROPERTY
@given(st.data(), st.lists(_RECORDS, min_size=1, max_size=6))
def test_json_lines(data: st.DataObject, values: list[Any]) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n", "\n\n", " \n"]))
    last = data.draw(st.booleans())
    text = end.join(json.dumps(value, indent=data.draw(st.sampled_from([None, None, 2]))) for value in values)
    content = (text + end * last).encode()
    check(iter_records(data.draw(cut(content)), name="a.jsonl"), values, content)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n "])
def test_json_lines_are_read_together(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    monkeypatch.setattr(
        json_array,
        "read_record",
        lambda *args, **told: alone.append(told["index"]) or read_record(*args, **told),
    )
    values = [{"image": f"v{n}", "prompt": "?", "n": n, "more": [{"a": n}, {"b": 0.5}]} for n in range(3_000)]
    values[1000]["n"] = float("inf")
    content = end.join(map(json.dumps, values)).encode()
    check(iter_records([content], name="a.jsonl"), values, content)
    assert len(alone) < 10


@pytest.mark.parametrize(
    "broken",
    [
        '{"image": [{"x": 1}\n{"y": 2}], "prompt": 3}',
        '{"image": "one\ntwo", "prompt": 3}',
        '{"image": 0, "prompt": 0}],[{"image": 1, "prompt": 1}',
        '{"image": 0, "prompt": 0},{"image": 1, "prompt": 1}',
        '{"image": 0, "prompt": 0}],[{"image": 1, "prompt": 1}\n{"image": "one\ntwo", "prompt": 3}',
    ],
)
def test_broken_lines_are_not_mended(broken: str) -> None:
    lines = "\n".join(['{"image": 1, "prompt": 2}', broken, '{"image": 4, "prompt": 5}'])
    with pytest.raises(AnnotationError, match=r"not valid JSON|should begin"):
        read(lines)


@_PROPERTY
@given(st.data(), st.lists(st.one_of(_RECORDS, _PLAIN), max_size=5))
def test_array_under_a_key(data: st.DataObject, values: list[Any]) -> None:
    other = st.dictionaries(
        _STRINGS.filter(lambda key: key not in ("image", "prompt", "records")),
        st.one_of(_NUMBERS, _STRINGS, st.lists(_STRINGS, min_size=1, max_size=2), st.just({"n": [1]})),
        max_size=3,
    )
    whole = data.draw(other) | {"records": values} | data.draw(other)
    content = data.draw(dumps(whole)).encode("utf-8", "surrogatepass")
    expected = json.loads(content.decode("utf-8", "surrogatepass"))["records"]
    check(iter_records(data.draw(cut(content)), name="a.json"), expected, content)


_SHARED = (st.data(), st.lists(st.one_of(_RECORDS, _RECORDS, _PLAIN), max_size=6))


@_PROPERTY
@given(*_SHARED)
def test_shares_cut_anywhere_give_every_record_once(data: st.DataObject, values: list[Any]) -> None:
    check_shares(data, values)


@pytest.mark.slow
@settings(max_examples=2_000, deadline=None)
@given(*_SHARED)
def test_shares_cut_anywhere_give_every_record_once_at_length(data: st.DataObject, values: list[Any]) -> None:
    check_shares(data, values)


def check_shares(data: st.DataObject, values: list[Any]) -> None:
    text = data.draw(dumps(values))
    content = text.encode("utf-8", "surrogatepass")
    places = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    found: list[RawRecord] = []
    for start, stop in itertools.pairwise([0, *places, len(content)]):
        chunks = data.draw(cut(content[start:]))
        share = list(iter_share(chunks, name="a.json", start=start, stop=stop))
        assert [record.index for record in share] == list(range(len(share)))
        found += share
    assert same([record.value for record in found], json.loads(text))
    for record in found:
        assert same(json.loads(content[record.offset : record.offset + record.length]), record.value)


@_PROPERTY
@given(st.data(), st.lists(_RECORDS, min_size=1, max_size=5))
def test_shares_of_json_lines(data: st.DataObject, values: list[Any]) -> None:
    content = "\n".join(map(json.dumps, values)).encode()
    place = data.draw(st.integers(0, len(content)))
    shares = [
        iter_share(data.draw(cut(content[start:])), name="a.jsonl", start=start, stop=stop)
        for start, stop in ((0, place), (place, len(content)))
    ]
    assert same([record.value for share in shares for record in share], values)


@_PROPERTY
@given(st.data(), st.lists(st.one_of(_RECORDS, _PLAIN), min_size=1, max_size=5))
def test_resume_at_any_record(data: st.DataObject, values: list[Any]) -> None:
    content = data.draw(dumps(values)).encode("utf-8", "surrogatepass")
    whole = list(iter_records([content], name="a.json"))
    k = data.draw(st.integers(0, len(whole) - 1))
    rest = iter_records(data.draw(cut(content[whole[k].offset :])), name="a", start=whole[k].offset, index=k)
    again = list(rest)
    assert [(r.offset, r.length, r.index) for r in again] == [
        (r.offset, r.length, r.index) for r in whole[k:]
    ]
    assert same([r.value for r in again], [r.value for r in whole[k:]])


@_PROPERTY
@given(st.data(), st.lists(_RECORDS, min_size=1, max_size=4))
def test_every_truncated_array_is_an_error(data: st.DataObject, values: list[Any]) -> None:
    content = data.draw(dumps(values)).strip().encode("utf-8", "surrogatepass")
    place = data.draw(st.integers(0, len(content) - 1))
    found: list[Any] = []
    with pytest.raises(AnnotationError, match=r"^a\.json, byte \d+, record \d+: "):
        found.extend(r.value for r in iter_records(data.draw(cut(content[:place])), name="a.json"))
    assert same(found, json.loads(content.decode("utf-8", "surrogatepass"))[: len(found)])


def read(content: bytes | str) -> list[Any]:
    data = content.encode() if isinstance(content, str) else content
    return [record.value for record in iter_records([data], name="a.json")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "byte 0, record 0: the file is empty"),
        (" \n", "record 0: the file is empty"),
        ("[", "byte 1, record 0: the file ends before the record does"),
        ('[{"a": 1},]', "byte 9, record 1: a comma stands before the closing bracket"),
        ('[{"a": 1}, ]', "byte 9, record 1: a comma stands"),
        ('[{"a": 1}', "byte 9, record 1: the file is cut short: it ends without the closing"),
        ('[{"a": 1},', "record 1: the file ends before the record does"),
        ('[{"a": 1}, {"a":', "byte 11, record 1: the file ends before the record does"),
        ('[{"a": 1} {"a": 2}]', "byte 10, record 1: found b'{' where a comma"),
        ('[{"a": 1}, 5, {"a": 2}]', "byte 11, record 1: found b'5' where a record, an object"),
        ('[[{"a": 1}]]', "byte 1, record 0: found b'\\['"),
        ('[,{"a": 1}]', "byte 1, record 0: found b','"),
        ('[{"a": 1}, {"a": tru}, {"a": 3}]', "byte 17, record 1: not valid JSON: Expecting value"),
        ('[{"é": 1}, {"é": 1 2}]', "record 1: not valid JSON"),
        ('[{"a": 1}] x', "byte 11, record 1: found b'x' after the array"),
        ('{"records": [{"a": 1}], "more": [{"a": 1}]}', "a second array of objects"),
        ('{"records": [{"a": 1}], }', "what follows the array is not valid JSON"),
        ('{"records": [{"a": 1}]', "what follows the array is not valid JSON"),
        ('{"image": 1, "prompt": 2}, {"image": 1}', "byte 25, record 1: found b','"),
        ("true", "the file begins with b'true', not with an array"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "pointer of a large file"),
        (b"\xff\xfe[\x00]\x00", "the file is UTF-16"),
        (b'[{"a": "\xff"}]', "record 0: not valid JSON: 'utf-8' codec"),
        ("[" + '{"a":' * 100_000 + "1" + "}" * 100_000 + "]", "record 0: not valid JSON"),
    ],
)
def test_broken_files_are_one_error_with_place_and_number(content: bytes | str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        read(content)


@pytest.mark.parametrize(
    "content", ["[]", " [ ] ", "\ufeff[]", '{"records": []}', '{"n": 1, "records": [ ] , "m": 2}']
)
def test_empty_arrays_hold_no_records(content: str) -> None:
    assert read(content) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN, "b": -Infinity}',
        '{"a": 18446744073709551616, "b": -9223372036854775809}',
        '{"a": 123456789012345678901234567890.5, "b": 1e999, "c": -0, "d": -0.0, "e": 2.0, "f": 2}',
        '{"a": 1, "b": 2, "a": 3}',
        '{"a": "\\ud800", "b": "\\ud83d\\ude00", "c": "\\u0000"}',
        '{"": {}, "é": [], "x": null}',
    ],
)
def test_what_parsers_disagree_on_is_read_as_json_loads_does(text: str) -> None:
    content = f'[{{"before": 1}}, {text}, {{"after": 1}}, {text}]'
    assert same(read(content), json.loads(content))


def test_a_shared_border_of_a_record_without_its_keys_is_not_lost() -> None:
    values = [{"image": "a", "prompt": "b"}, {"image": "no prompt"}, {"image": "c", "prompt": "d"}]
    content = json.dumps(values).encode()
    border = content.index(b'{"image": "no')
    first = list(iter_share([content], name="a", start=0, stop=border))
    second = list(iter_share([content[border:]], name="a", start=border, stop=len(content)))
    assert [r.value for r in first + second] == values
    assert len(first) == 2


def test_an_empty_share_holds_nothing() -> None:
    content = b'[{"a": 1}, {"image": 1, "prompt": 2}]'
    for place in (0, 3, 11, len(content)):
        assert not list(iter_share([content[place:]], name="a", start=place, stop=place))


def test_resume_at_a_wrong_offset_is_refused() -> None:
    content = b'[{"a": 1}, {"a": 2}]'
    with pytest.raises(AnnotationError, match="byte 3, record 7: no record begins here"):
        list(iter_records([content[3:]], name="a", start=3, index=7))


def test_a_slice_of_known_records_needs_no_more_bytes_than_theirs() -> None:
    content = b'[{"a": 1}, {"a": 2}, {"a": 3}]'
    some = iter_records([content[11:19]], name="a", start=11, index=1)
    assert [(r.index, r.value) for r in itertools.islice(some, 1)] == [(1, {"a": 2})]


def test_one_record_whose_place_is_known() -> None:
    content = '[{"é": 1e999}, {"n": 18446744073709551616, "é": "x"}]'.encode()
    first, second = iter_records([content], name="a")
    for known in (first, second):
        data = content[known.offset : known.offset + known.length]
        record = read_record(data, name="a", offset=known.offset, index=known.index)
        assert (record.offset, record.length, record.index) == (known.offset, known.length, known.index)
        assert same(record.value, known.value)
        assert repr(record) == repr(known)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1}, {', r"^a\.json, byte 108, record 7: not valid JSON: Extra data"),
        (b'{"a": ', r"byte 106, record 7: not valid JSON: Expecting value"),
        (b'{"\xff": 1}', r"byte 100, record 7: not valid JSON: 'utf-8'"),
        (b"[1]", r"byte 100, record 7: found b'\[1\]' where a record, an object, should be"),
    ],
)
def test_bytes_that_are_not_one_record_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        read_record(data, name="a.json", offset=100, index=7)


def _big_array(records: int, size: int) -> Iterator[bytes]:
    filler = "x" * size
    yield b"["
    for index in range(records):
        record = {"image": f"/{index}", "prompt": "p {} }, {", "answer": filler}
        yield (", " if index else "").encode() + json.dumps(record).encode()
    yield b"]"


def test_takes_no_more_chunks_than_it_needs() -> None:
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for chunk in _big_array(1000, 100):
            taken += 1
            yield chunk

    records = iter_records(counted(), name="a")
    assert taken == 0
    next(records)
    assert taken <= 8


@pytest.mark.parametrize("chunk", [1 << 12, 1 << 16, 1 << 20])
def test_memory_does_not_grow_with_the_file(chunk: int) -> None:
    def chunks() -> Iterator[bytes]:
        held = bytearray()
        for part in _big_array(4_000, 4_000):
            held += part
            while len(held) >= chunk:
                yield bytes(held[:chunk])
                del held[:chunk]
        yield bytes(held)

    count = sum(1 for _ in iter_records(chunks(), name="warm up"))
    tracemalloc.start()
    try:
        assert sum(1 for _ in iter_records(chunks(), name="a")) == count == 4_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * chunk + (2 << 20)  # the file has 16 MiB; some of the chunks are held by this test


def test_one_large_record_is_read_and_an_endless_one_refused() -> None:
    large = {"image": "a", "prompt": "}, {" * 500_000}
    content = json.dumps([large, large]).encode()
    chunks = [content[at : at + 65536] for at in range(0, len(content), 65536)]
    assert [r.value for r in iter_records(chunks, name="a")] == [large, large]

    endless = itertools.chain([b'[{"image": "'], itertools.repeat(b"x" * (1 << 20)))
    with pytest.raises(AnnotationError, match="no record ends within 64 MiB"):
        next(iter_records(endless, name="a"))
