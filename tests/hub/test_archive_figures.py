"""Requests and bytes of the table that `benchmarks/masks.py` prints, asserted on a smaller archive."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zipfile

import pytest
from archives import cut, make_zip

from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem

REPO = "owner/knees"
# As large as the masks of the release; what counts is how a mask compares with a megabyte of directory.
MEMBERS = {f"masks/knee_{i:04d}.nii.gz": random.Random(i).randbytes(150_000 + 97 * i) for i in range(300)}
NAMES = list(MEMBERS)
ZIP = make_zip(MEMBERS, compression=zipfile.ZIP_STORED)
CUT = 25_000_000
WHOLE = len(ZIP)


@pytest.fixture
def fs(origin, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path))
    origin.put_tree(REPO, {**{f"data/{k}": v for k, v in cut(ZIP, CUT).items()}, "joined.zip": ZIP})
    made = ReasonKneeFileSystem(REPO, endpoint=origin.url, skip_instance_cache=True)
    made.tree.entries()
    origin.clear()
    return made


def path(name: str) -> str:
    return "data/" + name


def crossing(fs) -> str:
    directory = fs.archives["data/masks"].directory
    return next(m.name for m in directory if m.header < CUT < m.header + m.compressed_size)


def needed(names) -> int:
    return sum(len(MEMBERS[name]) for name in names)


def test_one_mask_cold(fs, origin):
    assert fs.cat(path(NAMES[5])) == MEMBERS[NAMES[5]]
    assert len(origin.log) <= 2
    assert {request.method for request in origin.log} == {"GET"}
    assert origin.sent() <= 1_300_000  # of 1.3 GB in the release: a thousand times less


def test_one_mask_with_the_directory_known(fs, origin):
    fs.members("data/masks")
    for name in NAMES[:3]:
        origin.clear()
        assert fs.cat(path(name)) == MEMBERS[name]
        assert len(origin.log) == 1
        assert origin.sent() <= 1.005 * needed([name])


def test_one_mask_across_the_cut(fs, origin):
    name = crossing(fs)
    origin.clear()
    assert fs.cat(path(name)) == MEMBERS[name]
    assert len(origin.log) == 2
    assert origin.sent() <= 1.005 * needed([name])


def test_fifty_random_masks_cold_and_what_others_send_for_them(fs, origin):
    chosen = random.Random(0).sample(NAMES, 50)
    found = fs.cat([path(name) for name in chosen])
    assert found == {path(name): MEMBERS[name] for name in chosen}
    assert len(origin.log) <= 52
    assert origin.sent() <= 1.15 * needed(chosen)

    from huggingface_hub import HfFileSystem

    mine = origin.sent()
    origin.clear()
    with (
        HfFileSystem(endpoint=origin.url).open(f"datasets/{REPO}/joined.zip") as file,
        zipfile.ZipFile(file) as archive,
    ):
        assert all(archive.read(name) == MEMBERS[name] for name in chosen)
    assert origin.sent() >= 20 * mine


@pytest.mark.parametrize("first", [0, 130])  # in one part, and across the cut
def test_masks_that_lie_together(fs, origin, first):
    chosen = NAMES[first : first + 64]
    assert fs.cat([path(name) for name in chosen]) == {path(name): MEMBERS[name] for name in chosen}
    assert len(origin.log) <= 1 + 3  # the directory, and at most three for the masks
    assert origin.sent() <= needed(chosen) + 1_100_000


_CHILD = """
import sys
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
fs = ReasonKneeFileSystem(sys.argv[1], endpoint=sys.argv[2])
print(len(fs.cat(sys.argv[3])))
"""


def test_a_second_process_asks_for_no_directory(origin, tmp_path):
    origin.put_tree(REPO, {f"data/{k}": v for k, v in cut(ZIP, CUT).items()})
    counts = []
    for name in NAMES[:2]:
        origin.clear()
        command = [sys.executable, "-c", _CHILD, REPO, origin.url, path(name)]
        done = subprocess.run(
            command, env={**os.environ, "HF_HOME": str(tmp_path)}, check=True, capture_output=True, text=True
        )
        assert json.loads(done.stdout) == len(MEMBERS[name])
        counts.append(len(origin.requests("masks_a")))
    assert counts == [2, 1]


def test_redirects_are_resolved_once_for_each_part(fs, origin):
    origin.cdn = True
    for name in (NAMES[0], NAMES[1], NAMES[-1], NAMES[-2]):
        fs.cat(path(name))
    to_hub = [request for request in origin.requests("masks_a") if request.side == "hub"]
    assert len(to_hub) == 2  # one for each part …
    assert (
        len([r for r in origin.log if r.side == "cdn"]) == 5
    )  # … and a range for the directory and each mask
