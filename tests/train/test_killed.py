"""Two ranks that are killed in their second epoch and resumed: rows and weights are those of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reasonknee_hf.knee.sample import write_sample
from train.killed import KILLED_BEHIND, LAST_STEP, RUNS, SAVED_EVERY
from train.test_ranks import run_ranks

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Where both ranks wrote what they saw. Their release has scans for two workers of each."""
    folder = tmp_path_factory.mktemp("killed")
    release = write_sample(folder / "release", scans=8)
    run_ranks("train.killed", folder, lambda rank, port: [str(release), str(folder), port])
    return folder


@pytest.mark.parametrize("run", RUNS)
def test_a_killed_run_goes_on_as_if_it_had_not_been(runs: Path, run: str) -> None:
    scans = []
    for rank in (0, 1):
        whole, killed, resumed = (
            [json.loads(line) for line in (runs / f"{run}-{name}-{rank}.jsonl").read_text().splitlines()]
            for name in ("whole", "killed", "resumed")
        )
        assert len(whole) == LAST_STEP
        assert whole[:5] != whole[5:]  # the second epoch has another order
        assert killed == whole[:KILLED_BEHIND]
        assert resumed == whole[SAVED_EVERY:]
        weights = [(runs / f"{run}-{name}-{rank}.weights").read_text() for name in ("whole", "resumed")]
        assert weights[0] == weights[1]
        scans.append({name.rpartition("_")[0] for names in whole[:5] for name in names})
    assert scans[0].isdisjoint(scans[1])
