"""Names of configs, for type checkers."""

from __future__ import annotations

from typing import Literal, NewType

ConfigName = Literal[
    "full",
    "high_fidelity",
    "bench",
    "scans",
    "reasonknee/full",
    "reasonknee/high_fidelity",
    "reasonknee/bench",
    "reasonknee/scans",
    "deeptumorvqa/benchmark",
    "deeptumorvqa/train",
    "deeptumorvqa/agent_sft",
    "deeptumorvqa/scans",
]

OwnConfig = NewType("OwnConfig", str)
"""`"dataset/config"` of a dataset of one's own, which no type checker can know: `OwnConfig("mine/questions")`."""
