"""What a type checker says of calls that cannot be right: values of options are types."""

from __future__ import annotations

from typing import get_args

import pytest

from reasonknee_hf.config_names import ConfigName
from reasonknee_hf.dataset.contract import described, known_names

CALLS = """
import reasonknee_hf as rk
from reasonknee_hf.config_names import OwnConfig
from reasonknee_hf.running import run

rk.load_dataset("bench", on_error="skip", equal_steps="drop", source="sample")
rk.load_dataset("bench", on_error="skp")
rk.load_dataset("bench", equal_steps="dropped")
run("model", out="out", backend="openai")
run("model", out="out", backend="vllm")
rk.load_dataset("bensh")
rk.load_dataset(OwnConfig("mine/questions"))
rk.convert("out", "bench", options=rk.publish.options.ConvertOptions(volumes="embedded"))
"""


def test_values_that_are_none_are_told(tmp_path):
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    told, _, _ = api.run([str(file), "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")])
    wrong = {int(line.split(":")[1]) for line in told.splitlines() if "error:" in line and "arg-type" in line}
    assert wrong == {7, 8, 10, 11, 13}, told


def test_the_configs_that_a_type_checker_knows_are_those_that_there_are():
    names = [f"{name}/{config}" for name in known_names()[:2] for config in described(name).configs]
    assert {*get_args(ConfigName)} == {*names, *described().configs}
