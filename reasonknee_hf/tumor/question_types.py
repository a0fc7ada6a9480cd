"""The four stages and 42 subtypes of DeepTumorVQA 2.0, as its schema of subtypes and its scorer name them.

`subtypes.csv` tells each: as read in the public repository of the benchmark at commit 7c15c50, `subtype_schema.csv`
(names, stages, questions of the benchmark and of the pool) and `metrics.py` (types of answers).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

STAGES = ("recognition", "measurement", "visual reasoning", "medical reasoning")
"""In the order of the chain of evidence; `question_type` of the records."""

AnswerType = Literal["numeric", "binary", "categorical"]


@dataclass(frozen=True)
class Subtype:
    """One of the 42.

    Args:
        id: 1 to 42, in the order of the published schema.
        name: As published; `question_subtype` of the records.
        stage: One of [`STAGES`].
        answer_type: What a free answer is.
        benchmark: How many questions the benchmark has.
        pool: How many the pool has that the benchmark was drawn from.
    """

    id: int
    name: str
    stage: str
    answer_type: AnswerType
    benchmark: int
    pool: int

    @property
    def category(self) -> str:
        """Questions are grouped by their stage."""
        return self.stage

    @property
    def structure(self) -> str:
        """The subtype: which organ is asked about is told by each record."""
        return self.name


def _subtypes() -> Iterator[Subtype]:
    table = files(__package__).joinpath("subtypes.csv").read_text("utf-8")
    for number, (name, stage, kind, benchmark, pool) in enumerate(csv.reader(table.splitlines()[1:]), 1):
        yield Subtype(number, name, stage, kind, int(benchmark), int(pool))  # type: ignore[arg-type]


SUBTYPES: dict[str, Subtype] = {one.name.casefold(): one for one in _subtypes()}
"""By name in small letters."""

QUESTIONS: dict[int, Subtype] = {one.id: one for one in SUBTYPES.values()}


def subtype_of(name: object) -> Subtype | None:
    """The subtype that a record names, in any case; `None` for an unknown one."""
    return SUBTYPES.get(name.strip().casefold()) if isinstance(name, str) else None


def subtype_number(name: str) -> int | None:
    """The number of the subtype that a record names; `None` for an unknown one."""
    found = subtype_of(name)
    return None if found is None else found.id
