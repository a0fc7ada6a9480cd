"""The examples, as a user starts them, on the sample."""

from __future__ import annotations

import json
from pathlib import Path

import evaluate
import grpo_rewards
import pytest
import sft_lora

from reasonknee_hf.bench import score
from reasonknee_hf.dataset.loading import load_dataset

pytestmark = pytest.mark.train


@pytest.fixture
def source(sample_dir: Path) -> list[str]:
    return ["--source", str(sample_dir)]


def test_sft_with_lora_learns_and_resumes(source, tmp_path) -> None:
    small = [*source, "--view", "jitter", "--size", "28", "--steps", "8", "--learning-rate", "0.02"]
    trainer = sft_lora.main([str(tmp_path), *small])
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert (tmp_path / "adapter_model.safetensors").is_file()
    again = sft_lora.main([str(tmp_path), *small, "--resume", str(tmp_path / "checkpoint-4")])
    assert again.state.global_step == 8
    resumed = [entry["loss"] for entry in again.state.log_history if "loss" in entry]
    assert resumed == pytest.approx(losses, rel=1e-3)


def test_grpo_gets_its_rewards_from_the_benchmark(source, tmp_path) -> None:
    trainer = grpo_rewards.main([str(tmp_path), *source])
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 2
    assert {"rewards/grade_reward/mean", "rewards/iou_reward/mean"} <= set(logged[0])


@pytest.mark.parametrize("coordinates", ["voxels", "view"])
def test_evaluation_writes_what_the_scorer_reads(source, tmp_path, coordinates) -> None:
    out = evaluate.main(
        [
            str(tmp_path / "answers.jsonl"),
            *source,
            "--limit",
            "6",
            "--coordinates",
            coordinates,
            "--size",
            "28",
        ]
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = load_dataset("bench", split="test", streaming=True, source=source[1])
    assert [line["id"] for line in lines] == [row["id"] for row in rows.take(6)]
    report = score(out, list(rows.take(6)), rounds=0)
    assert report.outcome.merged.entries == 6
