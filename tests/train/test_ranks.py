"""Two processes that train together over gloo: plain DDP, `accelerate`, `Trainer`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.train


def run_ranks(module: str, folder: Path, arguments: Callable[[int, str], list[str]]) -> None:
    """Runs a module in two processes with what `torchrun` would tell them. They end, or are ended, with the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    tests = Path(__file__).parents[1]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments(rank, port)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent / "examples", tests.parent))),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"rank{rank}.err").open("w"),
        )
        for rank in range(2)
    ]
    try:
        assert running[0].wait(timeout=400) == 0, (folder / "rank0.err").read_text()[-3000:]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def ranks(sample_dir: Path, tmp_path_factory) -> list[dict]:
    """What both ranks of one run saw."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("train.rank", folder, lambda rank, _: [str(sample_dir), str(folder / f"rank{rank}")])
    done = [folder / f"rank{rank}.json" for rank in range(2)]
    assert all(path.is_file() for path in done), (folder / "rank0.err").read_text()[-3000:]
    return [json.loads(path.read_text()) for path in done]


@pytest.fixture(scope="module")
def one_rank(sample_dir: Path, tmp_path_factory) -> dict:
    """What the same evaluation finds without ranks."""
    from train.rank import evaluated

    return evaluated(str(sample_dir), str(tmp_path_factory.mktemp("one")))["row"]


@pytest.mark.parametrize("loop", ["ddp", "accelerate", "trainer"])
def test_ranks_make_equal_steps_on_different_scans(ranks: list[dict], loop: str) -> None:
    first, second = (rank[loop]["seen"] for rank in ranks)
    assert [len(batch) for batch in first] == [len(batch) for batch in second]
    assert sum(map(len, first)) == ranks[0]["rows"] // 2
    scans = [{name.rpartition("_")[0] for batch in seen for name in batch} for seen in (first, second)]
    assert scans[0].isdisjoint(scans[1])
    assert all(scans)


@pytest.mark.parametrize("loop", ["ddp", "accelerate", "trainer"])
def test_ranks_learn(ranks: list[dict], loop: str) -> None:
    for rank in ranks:
        losses = rank[loop]["losses"]
        assert losses[-1] < losses[0]


def test_no_rank_decodes_a_volume_of_the_other(ranks: list[dict]) -> None:
    for rank in ranks:
        scans = {name.rpartition("_")[0] for batch in rank["ddp"]["seen"] for name in batch}
        assert rank["decodes"] == len(scans)


def test_what_equal_steps_cost_is_said(ranks: list[dict]) -> None:
    for rank in ranks:
        seen = [name for batch in rank["ddp"]["seen"] for name in batch]
        repeated = len(seen) - len(set(seen))
        (line, *_) = [line for line in rank["said"] if line.startswith("equal steps")]
        assert f"repeats {repeated}" in line


def test_evaluation_takes_each_row_once_and_finds_what_one_rank_finds(
    ranks: list[dict], one_rank: dict
) -> None:
    first, second = (rank["evaluated"]["row"] for rank in ranks)
    assert first["eval_ids"] == second["eval_ids"] == one_rank["eval_ids"]
    assert len(set(first["eval_ids"])) == 21
    assert first["eval_right"] == second["eval_right"] == one_rank["eval_right"]
    assert first["eval_loss"] == pytest.approx(one_rank["eval_loss"], rel=1e-4)


def test_a_plain_trainer_loses_no_row_and_sees_no_labels_of_what_fills_batches(ranks: list[dict]) -> None:
    for rank in ranks:
        assert (rank["evaluated"]["plain"]["eval_rows"], rank["evaluated"]["plain"]["eval_empty"]) == (22, 1)


@pytest.mark.parametrize("name", ["loaded", "training", "watched"])
def test_evaluation_that_would_hang_or_lose_rows_is_refused(ranks: list[dict], name: str) -> None:
    for rank in ranks:
        assert "evaluation_stream(rows)" in rank["evaluated"][name]


def test_dispatch_from_rank_0_names_the_option(ranks: list[dict]) -> None:
    assert "dispatch_batches=False" in ranks[0]["dispatch"]
