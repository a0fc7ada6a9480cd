"""Odd and hostile member names (ZIP-O4)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from archives import CountingTree, Entry, cut, open_cut, raw_zip
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import ArchiveError, MemberMissingError, UnsafeNameError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.fs.readonly import MountedTree
from reasonknee_hf.hub.zips.archive_names import common_folder, decode_name, normalise_name, unsafe_reason

LINK = 0o120777 << 16
GBK = "膝盖.nii.gz".encode("gbk")
ODD = raw_zip(
    [
        Entry(b"../evil.nii.gz", b"climbs"),
        Entry(b"/abs.nii.gz", b"absolute"),
        Entry(b"C:\\x.nii.gz", b"drive"),
        Entry(b"a\\b\\c.nii.gz", b"backslashes"),
        Entry(b"link.nii.gz", b"/etc/passwd", attributes=LINK),
        Entry(b"__MACOSX/._m1.nii.gz", b"shadow"),
        Entry(b".DS_Store", b"shadow"),
        Entry(b"m1.nii.gz", b"first"),
        Entry(b"m1.nii.gz", b"second"),
        Entry(b"same.nii.gz", b"one place"),
        Entry(b"folder/", b""),
        Entry(GBK, b"without the flag"),
        Entry(b"M1.NII.GZ", b"capitals"),
    ]
)
REAL = {
    "../evil.nii.gz": b"climbs",
    "/abs.nii.gz": b"absolute",
    "C:/x.nii.gz": b"drive",
    "a/b/c.nii.gz": b"backslashes",
    "m1.nii.gz": b"second",
    "same.nii.gz": b"one place",
    "膝盖.nii.gz": b"without the flag",
    "M1.NII.GZ": b"capitals",
}
SAFE = {name for name in REAL if name not in {"../evil.nii.gz", "/abs.nii.gz", "C:/x.nii.gz"}}


def test_the_listing_shows_real_members_only():
    archive = open_cut(ODD, 100, encoding="gbk")
    assert set(archive.names()) == set(REAL)
    assert {name: archive.read(name) for name in archive.names()} == REAL


def test_of_duplicates_the_last_counts_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert open_cut(ODD).read("m1.nii.gz") == b"second"
    assert "1 members whose name comes again; the last counts" in caplog.text


def test_two_entries_may_point_to_the_same_data():
    data = raw_zip([Entry(b"one", b"content"), Entry(b"two", b"content", at=0)])
    archive = open_cut(data)
    assert dict(archive.read_many(["one", "two"])) == {"one": b"content", "two": b"content"}


def test_undecodable_names_stay_reachable():
    for archive in (open_cut(ODD), open_cut(ODD, encoding="ascii")):
        assert archive.read(GBK) == b"without the flag"
        shown = archive.member(GBK).name
        assert archive.read(shown) == b"without the flag"
    flagged = raw_zip([Entry(b"\xff\xfe.nii.gz", b"no utf-8 in spite of the flag", flags=0x800)])
    assert open_cut(flagged).read(b"\xff\xfe.nii.gz") == b"no utf-8 in spite of the flag"


def test_code_pages():
    assert decode_name("knié".encode(), 0x800) == "knié"
    assert decode_name("knié".encode(), 0) == "knié"
    assert decode_name("膝盖".encode("gbk"), 0, encoding="gbk") == "膝盖"
    assert decode_name("knié".encode(), 0x800, encoding="gbk") == "knié"
    assert decode_name(b"kni\x82", 0) == "knié"
    copy = b"\x01" + (0x4CB4FAA1).to_bytes(4, "little") + "膝".encode()
    assert decode_name(b"\x8f", 0, unicode_extra=copy) == "Å"  # the copy is of another name
    import zlib

    copy = b"\x01" + zlib.crc32(b"\x8f").to_bytes(4, "little") + "膝".encode()
    assert decode_name(b"\x8f", 0, unicode_extra=copy) == "膝"


@given(st.binary(min_size=1, max_size=30), st.sampled_from([0, 0x800]))
def test_every_name_has_a_text(raw, flags):
    assert isinstance(decode_name(raw, flags), str)
    assert isinstance(decode_name(raw, flags, encoding="shift_jis"), str)


def test_links_are_refused():
    archive = open_cut(ODD)
    with pytest.raises(ArchiveError, match="is a link, not a file"):
        archive.read("link.nii.gz")
    with pytest.raises(ArchiveError, match="is a folder"):
        archive.read("folder/")
    with pytest.raises(MemberMissingError, match="no member 'nothing'"):
        archive.read("nothing")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_extraction_refuses_unsafe_names_before_it_writes_anything(tmp_path):
    target = tmp_path / "in" / "target"
    archive = open_cut(ODD, encoding="gbk")
    with pytest.raises(UnsafeNameError, match=r"'../evil.nii.gz'.*climbs out"):
        archive.extract(target)
    assert snapshot(tmp_path) == {}
    for name in ("/abs.nii.gz", "C:/x.nii.gz"):
        with pytest.raises(UnsafeNameError):
            archive.extract(target, ["m1.nii.gz", name])
    assert snapshot(tmp_path) == {}
    written = archive.extract(target, SAFE)
    assert snapshot(target) == {name: REAL[name] for name in SAFE}
    assert sorted(written) == sorted(target / name for name in SAFE)


def test_extraction_does_not_follow_a_link_out_of_the_folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").symlink_to(outside)
    (target / "m1.nii.gz").symlink_to(outside / "victim")
    archive = open_cut(ODD)
    with pytest.raises(UnsafeNameError, match="a link in the folder leads out"):
        archive.extract(target, ["a/b/c.nii.gz"])
    archive.extract(target, ["m1.nii.gz"])  # replaces the link itself
    assert snapshot(outside) == {}
    assert not (target / "m1.nii.gz").is_symlink()


def test_a_filesystem_shows_no_unsafe_path(caplog):
    tree = CountingTree(cut(ODD, 100))
    mounted = MountedTree(tree)
    with caplog.at_level(logging.WARNING):
        shown = mounted.members("masks")
    assert "3 of 8 members" in caplog.text
    assert len(shown) == 5
    assert all(unsafe_reason(path) is None for path in shown)


def test_getting_a_whole_archive_stays_in_the_target(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name, content in cut(ODD, 100).items():
        (source / name).write_bytes(content)
    target = tmp_path / "deep" / "target"
    ReasonKneeFileSystem(str(source), encoding="gbk").get("masks", str(target), recursive=True)
    assert snapshot(tmp_path / "deep") == {f"target/{name}": REAL[name] for name in SAFE}
    assert os.listdir(tmp_path) == ["source", "deep"] or set(os.listdir(tmp_path)) == {"source", "deep"}


def test_a_file_that_is_also_a_folder_is_read_by_name_only():
    archive = open_cut(raw_zip([Entry(b"x/a", b"file"), Entry(b"x/a/b", b"below"), Entry(b"x/c", b"other")]))
    assert archive.read("x/a") == b"file"
    assert archive.path_names == ["x/a/b", "x/c"]


@given(st.text("ab./\\:\x00C ", max_size=12))
@settings(max_examples=500)
def test_safe_names_stay_below_their_folder(name):
    name = normalise_name(name)
    if unsafe_reason(name) is None:
        assert os.path.normpath(f"/root/folder/{name}").startswith("/root/folder/")
        assert "\\" not in name
        assert "//" not in name


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        ([], ""),
        (["a"], ""),
        (["x/a"], "x/"),
        (["x/a", "x/y/b"], "x/"),
        (["x/y/a", "x/y/b"], "x/y/"),
        (["xa/a", "xb/b"], ""),
        (["x/a", "b"], ""),
    ],
)
def test_common_folder(names, folder):
    assert common_folder(names) == folder


def test_a_file_that_is_also_a_folder_is_not_extracted(tmp_path):
    archive = open_cut(raw_zip([Entry(b"x/a", b"file"), Entry(b"x/a/b", b"below")]))
    with pytest.raises(UnsafeNameError, match="also the folder of another member"):
        archive.extract(tmp_path / "out")
    assert snapshot(tmp_path) == {}
