"""Runs a model over a benchmark: from a name to a file of answers that can be scored.

    from reasonknee_hf.running import run

    run("Qwen/Qwen2.5-VL-3B-Instruct", out="runs/qwen", setting="zero_shot")

`presets` says how families want slices, `backends` ask a model, `runner` keeps what was answered.
"""

from __future__ import annotations

from reasonknee_hf.running.presets import PRESETS, preset_of
from reasonknee_hf.running.runner import Finished, run

__all__ = ["PRESETS", "Finished", "preset_of", "run"]
