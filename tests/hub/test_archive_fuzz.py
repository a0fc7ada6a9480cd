"""Mutated archives: right bytes or a typed error, within a cap of requests and of memory.

300 cases by default, 20,000 in the slow mode.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest
from archives import CountingTree, Entry, cut, make_zip, raw_zip
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import ReasonKneeError
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet

RANDOM = random.Random(5)
MEMBERS = {
    "a.nii.gz": RANDOM.randbytes(400),
    "masks/b.nii.gz": b"knee" * 500,
    "masks/empty": b"",
    "masks/c.nii.gz": bytes(3000),
    "ü.txt": b"text",
}
EXTRAS = [Entry(name.encode(), content, extra=b"ux\x02\x00ab") for name, content in MEMBERS.items()]
BASES = [
    make_zip(MEMBERS),
    make_zip(MEMBERS, comment=b"comment PK\x05\x06 in it"),
    raw_zip(EXTRAS, zip64=True),
    raw_zip([Entry(name.encode(), content, zip64=True) for name, content in MEMBERS.items()], zip64=True),
    raw_zip(
        [Entry(name.encode(), content, flags=0x8) for name, content in MEMBERS.items()], prefix=b"#!sh\n"
    ),
    raw_zip(
        [Entry(name.encode(), content, local_extra=bytes(64), gap=9) for name, content in MEMBERS.items()]
    ),
]
ODD_NUMBERS = [0, 1, 2, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF]
SIGNATURES = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"]


@st.composite
def mutated(draw):
    """A valid archive, changed in one to four places, and cut."""
    data = bytearray(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 4))):
        # The directory and the end record are where a byte matters most; half of all mutations go there.
        start = max(0, data.rfind(b"PK\x01\x02") - 400) if draw(st.booleans()) else 0
        position = draw(st.integers(start, max(start, len(data) - 1)))
        kind = draw(st.integers(0, 7))
        if kind == 0 and data:
            data[min(position, len(data) - 1)] = draw(st.integers(0, 255))
        elif kind == 1:
            data[position : position + 2] = struct.pack("<H", draw(st.sampled_from(ODD_NUMBERS)) & 0xFFFF)
        elif kind == 2:
            data[position : position + 4] = struct.pack("<L", draw(st.sampled_from(ODD_NUMBERS)))
        elif kind == 3:
            data[position : position + 4] = draw(st.sampled_from(SIGNATURES))
        elif kind == 4:
            del data[position : position + draw(st.integers(1, 200))]
        elif kind == 5:
            data[position:position] = draw(st.binary(min_size=1, max_size=60))
        elif kind == 6:
            data = data[: position + 1]
        else:  # a piece of itself, somewhere else
            source = draw(st.integers(0, len(data)))
            data[position : position + 46] = data[source : source + 46]
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=2))
    return bytes(data), cuts


def examine(data: bytes, cuts: list[int]) -> str:
    """Opens the archive and reads everything in it. Returns what happened, for the statistics."""
    files = cut(data, *cuts)
    tree = CountingTree(files)
    archive = CutArchive(tree, PartSet("masks", tuple(files)))
    try:
        directory = archive.directory
    except ReasonKneeError:
        assert len(tree.requests) <= 8 * len(files)
        return "refused"
    assert len(tree.requests) <= 4 * len(files)
    assert sum(archive.part_sizes) == len(data)
    read = 0
    for entry in directory:
        tree.forget()
        try:
            content = archive.read(entry.raw_name)
        except ReasonKneeError:
            pass
        else:
            read += 1
            # Whatever the mutation did: the bytes are those that a CRC in the archive vouches for.
            assert len(content) == archive.member(entry.raw_name).size
        assert len(tree.requests) <= 4 * len(files)
        assert tree.sent <= 3 * len(data)
    for name, content in MEMBERS.items():
        try:
            if archive.read(name) != content:
                assert archive.member(name).crc != zlib.crc32(content)
        except ReasonKneeError:
            pass
    return "read" if read else "nothing read"


def check(case) -> None:
    data, cuts = case
    tracemalloc.start()
    try:
        examine(data, cuts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Deflate unfolds at most 1,032 times, and only as far as the directory announces.
    assert peak < 4_000_000 + 1_100 * len(data)


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(mutated())
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
def test_mutated_archives(case):
    check(case)


@pytest.mark.slow
@given(mutated())
@settings(
    max_examples=20_000, deadline=None, suppress_health_check=QUIET, phases=[Phase.generate, Phase.shrink]
)
def test_many_mutated_archives(case):
    check(case)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=3))
@settings(deadline=None)
def test_bytes_that_never_were_an_archive(data, cuts):
    examine(data, [position for position in cuts if position <= len(data)])


@pytest.mark.parametrize("base", range(len(BASES)))
def test_cut_off_at_every_byte(base):
    data = BASES[base]
    for length in range(0, len(data), 7):
        assert examine(data[:length], [length // 2]) == "refused"


@pytest.mark.parametrize("base", range(len(BASES)))
def test_the_archives_themselves_are_read(base):
    assert examine(BASES[base], [100]) == "read"
