"""`reasonknee download` fills what a run without a network needs; `reasonknee cache` shows it and makes it less."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

import reasonknee_hf
from reasonknee_hf.cli import main
from reasonknee_hf.errors import OfflineError
from reasonknee_hf.hub import disk
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.knee.moaks import CATEGORIES
from reasonknee_hf.volumes.volume_cache import volume_cache

REPO = "owner/release"


@pytest.fixture
def sha(origin, sample_dir, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("REASONKNEE_CACHE", "REASONKNEE_CACHE_SIZE"):
        monkeypatch.setenv(name, "")
    paths = [path for path in sample_dir.rglob("*") if path.is_file()]
    return origin.put_tree(REPO, {p.relative_to(sample_dir).as_posix(): p.read_bytes() for p in paths})


@pytest.fixture
def run(origin, sha, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--source", REPO, "--endpoint", origin.url])
        return (code, *capsys.readouterr())

    return call


def rows(origin, split, **options):
    ReasonKneeFileSystem.clear_instance_cache()
    volume_cache().clear()
    options |= {"streaming": True, "source": REPO, "endpoint": origin.url}
    return reasonknee_hf.load_dataset("full", split=split, **options)


def blobs(tmp_path: Path) -> int:
    return sum(path.is_file() for path in (tmp_path / "hub").glob("*/blobs/*"))


def test_what_was_downloaded_is_all_that_a_run_needs(run, origin, sha, tmp_path, monkeypatch) -> None:
    code, out, err = run("download", "--split", "test", "--images", "--masks")
    assert (code, out) == (0, f"{REPO}@{sha} in {tmp_path / 'hub'}\n"), err
    origin.clear()
    assert run("download", "--split", "test", "--images", "--masks")[0] == 0
    assert [r.path for r in origin.log if "/api/" not in r.path] == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(list(rows(origin, "test", shuffle=3))) > 100
    for row in rows(origin, "test").take(300):
        assert row["image"].array().any()
        assert row["mask"].array().any()
    with pytest.raises(OfflineError, match=sha):
        next(iter(rows(origin, "train")))["image"].array()


def test_only_so_many_scans_and_only_of_a_category(run, origin, tmp_path) -> None:
    assert run("download", "scans", "--split", "train")[0] == 0
    tables = blobs(tmp_path)
    assert run("download", "scans", "--split", "train", "--images", "--limit", "2")[0] == 0
    assert blobs(tmp_path) == tables + 2
    code, _, err = run("download", "--split", "train", "--category", "Elbow")
    assert code == 1
    assert "'Elbow' is none of" in err
    options = ("--split", "test", "--images", "--category", CATEGORIES[0], "--limit", "1")
    assert run("download", *options)[0] == 0
    assert blobs(tmp_path) == tables + 3


def test_what_is_not_there_afterwards_is_told(run, tmp_path) -> None:
    code, _, err = run("download", "--split", "test", "--images", "--cache-size", "1MB")
    assert code == 1
    assert "could not be kept" in err
    assert sum(p.stat().st_size for p in (tmp_path / "hub").glob("*/blobs/*")) <= 1024**2
    code, _, err = run("download", "--split", "validation", "--images", "--cache-size", "1GB")
    assert (code, err.count("not in the release")) == (1, 1)  # the sample leaves one out


def test_every_command_takes_a_folder(run, origin, sha, tmp_path, monkeypatch) -> None:
    assert run("rows", "--limit", "3", "--cache", str(tmp_path / "mine"))[1].count("\n") == 3
    assert not (tmp_path / "hub").exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run("rows", "--limit", "3", "--cache", str(tmp_path / "mine"))[1].count("\n") == 3
    assert run("rows", "--limit", "3", "--cache", "0")[0] == 1


def test_a_folder_needs_no_download(sample_dir, capsys, monkeypatch) -> None:
    monkeypatch.setenv("REASONKNEE_CACHE", "0")
    assert main(["download", "--source", str(sample_dir)]) == 1
    assert "there is nothing to fetch" in capsys.readouterr().err


def cache(capsys, *arguments: str) -> str:
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out


def test_the_cache_has_a_door(run, origin, capsys, tmp_path) -> None:
    list(rows(origin, "validation", on_error="null").take(100))
    run("download", "--split", "test", "--masks")
    reasonknee_hf.convert(tmp_path / "out", "bench", source="sample", volumes="none")
    reasonknee_hf.open_release(str(tmp_path / "out"))
    listed = dict(line.split(maxsplit=1) for line in cache(capsys, "ls").splitlines())
    assert set(listed) == {"index", "faults", "directories", "listings", "pieces", "sample", "published"}
    assert not any(line.startswith("0 files") for line in listed.values()), listed
    everything = int(cache(capsys, "size"))
    assert everything == sum(size for f in disk.our_folders().values() for _, size, _ in disk.entries(f))
    for number, (_, _, path) in enumerate(sorted(disk.entries(tmp_path / "assets"), reverse=True)):
        os.utime(path, (10**9 - number, 10**9 - number))
    oldest = min(disk.entries(tmp_path / "assets"))
    assert "bytes freed" in cache(capsys, "prune", "--max-size", str(everything - 1))
    assert not oldest[2].exists()
    assert everything - oldest[1] == int(cache(capsys, "size"))
    index = int(cache(capsys, "size", "index"))
    assert cache(capsys, "clear", "index") == f"{index} bytes freed\n"
    assert cache(capsys, "size", "index") == "0\n"
    assert int(cache(capsys, "size")) > 0
    cache(capsys, "clear")
    assert cache(capsys, "size") == "0\n"
    assert blobs(tmp_path)  # whole files lie in the Hub's own cache, and stay
    assert list(rows(origin, "test").take(3))
    assert main(["cache", "clear", "everything"]) == 1
    assert "known: index" in capsys.readouterr().err
