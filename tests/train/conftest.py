"""Rows of the sample for tests of training. Files that need the extra `train` are left out without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NEEDS_EXTRA = [
    "test_batches.py",
    "test_loops.py",
    "test_trainer.py",
    "test_ranks.py",
    "test_killed.py",
    "test_evaluation.py",
    "test_grpo.py",
    "test_preferences.py",
    "test_training_page.py",
    "test_examples.py",
    "test_families.py",
    "test_bench_run_model.py",
    "test_training_examples.py",
]
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
collect_ignore = [] if find_spec("transformers") and find_spec("trl") else NEEDS_EXTRA

# Tiny models gain nothing from threads, and the machines of CI have two cores.
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", ACCELERATE_USE_CPU="true")
if find_spec("torch"):
    import torch

    torch.set_num_threads(1)

# The prompts of the sample are long; short ones make the same steps in a tenth of the time.
PROMPTS = {str(number): f"Question {number}: grade it." for number in range(1, 70)}


@pytest.fixture(scope="session")
def make_stream(sample_dir: Path) -> Any:
    """Makes streams of the sample: `make_stream("train", **options)`."""
    from reasonknee_hf.dataset.loading import load_dataset

    def make(split: str = "train", name: str = "full", **options: Any) -> Any:
        return load_dataset(name, split=split, streaming=True, source=str(sample_dir), **options)

    return make


@pytest.fixture(scope="session")
def rows(make_stream: Any) -> list[dict[str, Any]]:
    """Rows of the sample's train split that fit the schema, all scans, in order."""
    return list(make_stream(on_error="skip"))


@pytest.fixture(scope="session")
def by_question(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """One row for each of the 62 questions of the release."""
    return {row["question_id"]: row for row in reversed(rows) if row["question_id"] is not None}


@pytest.fixture
def clean_cache() -> Iterator[Any]:
    """An empty cache of decoded volumes."""
    from reasonknee_hf.volumes.volume_cache import volume_cache

    cache = volume_cache()
    cache.clear()
    yield cache
    cache.clear()
