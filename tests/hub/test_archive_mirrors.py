"""Archives over several endpoints, damaged ones, ones that refuse, and ones that know no ranges."""

from __future__ import annotations

import random

import pytest
from archives import cut, make_zip

from hub import faults
from reasonknee_hf.errors import AnswerError, ArchiveError, EndpointError, ForbiddenError, IntegrityError
from reasonknee_hf.hub.fs.cutzip import CutZipFileSystem, join
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.wire import mirrors

MEMBERS = {f"masks/knee_{i:03d}.nii.gz": random.Random(i).randbytes(20_000 + i) for i in range(100)}
ZIP = make_zip(MEMBERS)
CUT = 400_003  # inside a member; the second part holds more than the tail
FILES = {
    "data/table.csv": b"a,b\n" * 200,
    **{f"data/{name}": content for name, content in cut(ZIP, CUT).items()},
}
REPO = "owner/knees"


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setattr(mirrors, "_health", {})
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "2")
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.2")
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "assets"))


@pytest.fixture
def both(origin, second_origin):
    """The same commit at two endpoints."""
    assert origin.put_tree(REPO, FILES) == second_origin.put_tree(REPO, FILES)
    return origin, second_origin


def opened(*origins) -> ReasonKneeFileSystem:
    urls = [one.url for one in origins]
    return ReasonKneeFileSystem(REPO, endpoint=urls, skip_instance_cache=True)


def places(fs: ReasonKneeFileSystem) -> dict[str, tuple[int, int]]:
    """Member -> where its packed bytes lie, as (part, offset) of their middle."""
    found = {}
    for member in fs.archives["data/masks"].directory:
        middle = member.header + 100 + member.compressed_size // 2
        found[member.name] = ("masks_aa", middle) if middle < CUT else ("masks_ab", middle - CUT)
    return found


def crossing(fs: ReasonKneeFileSystem) -> str:
    directory = fs.archives["data/masks"].directory
    return next(m.name for m in directory if m.header + 200 < CUT < m.header + m.compressed_size - 200)


@pytest.mark.parametrize("which", ["in the first part", "in the second part", "head", "tail"])
def test_a_flipped_bit_at_one_endpoint_is_read_at_the_next(both, which):
    a, b = both
    fs = opened(a, b)
    names = list(places(fs))
    if which in ("head", "tail"):
        name = crossing(fs)
        part, at = ("masks_aa", CUT - 50) if which == "head" else ("masks_ab", 50)
    else:
        name = names[3] if which == "in the first part" else names[70]
        part, at = places(fs)[name]
    a.clear()
    b.clear()
    a.faults(faults.flipped(at), match=part)
    assert fs.cat(f"data/{name}") == MEMBERS[name]
    assert a.requests(part)
    assert len(b.requests("masks_a")) <= 2 + (
        which in ("head", "tail")
    )  # a proof of its ranges, and the bytes
    assert mirrors.endpoint_counts()[0]["failovers"] == 1
    a.clear()
    other = names[10]  # from now on the other one is asked first
    assert fs.cat(f"data/{other}") == MEMBERS[other]
    assert a.log == []


def test_many_masks_of_which_one_endpoint_has_two_damaged(both):
    a, b = both
    fs = opened(a, b)
    at = places(fs)
    names = list(MEMBERS)
    a.faults(*(faults.Rule(faults.flipped(at[name][1]), match=at[name][0]) for name in (names[5], names[80])))
    found = fs.cat([f"data/{name}" for name in names])
    assert found == {f"data/{name}": content for name, content in MEMBERS.items()}


@pytest.mark.parametrize("at", [-22, -300])  # the signature of the end record, an entry
def test_a_damaged_directory_at_one_endpoint_is_read_at_the_next(both, at):
    a, b = both
    fs = opened(a, b)
    record = len(ZIP) + at
    if at == -300:
        record = ZIP.rindex(b"PK\x01\x02", 0, record)
    a.faults(faults.flipped(record - CUT), match="masks_ab")
    assert fs.members("data/masks") == [name.removeprefix("masks/") for name in MEMBERS]
    assert b.requests("masks_ab")


def test_what_every_endpoint_has_wrong_is_wrong_in_the_release(both):
    broken = bytearray(ZIP)
    broken[ZIP.index(MEMBERS["masks/knee_003.nii.gz"][:50]) + 5_000] ^= 1
    for one in both:
        one.put_tree(
            REPO, {f"data/{name}": bytes(content) for name, content in cut(bytes(broken), CUT).items()}
        )
    fs = opened(*both)
    with pytest.raises(IntegrityError, match=r"masks/knee_003.nii.gz.*is damaged") as caught:
        fs.cat("data/masks/knee_003.nii.gz")
    assert not isinstance(caught.value, AnswerError)
    assert fs.cat("data/masks/knee_004.nii.gz") == MEMBERS["masks/knee_004.nii.gz"]


def test_what_one_endpoint_has_wrong_while_the_other_is_ill_is_an_outage(both):
    a, b = both
    fs = opened(a, b)
    name = list(MEMBERS)[3]
    part, at = places(fs)[name]
    a.faults(faults.flipped(at), match=part)
    b.faults(faults.status(503))
    with pytest.raises(AnswerError, match="none of 2 endpoints gave it"):
        fs.cat(f"data/{name}")


def test_a_join_goes_on_at_the_next_endpoint_whatever_an_earlier_run_left(both, tmp_path):
    a, b = both
    out, name = tmp_path / "masks.zip", "masks_aa"
    a.faults(
        faults.Rule(faults.cut(300_000), match=name, ranged=False, times=1),
        faults.Rule(faults.status(503), match=name, times=20),
    )
    alone = opened(a)
    with pytest.raises(EndpointError):
        join(alone.tree, alone.archives["data/masks"].parts, out)
    partial = tmp_path / "masks.zip.partial"
    damaged = bytearray(partial.read_bytes())
    assert len(damaged) > 100_000
    damaged[1000] ^= 1
    partial.write_bytes(damaged)
    mirrors._health.clear()
    a.faults(faults.flipped(70_000), match=name)
    fs = opened(a, b)
    assert join(fs.tree, fs.archives["data/masks"].parts, out).read_bytes() == ZIP
    assert [one.range for one in b.requests(name)][-1] is None


# --- archives that cannot be opened -------------------------------------------------------------------------


WALKS = {
    "find": lambda fs, at, to: fs.find(at),
    "find in folders above": lambda fs, at, to: fs.find(""),
    "glob": lambda fs, at, to: fs.glob(f"{at}/*.nii.gz"),
    "glob below": lambda fs, at, to: fs.glob("**/*.nii.gz"),
    "du": lambda fs, at, to: fs.du(at),
    "walk": lambda fs, at, to: list(fs.walk(at)),
    "get": lambda fs, at, to: fs.get(at, to, recursive=True),
    "expand_path": lambda fs, at, to: fs.expand_path(at, recursive=True),
    "cat": lambda fs, at, to: fs.cat(at, recursive=True),
    "isdir": lambda fs, at, to: fs.isdir(f"{at}/below"),
    "isfile": lambda fs, at, to: fs.isfile(f"{at}/knee_001.nii.gz"),
}


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())
def test_an_archive_that_cannot_be_opened_does_not_look_empty(tmp_path, walk):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/masks.zip").write_bytes(ZIP[:-5000])
    (tmp_path / "data/x.csv").write_bytes(b"a\n")
    fs = ReasonKneeFileSystem(tmp_path, skip_instance_cache=True)
    with pytest.raises(ArchiveError, match=r"masks\.zip does not end like one: it was cut short$"):
        walk(fs, "data/masks", str(tmp_path / "to"))
    assert fs.find("data/x.csv") == fs.glob("data/*.csv") == ["data/x.csv"]
    assert fs.isdir("data/masks")
    assert sorted(fs.walk("", on_error="omit"))[1][2] == ["masks.zip", "x.csv"]


@pytest.mark.parametrize("walk", ["find", "glob", "du", "walk", "get", "expand_path"])
def test_an_archive_that_is_refused_does_not_look_empty(origin, tmp_path, walk):
    origin.put_tree(REPO, FILES)
    fs = opened(origin)
    origin.faults(faults.status(403), match="masks_a")
    with pytest.raises(ForbiddenError):
        WALKS[walk](fs, "data/masks", str(tmp_path / "to"))
    assert not (tmp_path / "to/knee_000.nii.gz").exists()


def test_a_cut_zip_that_cannot_be_opened_does_not_look_empty(tmp_path):
    (tmp_path / "masks_aa").write_bytes(ZIP[:-5000])
    fs = CutZipFileSystem(str(tmp_path), parts=["masks_aa"])
    for walk in ("find", "glob below", "du", "walk", "get"):
        with pytest.raises(ArchiveError):
            WALKS[walk](fs, "", str(tmp_path / "to"))


def test_what_is_not_there_is_found_nowhere_and_is_no_error(tmp_path):
    (tmp_path / "masks.zip").write_bytes(ZIP)
    fs = ReasonKneeFileSystem(tmp_path, skip_instance_cache=True)
    assert fs.find("nothing") == fs.glob("nothing/*") == list(fs.walk("masks/nothing")) == []
    assert fs.du("nothing") == 0
    with pytest.raises(FileNotFoundError):
        list(fs.walk("nothing", on_error="raise"))
    with pytest.raises(FileNotFoundError):
        fs.get("masks/nothing", str(tmp_path / "to"), recursive=True)


# --- endpoints without ranges -------------------------------------------------------------------------------


def test_without_ranges_each_part_is_fetched_as_a_whole_and_once(origin):
    origin.put_tree(REPO, FILES)
    fs = opened(origin)
    origin.faults(faults.ignore_range)
    names = list(MEMBERS)
    for name in (names[3], crossing(fs), names[90], names[4]):
        assert fs.cat(f"data/{name}") == MEMBERS[name]
    assert len(fs.cat([f"data/{name}" for name in names])) == 100
    for part in ("masks_aa", "masks_ab"):
        assert len([r for r in origin.requests(part) if r.range is None]) == 1
    assert origin.sent("masks_a") <= 2 * len(ZIP)


@pytest.mark.parametrize("first", ["damaged", "without ranges"])
def test_beside_a_damaged_endpoint_the_part_is_fetched_as_a_whole_from_one_without_ranges(both, first):
    damaged, without = both if first == "damaged" else both[::-1]
    fs = opened(*both)
    name = list(MEMBERS)[3]
    part, at = places(fs)[name]
    damaged.faults(faults.flipped(at), match=part)
    without.faults(faults.ignore_range)
    assert fs.cat(f"data/{name}") == MEMBERS[name]
    assert [one.range for one in without.requests(part)][-1] is None
