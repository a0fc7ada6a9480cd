"""The guide to training runs as it stands, with a tiny model in the place of the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_model import tiny_model, tiny_processor

pytestmark = pytest.mark.train

PAGE = Path(__file__).parents[2] / "docs/guides/train.md"
SMALLER = {
    "max_steps=1000": "max_steps=2, report_to='none', logging_strategy='no'",
    "max_steps=100,": "max_steps=1, max_completion_length=4, report_to='none',",
    "num_generations=4": "num_generations=2",
    "per_device_train_batch_size=4": "per_device_train_batch_size=2",
    "save_steps=200": "save_strategy='no'",
    "size=112": "size=28",
    "num_workers=2": "num_workers=0",
}


def test_the_guide_runs(tmp_path, monkeypatch, sample_dir) -> None:
    text = re.sub(r"<!-- shown only.*?-->\n```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    snippets = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(snippets) == 4
    processor = tiny_processor()
    processor.save_pretrained(tmp_path / "model")
    tiny_model(processor).save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(snippets)
    for written, run in {
        **SMALLER,
        '"Qwen/Qwen2.5-VL-3B-Instruct"': repr(str(tmp_path / "model")),
        'source="sample"': f"source={str(sample_dir)!r}",
    }.items():
        assert written in code, f"the guide does not say {written} any more"
        code = code.replace(written, run)
    names: dict = {}
    exec(compile(code, "train.md", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert names["grpo"].state.global_step == 1
    assert names["batch"].references[0].bbox
