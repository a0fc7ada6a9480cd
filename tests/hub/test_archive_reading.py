"""Requests, bytes, memory and checks of reading members."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import struct
import threading
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import pytest
from archives import CountingTree, Entry, cut, make_zip, open_cut, raw_zip

from reasonknee_hf.errors import ArchiveError, IntegrityError
from reasonknee_hf.hub.disk import DiskCache
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.directory import MAX_MEMBER
from reasonknee_hf.hub.zips.ranges import CONNECTIONS, execute, plan_requests

MEMBERS = {f"masks/knee_{i:03d}.nii.gz": random.Random(i).randbytes(20_000 + 7 * i) for i in range(200)}
ZIP = make_zip(MEMBERS)
CUT = 2_000_003  # inside a member
NAMES = list(MEMBERS)


@pytest.fixture
def archive() -> CutArchive:
    return open_cut(ZIP, CUT, directory_cache=False)


def crossing(archive: CutArchive) -> str:
    """The member that lies across the cut."""
    return next(m.name for m in archive.directory if m.header < CUT < m.header + m.compressed_size)


# --- requests and bytes -------------------------------------------------------------------------------------


def test_a_cold_member_costs_one_request_for_the_directory_and_one_for_itself(archive):
    assert archive.read(NAMES[5]) == MEMBERS[NAMES[5]]
    assert len(archive.tree.requests) == 2
    assert archive.tree.requests[0] == ("masks_ab", len(ZIP) - CUT - 1024 * 1024, len(ZIP) - CUT)


def test_a_warm_member_costs_exactly_one_request_and_hardly_more_than_its_bytes(archive):
    archive.names()
    for name in NAMES[:90]:
        archive.tree.forget()
        assert archive.read(name) == MEMBERS[name]
        assert len(archive.tree.requests) == 1
        assert archive.tree.sent <= 1.005 * archive.member(name).compressed_size


def test_a_member_across_the_cut_costs_two_requests_side_by_side(archive):
    name = crossing(archive)
    archive.tree.forget()
    both = threading.Barrier(2, timeout=5)
    ranges = archive.tree.ranges

    def waiting(*args, **kwargs):
        both.wait()  # breaks if one request ends before the other begins
        return ranges(*args, **kwargs)

    archive.tree.ranges = waiting
    assert archive.read(name) == MEMBERS[name]
    assert len(archive.tree.requests) == 2
    assert archive.tree.sent <= 1.005 * archive.member(name).compressed_size


def test_fifty_random_members_cold(archive):
    chosen = random.Random(0).sample(NAMES, 50)
    archive.tree.delay = 0.002
    assert dict(archive.read_many(chosen)) == {name: MEMBERS[name] for name in chosen}
    assert len(archive.tree.requests) <= 52
    assert 2 <= archive.tree.most_running <= CONNECTIONS


def test_members_that_lie_together_travel_together(archive):
    archive.names()
    archive.tree.forget()
    assert dict(archive.read_many(NAMES[60:124])) == {name: MEMBERS[name] for name in NAMES[60:124]}
    assert len(archive.tree.requests) <= 3
    archive.tree.forget()
    assert list(dict(archive.read_many(reversed(NAMES[:64])))) == NAMES[:64]
    assert len(archive.tree.requests) == 1


def test_the_same_member_twice_is_read_once(archive):
    archive.names()
    archive.tree.forget()
    assert list(archive.read_many([NAMES[0], NAMES[0]])) == [(NAMES[0], MEMBERS[NAMES[0]])]
    assert len(archive.tree.requests) == 1


def test_reading_everything_holds_little(archive, monkeypatch):
    monkeypatch.setattr("reasonknee_hf.hub.zips.archive.execute", partial(execute, max_buffered=200_000))
    monkeypatch.setattr(
        "reasonknee_hf.hub.zips.archive.plan_requests", partial(plan_requests, max_request=60_000)
    )
    archive.names()
    tracemalloc.start()
    for _ in archive.read_many(NAMES):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000  # of 4 MB


def test_the_directory_is_compact():
    data = make_zip({f"masks/knee_{i:04d}.nii.gz": b"" for i in range(8000)})
    archive = open_cut(data)
    tracemalloc.start()
    archive.names()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2_500_000


# --- the directory on disk ----------------------------------------------------------------------------------


def warm(tree: CountingTree, folder: Path | None = None) -> CutArchive:
    return CutArchive(tree, ["masks_aa", "masks_ab"], directory_cache=folder)


def test_a_second_archive_asks_for_no_directory(tmp_path):
    tree = CountingTree(cut(ZIP, CUT), sha="a" * 40)
    assert warm(tree, tmp_path).names() == NAMES
    tree.forget()
    second = warm(tree, tmp_path)
    assert second.names() == NAMES
    assert tree.requests == []
    assert second.read(NAMES[3]) == MEMBERS[NAMES[3]]
    assert len(tree.requests) == 1


def test_by_default_only_what_cannot_change_is_kept():
    for sha, requests in (("b" * 40, 0), (None, 1)):
        tree = CountingTree(cut(ZIP, CUT), sha=sha)
        warm(tree).names()
        tree.forget()
        warm(tree).names()
        assert len(tree.requests) == requests


def test_another_commit_another_size_another_directory(tmp_path):
    warm(CountingTree(cut(ZIP, CUT), sha="a" * 40), tmp_path).names()
    for tree in (CountingTree(cut(ZIP, CUT), sha="c" * 40), CountingTree(cut(ZIP, CUT + 1), sha="a" * 40)):
        warm(tree, tmp_path).names()
        assert len(tree.requests) == 1


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:-9] + b"x" + b[-8:], lambda b: b"{}" + b]
)
def test_a_damaged_file_is_ignored_and_written_anew(tmp_path, damage):
    tree = CountingTree(cut(ZIP, CUT), sha="a" * 40)
    warm(tree, tmp_path).names()
    (file,) = tmp_path.glob("??/*")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    tree.forget()
    assert warm(tree, tmp_path).names() == NAMES
    assert len(tree.requests) == 1
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_nothing_but_speed(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    tree = CountingTree(cut(ZIP, CUT), sha="a" * 40)
    assert warm(tree, tmp_path / "file" / "below").names() == NAMES


def test_threads_share_one_directory(archive):
    threads = [threading.Thread(target=archive.names) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(archive.tree.requests) == 1


def _names_in_child(folder: Path, queue) -> None:
    tree = CountingTree(cut(ZIP, CUT), sha="d" * 40)
    names = warm(tree, folder).names()
    queue.put((len(names), len(tree.requests)))


def test_processes_that_start_together_share_one_download(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_names_in_child, args=(tmp_path, queue)) for _ in range(4)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert [names for names, _ in answers] == [len(NAMES)] * 4
    assert sum(requests for _, requests in answers) == 1


def _read_in_child(archive: CutArchive, queue) -> None:
    queue.put(archive.read(NAMES[7]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_archive_goes_to_another_process(archive, method):
    archive.names()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    holder = threading.Event()
    held = threading.Event()

    def hold() -> None:  # a thread of the parent holds the lock while the child is made
        with archive._lock:
            held.set()
            holder.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(5)
    if method == "fork":
        archive._opened = None  # so that the child has to take the lock
    child = context.Process(target=_read_in_child, args=(archive, queue))
    child.start()
    assert queue.get(timeout=60) == MEMBERS[NAMES[7]]
    child.join()
    holder.set()
    thread.join()


def test_pickles_without_its_directory(archive):
    before = len(pickle.dumps(archive))
    archive.names()
    assert archive.mounted
    assert len(pickle.dumps(archive)) <= before + 4096
    assert pickle.loads(pickle.dumps(archive)).read(NAMES[0]) == MEMBERS[NAMES[0]]


def test_members_are_kept_on_disk_when_asked(tmp_path, archive):
    archive.cache = DiskCache(tmp_path, 10_000_000)
    assert archive.read(NAMES[0]) == MEMBERS[NAMES[0]]
    archive.tree.forget()
    assert archive.read(NAMES[0]) == MEMBERS[NAMES[0]]
    assert dict(archive.read_many(NAMES[:3])) == {name: MEMBERS[name] for name in NAMES[:3]}
    assert len(archive.tree.requests) == 1


# --- damage -------------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_member_is_seen():
    members = {"a": b"knee" * 40, "b": random.Random(1).randbytes(60)}
    data = make_zip(members)
    first = open_cut(data)
    for name in members:
        member = first.member(name)
        for position in range(member.header, member.header + 30 + 1 + member.compressed_size):
            broken = bytearray(data)
            broken[position] ^= 0x55
            archive = open_cut(bytes(broken))
            archive.names()
            archive.tree.forget()
            try:
                assert archive.read(name) == members[name]  # a byte that plays no part, such as the time
            except (ArchiveError, IntegrityError):
                assert len(archive.tree.requests) <= 4


def test_an_answer_that_lies_is_asked_for_once_more(archive):
    archive.names()
    ranges = archive.tree.ranges

    def lying(path, spans, *, checked_later=False):
        answers = ranges(path, spans)
        return [answer[:-1] + b"!" for answer in answers] if checked_later else answers

    archive.tree.ranges = lying
    archive.tree.forget()
    assert archive.read(NAMES[0]) == MEMBERS[NAMES[0]]
    assert len(archive.tree.requests) == 2


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry(b"m", b"secret", flags=0x1), "is encrypted"),
        (Entry(b"m", b"secret", flags=0x41), "is encrypted"),
        (Entry(b"m", b"x", method=12), r"bzip2 \(method 12\)"),
        (Entry(b"m", b"x", method=93), r"zstd \(method 93\)"),
        (Entry(b"m", b"x", method=77), r"an unknown method \(method 77\)"),
        (Entry(b"m", b"x", size=MAX_MEMBER + 1, zip64=True), "over the limit"),
        (Entry(b"m", b"x" * 10, size=1_000_000), "which cannot be"),
        (Entry(b"m", b"stored", method=0, size=3), "which cannot be"),
        (Entry(b"m", b"", at=1_000_000), "reach into the directory"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_before_anything_is_fetched(entry, message):
    archive = open_cut(raw_zip([entry, Entry(b"good", b"good")]))
    archive.names()
    archive.tree.forget()
    with pytest.raises(ArchiveError, match=message):
        archive.read("m")
    assert archive.tree.requests == []
    assert archive.read("good") == b"good"


@pytest.mark.parametrize("without_isal", [False, True])
def test_a_member_never_unfolds_beyond_what_was_announced(monkeypatch, without_isal):
    if without_isal:
        monkeypatch.setitem(__import__("sys").modules, "isal", None)
    bomb = Entry(b"bomb", bytes(50_000_000), size=1000)
    short = Entry(b"short", b"abc" * 1000, size=3001)
    archive = open_cut(raw_zip([bomb, short]))
    archive.names()
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="damaged: 1001 bytes"):
        archive.read("bomb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    with pytest.raises(IntegrityError, match="damaged: 3000 bytes"):
        archive.read("short")


def test_a_truncated_deflate_stream_is_seen():
    packed = zlib.compress(b"knee" * 100, wbits=-15)
    data = bytearray(raw_zip([Entry(b"m", b"knee" * 100)]))
    start = 30 + 1
    data[start : start + len(packed)] = bytes(len(packed) - 4) + b"\x00\x00\xff\xff"
    with pytest.raises(IntegrityError, match="damaged"):
        open_cut(bytes(data)).read("m")


def test_a_crc_that_does_not_fit_names_both():
    with pytest.raises(IntegrityError, match="CRC 8c736521, the directory says 3 with 00000007"):
        open_cut(raw_zip([Entry(b"m", b"foo", method=0, crc=7)])).read("m")


def test_an_absurd_directory_is_not_fetched():
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 300 * 1024 * 1024, 0, 0)
    tree = CountingTree({"m.zip": b"PK\x03\x04" + bytes(2_000_000) + end})
    tree.entries = lambda: {"m.zip": type("Entry", (), {"size": len(tree.files["m.zip"])})()}
    with pytest.raises(ArchiveError, match=r"too few|announces 1 entries"):
        CutArchive(tree, ["m.zip"]).names()
    assert tree.sent < 2 * 1024 * 1024 + 100  # the tail, and once more with the proofs that cost extra
