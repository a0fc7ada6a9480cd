"""Kinds of cut archives (ZIP-O1) and layouts of the directory (ZIP-O2)."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import zipfile

import pytest
from archives import CountingTree, Entry, contents, cut, make_zip, open_cut, raw_zip
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import ArchiveError, FileMissingError
from reasonknee_hf.hub.fs.cutzip import CutZipFileSystem
from reasonknee_hf.hub.fs.readonly import MountedTree
from reasonknee_hf.hub.trees.folder_tree import FsspecTree
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet, find_part_sets

MEMBERS = {f"masks/knee_{i:03d}.nii.gz": random.Random(i).randbytes(200 + 40 * i) for i in range(6)}
ZIP = make_zip(MEMBERS)


def open_files(files: dict[str, bytes]) -> CutArchive:
    (parts,) = find_part_sets(files).values()
    return CutArchive(CountingTree(files), parts)


# --- names of parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "mount", "order"),
    [
        (["d/masks_ab", "d/masks_aa"], "d/masks", ["d/masks_aa", "d/masks_ab"]),
        (["masks.zip.aa", "masks.zip.ab"], "masks", ["masks.zip.aa", "masks.zip.ab"]),
        (["masks.zip_aa"], "masks", ["masks.zip_aa"]),
        (["masks.zip.partaa", "masks.zip.partab"], "masks", ["masks.zip.partaa", "masks.zip.partab"]),
        (["m.zip.002", "m.zip.001", "m.zip.003"], "m", ["m.zip.001", "m.zip.002", "m.zip.003"]),
        (["m.zip.00", "m.zip.01"], "m", ["m.zip.00", "m.zip.01"]),
        (["m.001", "m.002"], "m", ["m.001", "m.002"]),
        (["a.b/masks.zip"], "a.b/masks", ["a.b/masks.zip"]),
        (["x_aaa", "x_aab"], "x", ["x_aaa", "x_aab"]),
        (["masks_01", "masks_02"], "masks", ["masks_01", "masks_02"]),
        (["m.zip.part1", "m.zip.part2"], "m", ["m.zip.part1", "m.zip.part2"]),
        (["m.zip.0", "m.zip.1"], "m", ["m.zip.0", "m.zip.1"]),
        *(
            (sorted(f"d/{name}{n}" for n in range(1, 13)), mount, [f"d/{name}{n}" for n in range(1, 13)])
            for name, mount in (
                ("masks.zip.", "d/masks"),
                ("masks_", "d/masks"),
                ("part_", "d/part"),
                ("masks-", "d/masks"),
                ("masks.part", "d/masks"),
                ("masks.zip_", "d/masks"),
            )
        ),
        ([f"m.zip.{n:03d}" for n in range(1, 1002)], "m", [f"m.zip.{n:03d}" for n in range(1, 1002)]),
    ],
)
def test_parts_are_found_by_name_and_put_in_order(paths, mount, order):
    others = [
        "README.md",
        "code/run.py",
        "data/x_07",
        "notes.ab",
        "data/data.tar.gz_aa",
        "v.2025",
        "a.7z.001",
    ]
    assert find_part_sets([*paths, *others]) == {mount: PartSet(mount, tuple(order))}


def test_twenty_seven_parts_stay_in_order():
    names = [f"m_{a}{b}" for a in "ab" for b in "abcdefghijklmnopqrstuvwxyz"][:28]
    assert find_part_sets(reversed(names))["m"].paths == tuple(names)


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (["d/masks_aa", "d/masks_ac"], "d/masks_ab"),
        (["d/masks_ab"], "d/masks_aa"),
        (["m.zip.001", "m.zip.003"], "m.zip.002"),
        (["m.zip.002"], "m.zip.001"),
        (["m.zip.8", "m.zip.10"], "m.zip.1, m.zip.2, .*, m.zip.7, m.zip.9"),
        ([f"m.zip.{n}" for n in range(1, 13) if n != 9], "m.zip.9"),
    ],
)
def test_a_part_missing_by_number_is_named(paths, missing):
    archive = open_files(dict.fromkeys(paths, ZIP))
    with pytest.raises(ArchiveError, match=f"{missing} .* missing"):
        archive.names()
    assert archive.tree.requests == []


@pytest.mark.parametrize(
    "files",
    [
        {"log_1": 9, "log_2": 10},  # the second is larger
        {f"IM_{n}": 512 for n in range(1, 40)},  # slices: all of one size
        {"run_1": 500, "run_2": 400, "run_3": 300},
        {"run_1": None, "run_2": None},
        {"notes.1": 50, "notes.2": 40},
        {"scan_2": 50, "scan_3": 40},
        {"scan_1": 50},
        {"libx.so.1": 50, "v.2025": 40},
    ],
)
def test_numbered_files_that_are_no_parts(files):
    assert find_part_sets(files, files) == {}


@pytest.mark.parametrize("name", ["masks.zip.{}", "masks_{}", "masks.part{}"])
def test_twelve_numbered_parts_are_read_in_the_order_of_their_numbers(tmp_path, name):
    step = len(ZIP) // 11
    for number in range(12):
        (tmp_path / name.format(number + 1)).write_bytes(ZIP[step * number : step * (number + 1)])
    mounted = MountedTree(FsspecTree(tmp_path))
    assert contents(mounted.archives["masks"]) == MEMBERS
    by_part = CutZipFileSystem(str(tmp_path / name.format(3)))
    assert by_part.cat("masks/knee_003.nii.gz") == MEMBERS["masks/knee_003.nii.gz"]
    wrong = CutZipFileSystem(str(tmp_path), parts=sorted(name.format(n) for n in range(1, 13)))
    with pytest.raises(ArchiveError, match="in the wrong place"):
        wrong.ls("")


def test_a_whole_zip_wins_over_pieces_and_spanned_parts_are_never_taken_for_a_whole():
    assert find_part_sets(["m.zip", "m_aa", "m_ab"])["m"].paths == ("m.zip",)
    assert find_part_sets(["m.zip", "m.z01"])["m"] == PartSet("m", ("m.z01", "m.zip"), spanned=True)


# --- kinds of archives --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        cut(ZIP, 700),
        {"masks.zip": ZIP},
        {"masks.zip.001": ZIP[:500], "masks.zip.002": ZIP[500:900], "masks.zip.003": ZIP[900:]},
        {"masks_aa": ZIP},
        {f"m_a{chr(97 + i)}": ZIP[100 * i : 100 * i + 100 if i < 15 else None] for i in range(16)},
    ],
    ids=["two", "whole", "numbered", "one", "sixteen"],
)
def test_plain_cuts_are_read(files):
    archive = open_files(files)
    assert archive.names() == list(MEMBERS)
    assert contents(archive) == MEMBERS


def test_spanning_mode_is_refused_by_name():
    archive = open_files({"masks.z01": b"PK\x07\x08" + ZIP[:500], "masks.zip": ZIP[500:]})
    with pytest.raises(ArchiveError, match=r"spanning mode.*zip -s 0 masks.zip --out joined.zip"):
        archive.names()


@pytest.mark.parametrize(
    "data",
    [
        raw_zip([Entry(b"a", b"x")], disk=1),
        raw_zip([Entry(b"a", b"x")], disk=1, zip64=True),
        raw_zip([Entry(b"a", b"x", disk=1)]),
        b"PK\x07\x08" + ZIP[:-22],
    ],
    ids=["end record", "zip64 record", "entry", "start"],
)
def test_spanning_mode_is_refused_whatever_the_parts_are_called(data):
    with pytest.raises(ArchiveError, match="spanning mode"):
        open_cut(data, 40).names()


# --- wrong parts --------------------------------------------------------------------------------------------


def test_the_last_part_missing_is_named():
    files = cut(ZIP, 700, 1200)
    del files["masks_ac"]
    with pytest.raises(ArchiveError, match=r"masks_ab does not end like one.*\(masks_ac\)"):
        open_files(files).names()


def test_a_part_cut_short_is_seen_at_open():
    files = cut(ZIP, 700)
    files["masks_aa"] = files["masks_aa"][:-3]
    with pytest.raises(ArchiveError, match=r"3 too few.*masks_aa 697, masks_ab"):
        open_files(files).names()


def test_a_part_too_long_is_seen_at_open():
    files = cut(ZIP, 700)
    files["masks_aa"] += b"xyz"
    with pytest.raises(ArchiveError, match=r"3 bytes more than its end record speaks of"):
        open_files(files).names()


def test_parts_in_the_wrong_order_are_seen_at_open():
    pieces = list(cut(ZIP, 700).values())
    with pytest.raises(ArchiveError, match=r"wrong order: masks_ab is the one that begins like a zip"):
        open_files({"masks_aa": pieces[1], "masks_ab": pieces[0]}).names()


def test_swapped_middle_parts_are_seen_at_open():
    files = cut(ZIP, 500, 1000, 1500)
    files["masks_ab"], files["masks_ac"] = files["masks_ac"], files["masks_ab"]
    with pytest.raises(ArchiveError, match=r"no member begins where its directory says in masks_a[bc]"):
        open_files(files).names()


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b" + bytes(5000)])
def test_what_is_no_zip_is_called_so(data):
    with pytest.raises(ArchiveError, match="no zip archive"):
        open_files({"masks.zip": data}).names()


def test_a_part_that_is_not_there_is_missing():
    archive = CutArchive(CountingTree(cut(ZIP, 700)), ["masks_aa", "nowhere"])
    with pytest.raises(FileMissingError, match="nowhere"):
        archive.names()


def test_no_parts_at_all():
    with pytest.raises(ArchiveError, match="without naming its parts"):
        CutArchive(CountingTree({}), [])


# --- cuts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [1, 10, 21, 22, 23, 40, 70, 300])
def test_a_last_part_of_a_few_bytes(back):
    assert contents(open_cut(ZIP, len(ZIP) - back)) == MEMBERS


@given(st.lists(st.integers(0, len(ZIP)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_cut_anywhere(positions):
    assert contents(open_cut(ZIP, *positions)) == MEMBERS


@pytest.mark.parametrize("position", range(0, len(ZIP), 53))
def test_a_cut_costs_at_most_one_request_more(position):
    archive = open_cut(ZIP, position)
    archive.names()
    assert len(archive.tree.requests) <= 2
    for name, content in MEMBERS.items():
        archive.tree.forget()
        assert archive.read(name) == content
        assert len(archive.tree.requests) <= 2
        assert archive.tree.sent <= len(content) + 120  # header, name, deflate's own overhead


# --- layouts of the directory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "zip64"),
    [
        (0, False),
        (1, False),
        (65_534, False),
        (65_535, False),
        (65_535, True),
        (65_536, True),
        (70_000, True),
    ],
)
def test_many_members(count, zip64):
    data = raw_zip([Entry(b"m%d" % index, method=0) for index in range(count)], zip64=zip64)
    archive = open_cut(data, len(data) // 2)
    assert len(archive.names()) == count
    assert len(archive.tree.requests) <= 4
    if count:
        assert archive.read(f"m{count - 1}") == b""


def test_more_entries_than_sixteen_bits_without_the_extended_record():
    entries = [Entry(b"%d" % index, method=0) for index in range(65_540)]
    assert len(open_cut(raw_zip(entries, count=4)).names()) == 65_540


def test_the_directory_is_the_truth():
    content = b"knee" * 500
    data = raw_zip(
        [
            Entry(b"plain", content),
            Entry(b"descriptor", content, flags=0x8),
            Entry(b"local extra", content, local_extra=b"UT\x05\x00" + bytes(300)),
            Entry(b"central extra", content, extra=b"ux\x04\x00\x01\x02\x03\x04"),
            Entry(b"zip64", content, zip64=True),
            Entry(b"stored", content, method=0),
            Entry(b"behind a hole", content, gap=10_000),
            Entry(b"behind a hole, long header", content, gap=50, local_extra=bytes(9000)),
            Entry(b"last", content),
        ]
    )
    for position in range(30, len(data), 611):
        assert set(contents(open_cut(data, position)).values()) == {content}


def test_a_long_local_header_behind_which_there_is_a_hole_costs_one_request_more():
    content = random.Random(0).randbytes(5000)
    data = raw_zip([Entry(b"a", content, local_extra=bytes(9000)), Entry(b"b", b"", gap=20_000)])
    archive = open_cut(data)
    archive.names()
    archive.tree.forget()
    assert archive.read("a") == content
    assert len(archive.tree.requests) == 2


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize(
    "around",
    [
        {},
        {"comment": b"made by hand"},
        {"comment": b"x" * 65_535},
        {"comment": b"PK\x05\x06" + bytes(18)},
        {"comment": b"PK\x05\x06" * 200},
        {"prefix": b"#!/bin/sh\n" * 9},
        {"prefix": b"PK\x03\x04" * 9},
        {"trailing": b"\n"},
        {"trailing": bytes(70_000)},
        {"prefix": b"MZ", "comment": b"c", "trailing": b"t" * 100},
    ],
)
def test_comments_and_bytes_around(zip64, around):
    entries = [Entry(name.encode(), content) for name, content in MEMBERS.items()]
    data = raw_zip(entries, zip64=zip64, **around)
    for position in (1, len(data) // 2, len(data) - 10):
        assert contents(open_cut(data, position)) == MEMBERS


def test_a_directory_larger_than_the_tail_is_read_in_full():
    entries = [Entry(b"%06d" % index + b"n" * 200, b"x", method=0) for index in range(5000)]
    data = raw_zip(entries, zip64=True)
    archive = open_cut(data, 1000)
    assert len(archive.names()) == 5000
    assert len(archive.tree.requests) == 2
    assert archive.read(archive.names()[17]) == b"x"


@pytest.mark.parametrize("unlisted", [["masks_aa"], ["masks_ab"], ["masks_aa", "masks_ab"]])
def test_sizes_that_the_listing_does_not_tell(unlisted):
    big = make_zip({f"{i}": random.Random(i).randbytes(50_000) for i in range(60)})
    tree = CountingTree(cut(big, 1_500_000), unlisted=unlisted)
    archive = CutArchive(tree, ["masks_aa", "masks_ab"])
    assert archive.read("3") == random.Random(3).randbytes(50_000)
    assert archive.part_sizes == (1_500_000, len(big) - 1_500_000)
    # One unknown size in front follows from the directory; only the last, or a second one, must be asked for.
    assert tree.asked_sizes == ([] if unlisted == ["masks_aa"] else ["masks_ab"])
    assert len(tree.requests) == 2


def test_an_unknown_size_with_a_short_last_part_is_asked_for():
    tree = CountingTree(cut(ZIP, len(ZIP) - 10), unlisted=["masks_aa"])
    assert contents(CutArchive(tree, ["masks_aa", "masks_ab"])) == MEMBERS


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00\\/"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)


@given(
    st.dictionaries(names, st.binary(max_size=300), max_size=8),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.binary(max_size=40),
    st.binary(max_size=60),
    st.floats(0, 1),
)
@settings(max_examples=200, deadline=None)
def test_the_same_as_the_standard_library(members, compression, comment, prefix, where):
    data = prefix + make_zip(members, compression=compression, comment=comment)
    archive = open_cut(data, int(where * len(data)))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as standard:
            expected = {info.filename: standard.read(info) for info in standard.infolist()}
    except zipfile.BadZipFile:  # a comment that looks like an end record
        return
    directory = archive.directory
    assert [directory[index].name for index in range(len(directory))] == list(expected)
    assert {name: archive.read(name) for name in archive.names()} == {
        name: content for name, content in expected.items() if name in archive.names()
    }


@pytest.mark.skipif(shutil.which("zip") is None, reason="needs the archiver `zip`")
def test_what_the_archiver_writes(tmp_path):
    for name, content in {"a.nii.gz": random.Random(1).randbytes(90_000), "b.nii.gz": bytes(70_000)}.items():
        (tmp_path / name).write_bytes(content)

    def run(command: str) -> None:
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)

    run("zip -q plain.zip *.gz; split -b 40000 plain.zip cut_; cat a.nii.gz | zip -q - - > piped.zip")
    run("zip -q -s 64k spanned.zip *.gz")
    for name in ("spanned.z01", "spanned.zip"):
        shutil.copy(tmp_path / name, tmp_path / f"renamed_{'aa' if name.endswith('1') else 'ab'}")
    mounted = MountedTree(FsspecTree(tmp_path))
    content = (tmp_path / "a.nii.gz").read_bytes()
    assert len(mounted.archives["cut"].parts.paths) == 3
    for archive, name in (("plain", "a.nii.gz"), ("cut", "a.nii.gz"), ("piped", "-")):
        assert mounted.archives[archive].read(name) == content
    for archive in ("spanned", "renamed"):
        with pytest.raises(ArchiveError, match="spanning mode"):
            mounted.archives[archive].names()
