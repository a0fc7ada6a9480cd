"""Every name on the API pages has an example in its docstring, and each of them runs on the sample as it stands."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import reasonknee_hf as rk
import reasonknee_hf.knee.sample

API = Path(__file__).resolve().parents[2] / "docs/api"
NAMES = [
    name for page in sorted(API.glob("*.md")) for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
]
# These import transformers or lightning; tests/train/test_training_examples.py runs them.
OF_TRAINING = {
    f"reasonknee_hf.train.{name}"
    for name in (
        "Collator", "Batch", "training_arguments", "check_arguments", "ResumeCallback", "RowEvaluation",
        "EvaluatedRows", "RowsDataModule",
    )
}  # fmt: skip
DATA = {"reasonknee_hf.train.RECIPES"}  # no function, no class: its page shows it


def named(name: str) -> Any:
    """What a dotted name means."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nowhere")


def run_examples(name: str, names: dict[str, Any]) -> None:
    found = named(name)
    names = names | {found.__name__: found}
    tests = doctest.DocTestFinder(recurse=False).find(found, name, globs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.tries > 0, f"{name} has no example"
    assert runner.failures == 0


@pytest.fixture(scope="module")
def row():
    return next(iter(rk.load_dataset("full", split="train", streaming=True, source="sample")))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_TRAINING | DATA])
def test_the_example_of_a_name_runs(name, row):
    run_examples(name, {"rk": rk, "row": row})


def test_public_names_are_on_a_page():
    listed = {name.rpartition(".")[2] for name in NAMES}
    assert {name for name in rk.__all__ if name != "__version__"} <= listed
