"""Notebooks lie in git as they are before they run; `make docs` executes them."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from run_notebooks import stripped, written  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_both_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["publish", "quickstart"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_in_git(path):
    text = path.read_text(encoding="utf-8")
    assert text == written(stripped(json.loads(text))), (
        "python docs/tools/run_notebooks.py --strip notebooks/*.ipynb"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_code(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))


def test_what_ran_is_taken_out():
    ran = {"cell_type": "code", "source": ["1"], "metadata": {"a": 1}, "outputs": [{}], "execution_count": 3}
    clean = stripped({"cells": [ran], "metadata": {"kernelspec": {"name": "mine"}}, "nbformat": 4})
    assert clean["cells"][0] == {
        "cell_type": "code", "source": ["1"], "metadata": {}, "outputs": [], "execution_count": None,
    }  # fmt: skip
    assert clean["metadata"]["kernelspec"]["name"] == "python3"
