"""The examples in the docstrings of classes that import transformers or lightning."""

from __future__ import annotations

import pytest
from docs.test_examples import OF_TRAINING, run_examples
from tiny_model import tiny_processor

import reasonknee_hf as rk

pytestmark = pytest.mark.train


@pytest.mark.parametrize("name", sorted(OF_TRAINING))
def test_the_example_of_a_name_runs(name, rows):
    if name.endswith("RowsDataModule"):
        pytest.importorskip("lightning")
    run_examples(name, {"rk": rk, "row": rows[0], "processor": tiny_processor()})
