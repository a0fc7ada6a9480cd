"""A folder of caches that cannot be written to costs speed, not rows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import reasonknee_hf
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem

pytestmark = pytest.mark.floor


@pytest.fixture
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder below `HF_HOME` cannot be made: a file lies in its place, which stops root as well."""
    (tmp_path / "assets").write_bytes(b"")

    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "assets"))


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": 1}, {"equal_steps": "drop", "num_shards": 2}, {"shuffle": 1, "balance": "grades"}],
)
def test_streams_go_to_their_end(sample_dir, no_caches, caplog, options) -> None:
    ds = reasonknee_hf.load_dataset(
        "full", split="test", streaming=True, source=str(sample_dir), on_error="null", **options
    )
    with caplog.at_level(logging.WARNING, "reasonknee_hf"):
        assert len({row["id"] for row in ds}) > 100
    assert "is not kept for the next pass" in caplog.text


def test_faults_are_reported_by_the_process_that_met_them(sample_dir, no_caches) -> None:
    ds = reasonknee_hf.load_dataset(
        "full", split="validation", streaming=True, source=str(sample_dir), on_error="null"
    )
    assert sum(1 for _ in ds)
    assert reasonknee_hf.report(ds).counts


def test_masks_are_read(sample_dir, origin, no_caches) -> None:
    files = {
        path.relative_to(sample_dir).as_posix(): path.read_bytes()
        for path in sample_dir.glob("data/masks_a?")
    }
    fs = ReasonKneeFileSystem("owner/knees", origin.put_tree("owner/knees", files), origin.url)
    assert fs.cat(fs.glob("data/masks/*.nii.gz")[0])[:2] == b"\x1f\x8b"
