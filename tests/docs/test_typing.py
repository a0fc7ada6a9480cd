"""What a type checker says of calls that cannot be right: values of options are types."""

from __future__ import annotations

import pytest

CALLS = """
import reasonknee_hf as rk
from reasonknee_hf.running import run

rk.load_dataset("bench", on_error="skip", equal_steps="drop", source="sample")
rk.load_dataset("bench", on_error="skp")
rk.load_dataset("bench", equal_steps="dropped")
run("model", out="out", backend="openai")
run("model", out="out", backend="vllm")
rk.convert("out", "bench", options=rk.publish.options.ConvertOptions(volumes="embedded"))
"""


def test_values_that_are_none_are_told(tmp_path):
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    told, _, _ = api.run([str(file), "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")])
    wrong = {int(line.split(":")[1]) for line in told.splitlines() if "error:" in line and "arg-type" in line}
    assert wrong == {6, 7, 9, 10}, told
