"""The training section of the README runs as it stands, with a tiny model in the place of the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_model import tiny_model, tiny_processor

pytestmark = pytest.mark.train

README = Path(__file__).parents[2] / "README.md"
SMALLER = {
    "max_steps=1000": "max_steps=2, report_to='none', logging_strategy='no'",
    "max_steps=100,": "max_steps=1, max_completion_length=4, report_to='none',",
    "num_generations=4, per_device_train_batch_size=4": "num_generations=2, per_device_train_batch_size=2",
    "save_steps=200": "save_strategy='no'",
    "size=112": "size=28",
    "num_workers=2": "num_workers=0",
}


def test_the_training_section_runs(tmp_path, monkeypatch, sample_dir) -> None:
    section = README.read_text(encoding="utf-8").split("\n## Training\n")[1].split("\n## ")[0]
    snippets = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(snippets) == 3
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
        assert written in code, f"the README does not say {written} any more"
        code = code.replace(written, run)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["trainer"].state.global_step == 1
    assert names["batch"].references[0].bbox
