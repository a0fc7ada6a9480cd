"""Joining a cut archive on disk, and the commands over it."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple

import pytest
from archives import CountingTree, cut, make_zip

from hub import faults as f
from reasonknee_hf.cli import main
from reasonknee_hf.errors import ArchiveError, EndpointError, IntegrityError, OptionError
from reasonknee_hf.hub.fs.cutzip import join
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.wire import mirrors, retries
from reasonknee_hf.hub.zips.archive_names import PartSet

MEMBERS = {f"masks/knee_{i:03d}.nii.gz": random.Random(i).randbytes(30_000) for i in range(100)}
ZIP = make_zip(MEMBERS)
CUT = 1_800_000
FILES = cut(ZIP, CUT)
PARTS = PartSet("masks", tuple(FILES))
REPO = "owner/knees"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "2")
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(mirrors, "_health", {})


class HashedTree(CountingTree):
    """Parts with published hashes, streamed in pieces. Attribute `streamed`: bytes that were sent."""

    streamed = 0

    def __init__(self, files, **options):
        super().__init__(files, **options)
        self.hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}

    def entry(self, path):
        return FileEntry(path, len(self.files[path]), None, self.hashes[path])

    def stream(self, path, start=0, stop=None):
        data = self.files[path][start:stop]
        for position in range(0, len(data), 65_536):
            self.streamed += len(data[position : position + 65_536])
            yield data[position : position + 65_536]


def left_over(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", [CountingTree, HashedTree])
def test_the_whole_archive(tmp_path, kind):
    path = join(kind(FILES), PARTS, tmp_path / "deep" / "masks.zip")
    assert path.read_bytes() == ZIP
    assert left_over(path.parent) == {"masks.zip"}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_over_http(tmp_path, origin):
    origin.put_tree(REPO, {f"data/{name}": content for name, content in FILES.items()})
    tree = HubTree(REPO, endpoint=origin.url)
    origin.clear()
    parts = PartSet("data/masks", ("data/masks_aa", "data/masks_ab"))
    assert join(tree, parts, tmp_path / "masks.zip").read_bytes() == ZIP
    assert origin.sent() <= len(ZIP) + 1_100_000  # the parts, and the end for the proof beforehand
    assert len(origin.requests("masks_a")) == 3


def _join_and_die(folder, after: int, queue) -> None:
    tree = HashedTree(FILES)
    stream = tree.stream

    def dying(path, start=0, stop=None):
        for piece in stream(path, start, stop):
            yield piece
            if tree.streamed >= after:
                os.kill(os.getpid(), signal.SIGKILL)

    tree.stream = dying
    join(tree, PARTS, folder / "masks.zip")


@pytest.mark.parametrize("after", [65_536, 1_000_000, 1_800_000, 1_900_000, 2_900_000])
def test_a_killed_run_is_continued(tmp_path, after):
    child = multiprocessing.get_context("fork").Process(target=_join_and_die, args=(tmp_path, after, None))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "masks.zip").exists()
    tree = HashedTree(FILES)
    assert join(tree, PARTS, tmp_path / "masks.zip").read_bytes() == ZIP
    assert tree.streamed <= len(ZIP) - after + 200_000  # what was written is not fetched again
    assert left_over(tmp_path) == {"masks.zip"}


def _leave_partial(tmp_path, size: int) -> HashedTree:
    tree = HashedTree(FILES)

    def stopping(path, start=0, stop=None):
        yield FILES[path][: size if path == "masks_aa" else 0]
        raise EndpointError("gone")

    tree.stream = stopping
    with pytest.raises(EndpointError, match="gone"):
        join(tree, PARTS, tmp_path / "masks.zip")
    return HashedTree(FILES)


def test_what_was_left_is_verified(tmp_path):
    tree = _leave_partial(tmp_path, 500_000)
    partial = tmp_path / "masks.zip.partial"
    damaged = bytearray(partial.read_bytes())
    assert len(damaged) == 500_000
    damaged[1000] ^= 1
    partial.write_bytes(damaged)
    assert join(tree, PARTS, tmp_path / "masks.zip").read_bytes() == ZIP


def test_what_was_left_of_another_commit_is_not_used(tmp_path):
    _leave_partial(tmp_path, 500_000)
    tree = HashedTree(FILES, sha="f" * 40)
    assert join(tree, PARTS, tmp_path / "masks.zip").read_bytes() == ZIP
    assert tree.streamed == len(ZIP)


def test_a_foreign_file_under_the_partial_name_is_not_used(tmp_path):
    (tmp_path / "masks.zip.partial").write_bytes(b"x" * 1000)
    assert join(HashedTree(FILES), PARTS, tmp_path / "masks.zip").read_bytes() == ZIP


def test_wrong_bytes_never_get_the_final_name(tmp_path):
    tree = HashedTree(FILES)
    tree.hashes["masks_ab"] = "0" * 64
    with pytest.raises(IntegrityError, match=r"masks_ab of .* hash of the listing \(0000"):
        join(tree, PARTS, tmp_path / "masks.zip")
    assert not (tmp_path / "masks.zip").exists()
    good = HashedTree(FILES)
    assert join(good, PARTS, tmp_path / "masks.zip").read_bytes() == ZIP
    assert good.streamed == len(ZIP) - CUT  # the first part was right and is kept


def test_without_hashes_every_member_is_read(tmp_path):
    broken = bytearray(ZIP)
    broken[50_000] ^= 1
    tree = CountingTree(cut(bytes(broken), CUT))
    with pytest.raises(IntegrityError, match="is damaged"):
        join(tree, PARTS, tmp_path / "masks.zip")
    assert left_over(tmp_path) == set()
    assert join(tree, PARTS, tmp_path / "masks.zip", check_members=False).exists()


def test_a_damaged_source_with_a_hash_is_found_by_asking_for_the_members(tmp_path):
    broken = bytearray(ZIP)
    broken[50_000] ^= 1
    tree = HashedTree(cut(bytes(broken), CUT))
    with pytest.raises(IntegrityError, match="is damaged"):
        join(tree, PARTS, tmp_path / "masks.zip", check_members=True)
    assert left_over(tmp_path) == set()


def test_parts_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ArchiveError, match="wrong order"):
        join(CountingTree(FILES), PartSet("masks", PARTS.paths[::-1]), tmp_path / "sub" / "masks.zip")
    assert left_over(tmp_path) == set()


def test_an_existing_file_stays_until_the_new_one_is_right(tmp_path):
    out = tmp_path / "masks.zip"
    out.write_bytes(b"precious")
    with pytest.raises(OptionError, match="exists"):
        join(HashedTree(FILES), PARTS, out)
    tree = HashedTree(FILES)
    tree.hashes["masks_aa"] = "0" * 64
    with pytest.raises(IntegrityError):
        join(tree, PARTS, out, overwrite=True)
    assert out.read_bytes() == b"precious"
    join(HashedTree(FILES), PARTS, out, overwrite=True)
    assert out.read_bytes() == ZIP
    with pytest.raises(OptionError):
        join(HashedTree(FILES), PARTS, tmp_path, overwrite=True)


def test_another_archive_to_the_same_place(tmp_path):
    for members in ({"a.txt": b"first"}, {"b.txt": b"second"}):
        data = make_zip(members)
        join(
            HashedTree(cut(data, 20)),
            PartSet("masks", tuple(cut(data, 20))),
            tmp_path / "out.zip",
            overwrite=True,
        )
        assert zipfile.ZipFile(tmp_path / "out.zip").namelist() == list(members)


def test_free_space_is_looked_at_first(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, len(ZIP) - 1))
    tree = HashedTree(FILES)
    with pytest.raises(ArchiveError, match=f"{len(ZIP):,} are needed"):
        join(tree, PARTS, tmp_path / "masks.zip")
    assert tree.streamed == 0
    kept = 500_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**9))
    tree = _leave_partial(tmp_path, kept)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, len(ZIP) - kept))
    assert join(tree, PARTS, tmp_path / "masks.zip").exists()


def test_a_full_disk_keeps_what_there_is(tmp_path):
    tree = HashedTree(FILES)

    def full(path, start=0, stop=None):
        yield FILES[path][:1000]
        raise OSError(errno.ENOSPC, "No space left on device")

    tree.stream = full
    with pytest.raises(ArchiveError, match="no room left"):
        join(tree, PARTS, tmp_path / "masks.zip")
    assert (tmp_path / "masks.zip.partial").stat().st_size == 1000


def test_two_at_once_do_not_mix(tmp_path):
    tree = HashedTree(FILES)
    stream, met = tree.stream, []

    def meeting(path, start=0, stop=None):
        if not met:
            with pytest.raises(ArchiveError, match="another process is writing"):
                join(HashedTree(FILES), PARTS, tmp_path / "masks.zip")
            met.append(path)
        yield from stream(path, start, stop)

    tree.stream = meeting
    assert join(tree, PARTS, tmp_path / "masks.zip").read_bytes() == ZIP
    assert met


def test_an_endpoint_that_breaks_off_every_time(tmp_path, origin):
    origin.put_tree(REPO, {f"data/{name}": content for name, content in FILES.items()})
    parts = PartSet("data/masks", ("data/masks_aa", "data/masks_ab"))
    tree = HubTree(REPO, endpoint=origin.url)
    tree.entries()
    origin.faults(f.status(503), match="masks_aa")
    with pytest.raises(EndpointError):
        join(tree, parts, tmp_path / "masks.zip")
    assert not (tmp_path / "masks.zip").exists()
    origin.clear()
    mirrors._health.clear()
    assert join(HubTree(REPO, endpoint=origin.url), parts, tmp_path / "masks.zip").read_bytes() == ZIP


# --- commands ------------------------------------------------------------------------------------


@pytest.fixture
def release(tmp_path):
    folder = tmp_path / "release" / "data"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return str(folder.parent)


def test_masks_ls(release, capsys):
    assert main(["masks", "ls", "--source", release]) == 0
    assert capsys.readouterr().out.splitlines() == list(MEMBERS)
    assert main(["masks", "ls", "*_00[12].nii.gz", "-l", "--source", release]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["masks/knee_001.nii.gz", "masks/knee_002.nii.gz"]
    assert main(["masks", "ls", "--json", "--source", release]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[3]["name"] == "masks/knee_003.nii.gz"
    assert rows[3]["size"] == 30_000


def test_masks_get(release, capsysbinary, tmp_path):
    assert (
        main(
            ["masks", "get", "../data/masks/knee_003.nii.gz", "--source", release, "-o", str(tmp_path / "o")]
        )
        == 0
    )
    assert (tmp_path / "o/masks/knee_003.nii.gz").read_bytes() == MEMBERS["masks/knee_003.nii.gz"]
    capsysbinary.readouterr()
    assert main(["masks", "get", "knee_004.nii.gz", "--source", release, "-o", "-"]) == 0
    assert capsysbinary.readouterr().out == MEMBERS["masks/knee_004.nii.gz"]
    assert main(["masks", "get", "knee_999.nii.gz", "--source", release]) == 1
    assert (
        b"'knee_999.nii.gz' is not among the 100 files of data/masks_aa + data/masks_ab"
        in capsysbinary.readouterr().err
    )
    assert main(["masks", "get", "knee_001.nii.gz", "knee_002.nii.gz", "--source", release, "-o", "-"]) == 1


def test_masks_join(release, capsys, tmp_path):
    out = tmp_path / "joined.zip"
    assert main(["masks", "join", str(out), "--source", release]) == 0
    assert out.read_bytes() == ZIP
    assert capsys.readouterr().out.strip() == str(out)
    assert main(["masks", "join", str(out), "--source", release]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["masks", "join", str(out), "--source", release, "--force", "--check-members"]) == 0


def hears_interrupts() -> None:
    """What a shell starts in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_join_says_one_line_and_is_continued(origin, tmp_path):
    origin.put_tree(REPO, {f"data/{name}": content for name, content in FILES.items()})
    origin.faults(f.Rule(f.cut(1_000_000, how="stall", stall=20), match="masks_aa", ranged=False))
    out = tmp_path / "masks.zip"
    where = ["--source", REPO, "--endpoint", origin.url]
    child = subprocess.Popen(
        [sys.executable, "-m", "reasonknee_hf", "masks", "join", str(out), *where],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "REASONKNEE_TIMEOUT": "30"},
        preexec_fn=hears_interrupts,
    )  # fmt: skip
    partial = tmp_path / "masks.zip.partial"
    while child.poll() is None and not (partial.exists() and partial.stat().st_size > 900_000):
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=30)[1]
    assert child.returncode == 130
    told = [line for line in said.splitlines() if "masks.zip: " not in line or "reasonknee" in line]  # no bar
    assert told[-1] == f"reasonknee: interrupted. The next run goes on with what is in {partial}"
    assert "Traceback" not in said
    origin.clear()
    assert main(["masks", "join", str(out), *where]) == 0
    assert out.read_bytes() == ZIP
    starts = [int(one.range[6:].split("-")[0]) for one in origin.requests("masks_aa") if one.range]
    assert max(starts) > 500_000  # the rest of the part


def test_masks_of_a_release_without_an_archive(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"")
    assert main(["masks", "ls", "--source", str(tmp_path)]) == 1
    assert "archives: none" in capsys.readouterr().err


def test_names_with_control_codes_do_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "odd.zip").write_bytes(make_zip({"\x1b[2Jgone": b""}))
    assert main(["masks", "ls", "--source", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
