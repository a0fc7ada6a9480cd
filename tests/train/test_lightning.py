"""`lightning` sees every row once, and a resumed run goes on with the next batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import text_release

pytest.importorskip("lightning")
pytestmark = pytest.mark.train
SCANS = 8


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return str(text_release(tmp_path_factory.mktemp("text") / "release", SCANS))


def run(source: str, out: Path, ranks: int, workers: int, *options: str) -> list[list[list[str]]]:
    """Ids of each rank's batches, in order. Each epoch that ended was validated on each row once."""
    from train import lightning_rank

    given = [str(out), "--source", source, "--ranks", str(ranks), "--workers", str(workers), *options]
    if ranks == 1:
        lightning_rank.main(given)
    else:
        command = [sys.executable, lightning_rank.__file__, *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    validated = Counter(name for rank in seen for name in rank["validation"])
    assert len(validated) in (0, SCANS)
    assert len({*validated.values()}) <= 1
    assert validated or "--stop" in options
    return [rank["train"] for rank in seen]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 0)])
def test_a_stopped_run_goes_on_with_the_next_batch(source, tmp_path, ranks, workers) -> None:
    whole = run(source, tmp_path / "whole", ranks, workers)
    epoch = len(whole[0]) // 2
    for part in (slice(epoch), slice(epoch, None)):
        counts = Counter(name for rank in whole for batch in rank[part] for name in batch)
        assert len(counts) == 62 * SCANS
        assert max(counts.values()) == 1
    for stop in (5, epoch, epoch + 3) if ranks + workers == 1 else (epoch + 3,):
        first = run(source, tmp_path / f"first{stop}", ranks, workers, "--stop", str(stop))
        saved = str(tmp_path / f"first{stop}" / "last.ckpt")
        rest = run(source, tmp_path / f"rest{stop}", ranks, workers, "--resume", saved)
        for rank, batches in enumerate(whole):
            assert first[rank] + rest[rank] == batches, stop


def test_another_number_of_ranks_is_refused(source) -> None:
    from reasonknee_hf.dataset.loading import load_dataset
    from reasonknee_hf.errors import StateError
    from reasonknee_hf.train import RowsDataModule

    data = RowsDataModule(load_dataset("full", split="train", streaming=True, source=source), collate_fn=list)
    data.trainer = SimpleNamespace(world_size=2, global_rank=0)
    with pytest.raises(StateError, match="saved by 1 ranks, and this run has 2"):
        data.load_state_dict({"ranks": [None]})
