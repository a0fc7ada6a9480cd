"""The second epoch and the second process fetch nothing; without the Hub a prepared dataset opens, and streams run."""

from __future__ import annotations

import random
from pathlib import Path

import datasets
import numpy as np
import pytest
from hub import faults as f
from huggingface_hub import constants, snapshot_download
from support import in_fresh_process, plain

import reasonknee_hf
from reasonknee_hf.dataset import index as indexing
from reasonknee_hf.dataset.faults import FaultLog
from reasonknee_hf.errors import OfflineError
from reasonknee_hf.hub import disk
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.volumes.volume_cache import volume_cache

DataLoader = pytest.importorskip("torch.utils.data").DataLoader  # the oldest versions are tested without

REPO = "owner/release"


@pytest.fixture
def sha(origin, sample_dir, monkeypatch, tmp_path):
    """Commit of the sample on an origin of its own; nothing has been kept of anything."""
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("REASONKNEE_CACHE", "auto")
    files = {
        p.relative_to(sample_dir).as_posix(): p.read_bytes() for p in sample_dir.rglob("*") if p.is_file()
    }
    return origin.put_tree(REPO, files)


@pytest.fixture
def stream(origin, sha):
    def load(config="full", split="test", revision=sha, **options):
        forget()
        options = {"streaming": True, "source": REPO, "endpoint": origin.url} | options
        return reasonknee_hf.load_dataset(config, split=split, revision=revision, **options)

    return load


def forget() -> None:
    """As another process: nothing is known but what lies on disk."""
    ReasonKneeFileSystem.clear_instance_cache()
    volume_cache().clear()


def touched(rows) -> list[tuple[str, int, int]]:
    """Id, a crop of the volume and the mask of each row, as numbers."""
    return [
        (
            row["id"],
            int(np.sum(row["image"].crop(row["bbox"]))) if row["bbox"] else 0,
            int(row["mask"].array().sum()),
        )
        for row in rows
        if row["image"] is not None and row["mask"] is not None
    ]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 3}, {"shuffle": 3, "equal_steps": "drop", "num_shards": 2}]
)
def test_the_second_epoch_asks_for_nothing(stream, origin, options) -> None:
    first = touched(stream(**options).take(90))
    assert first
    origin.clear()
    assert touched(stream(**options).take(90)) == first
    assert origin.log == []


def test_nor_do_workers_of_a_loader(stream, origin) -> None:
    def epoch() -> list:
        loader = DataLoader(stream(), batch_size=8, num_workers=2, collate_fn=touched)
        return sorted(row for batch in loader for row in batch)

    first = epoch()
    assert len(first) > 50
    origin.clear()
    assert epoch() == first
    assert origin.log == []


def test_nor_does_a_spawned_process(stream, origin, sha, tmp_path) -> None:
    code = """
        import sys, reasonknee_hf
        options = {"source": "owner/release", "endpoint": sys.argv[1], "revision": sys.argv[2]}
        ds = reasonknee_hf.load_dataset("full", split="test", streaming=True, **options)
        volumes = [row[name] for row in ds.take(70) for name in ("image", "mask")]
        print(sum(int(volume.array().sum()) for volume in volumes if volume is not None))
    """
    env = {"HF_HOME": str(tmp_path), "REASONKNEE_CACHE": "auto"}
    sums = [in_fresh_process(code, tmp_path, origin.url, sha, **env)]
    origin.clear()
    sums.append(in_fresh_process(code, tmp_path, origin.url, sha, **env))
    assert sums[0] == sums[1] != "0\n"
    assert origin.log == []


def test_what_the_user_downloaded_is_used(stream, origin, sha) -> None:
    snapshot_download(
        REPO, repo_type="dataset", revision=sha, endpoint=origin.url, cache_dir=constants.HF_HUB_CACHE
    )
    origin.clear()
    assert touched(stream().take(70))
    assert origin.requests("/resolve/") == []


def test_a_download_is_enough_to_begin_with_offline(stream, origin, sha, monkeypatch) -> None:
    snapshot_download(
        REPO, repo_type="dataset", revision="main", endpoint=origin.url, cache_dir=constants.HF_HUB_CACHE
    )
    origin.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for revision in ("main", sha):
        assert touched(stream(revision=revision, shuffle=1).take(70))
    assert origin.log == []


def test_a_folder_of_ones_own_and_none_at_all(stream, origin, tmp_path) -> None:
    first = touched(stream(cache=tmp_path / "mine").take(70))
    assert not (tmp_path / "hub").exists()
    assert list((tmp_path / "mine").rglob("*.csv"))
    origin.clear()
    assert touched(stream(cache=tmp_path / "mine").take(70)) == first
    assert origin.log == []
    for _ in range(2):
        origin.clear()
        assert touched(stream(cache=False).take(70)) == first
        assert origin.requests(".nii.gz")
    assert not (tmp_path / "hub").exists()


def test_where_things_are_kept_names_no_dataset(origin, sha, tmp_path) -> None:
    options = {"split": "validation", "source": REPO, "revision": sha, "endpoint": origin.url}
    options |= {"cache_dir": str(tmp_path / "prepared")}
    first = reasonknee_hf.load_dataset("full", cache=False, **options)
    second = reasonknee_hf.load_dataset("full", cache=True, cache_size="1GB", **options)
    third = datasets.load_dataset("reasonknee", "full", cache="auto", **options)
    assert first.cache_files == second.cache_files == third.cache_files


@pytest.mark.parametrize("revision", ["main", None])
@pytest.mark.parametrize("outage", ["offline", "down"])
def test_a_prepared_dataset_opens_again(origin, sha, tmp_path, monkeypatch, revision, outage) -> None:
    options = {"split": "validation", "source": REPO, "revision": revision or sha, "endpoint": origin.url}
    options |= {"cache_dir": str(tmp_path / "prepared")}
    before = [plain(row) for row in reasonknee_hf.load_dataset("full", **options)]
    forget()
    if outage == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.2")
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.2")
        origin.faults(f.status(503), match=".")
    origin.log.clear()
    assert [plain(row) for row in reasonknee_hf.load_dataset("full", **options)] == before
    if outage == "offline" or revision is None:
        assert origin.log == []


def test_streams_run_from_what_is_there(stream, origin, sha, monkeypatch) -> None:
    first = touched(stream().take(70))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert touched(stream().take(70)) == first
    with pytest.raises(OfflineError, match=sha):
        touched(stream("full", "train"))
    # What has not been fetched is no fault of the release: no row is left out for it.
    with pytest.raises(OfflineError, match=sha):
        list(stream("full", "train", on_error="skip"))


def test_a_part_of_a_commit_is_not_taken_for_all_of_it(stream, origin, sha, monkeypatch) -> None:
    snapshot_download(
        REPO, repo_type="dataset", revision=sha, endpoint=origin.url, cache_dir=constants.HF_HUB_CACHE,
        ignore_patterns=["*.nii.gz", "*masks_*"],
    )  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for on_error in ("raise", "skip", "null"):
        with pytest.raises(OfflineError, match=f"has not been fetched.*{sha}"):
            touched(stream(on_error=on_error))


def test_no_flip_of_a_bit_in_the_row_index_gives_other_rows(stream, origin, sha) -> None:
    release = open_release(REPO, sha, origin.url)
    path = release.annotation_path("validation")
    right = indexing.row_index(release, path).to_bytes()
    ((_, _, file),) = disk.entries(disk.our_folders()["index"])
    stored = file.read_bytes()
    draw = random.Random(5)
    for position in {*range(100), *(draw.randrange(len(stored)) for _ in range(300))}:
        broken = bytearray(stored)
        broken[position] ^= 1 << draw.randrange(8)
        file.write_bytes(broken)
        assert indexing.known_index(release, path) is None
    file.write_bytes(broken)
    assert indexing.row_index(release, path).to_bytes() == right
    assert file.read_bytes() == stored
    for position in {*range(100), *(draw.randrange(len(right)) for _ in range(300))}:
        broken = bytearray(right)
        broken[position] ^= 1 << draw.randrange(8)
        with pytest.raises(reasonknee_hf.errors.AnnotationError):
            indexing.RowIndex.from_buffer(broken)


def test_damaged_weights_are_worked_out_anew(stream, sha) -> None:
    options = {"split": "train", "shuffle": 1, "balance": "grades"}
    first = [row["id"] for row in stream(**options).take(40)]
    for _, _, file in disk.entries(disk.our_folders()["index"]):
        file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    assert [row["id"] for row in stream(**options).take(40)] == first


def test_fault_logs_of_streams_do_not_pile_up(monkeypatch, tmp_path) -> None:
    from reasonknee_hf.dataset.faults import Fault

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    prepared = FaultLog("/somewhere/train")
    prepared.add(Fault("skipped", "a", "b"))
    for _ in range(400):
        log = FaultLog.of_stream()
        log.add(Fault("skipped", "a", "b"))
        assert log.report().counts == {"skipped": 1}
    files = [p for p in Path(disk.our_folders()["faults"]).rglob("*") if p.is_file()]
    assert len(files) <= 260
    assert prepared.path in files
