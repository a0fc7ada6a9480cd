"""The four stages and 42 subtypes of DeepTumorVQA 2.0, as its schema of subtypes and its scorer name them.

Read in the public repository of the benchmark at commit 7c15c50: `subtype_schema.csv` (names, stages, questions of the
benchmark and of the pool) and `metrics.py` (types of answers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

STAGES = ("recognition", "measurement", "visual reasoning", "medical reasoning")
"""In the order of the chain of evidence; `question_type` of the records."""

AnswerType = Literal["numeric", "binary", "categorical"]

_NUMERIC, _BINARY, _NAMED = "numeric", "binary", "categorical"
# Name, type of the answer, questions in the benchmark, questions in the pool that it was drawn from.
_RECOGNITION = (
    ("PDAC existence", _BINARY, 194, 1068),
    ("PNET existence", _BINARY, 195, 1072),
    ("colon lesion existence", _BINARY, 198, 1108),
    ("kidney cyst existence", _BINARY, 202, 1144),
    ("kidney lesion existence", _BINARY, 296, 2098),
    ("kidney tumor existence", _BINARY, 238, 1504),
    ("liver lesion existence", _BINARY, 284, 1972),
    ("pancreatic lesion existence", _BINARY, 212, 1243),
    ("splenomegaly detection", _BINARY, 204, 1172),
)
_MEASUREMENT = (
    ("lesion volume measurement", _NUMERIC, 210, 689),
    ("organ HU measurement", _NUMERIC, 746, 3533),
    ("organ HU ratio", _NUMERIC, 89, 89),
    ("organ volume measurement", _NUMERIC, 852, 4097),
    ("tumor burden percentage", _NUMERIC, 126, 243),
)
_VISUAL = (
    ("adjacent organ", _NAMED, 109, 184),
    ("bilateral kidney asymmetry", _NAMED, 109, 186),
    ("inter-segment comparison", _NAMED, 358, 2417),
    ("kidney volume comparison", _NAMED, 181, 831),
    ("largest lesion attenuation", _NAMED, 183, 841),
    ("largest lesion diameter", _NUMERIC, 146, 516),
    ("largest lesion location", _NAMED, 125, 388),
    ("largest lesion slice", _NUMERIC, 136, 430),
    ("lesion count by location", _NUMERIC, 232, 1281),
    ("lesion counting", _NUMERIC, 523, 3898),
    ("lesion outlier", _BINARY, 101, 113),
    ("liver lesion clustering", _NAMED, 113, 218),
    ("multi-organ lesion burden comparison", _NAMED, 146, 517),
    ("organ aggregation", _NUMERIC, 977, 7982),
    ("organ enlargement", _BINARY, 459, 3329),
    ("tumor organ HU difference", _NUMERIC, 151, 565),
)
_MEDICAL = (
    ("PDAC vs PNET classification", _NAMED, 311, 311),
    ("fatty liver", _NAMED, 99, 99),
    ("hepatic steatosis grading", _NAMED, 53, 53),
    ("lesion type classification", _NAMED, 42, 42),
    ("pancreatic cyst resectability", _BINARY, 144, 144),
    ("pancreatic lesion resectability", _NAMED, 98, 98),
    ("pancreatic steatosis", _BINARY, 45, 45),
    ("pancreatic tumor staging", _NAMED, 201, 1501),
    ("portal hypertension assessment", _BINARY, 44, 44),
    ("pseudocyst determination", _BINARY, 3, 3),
    ("renal mass characterization", _NAMED, 23, 23),
    ("splenomegaly grading", _NAMED, 842, 842),
)


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
    number = 0
    for stage, subtypes in zip(STAGES, (_RECOGNITION, _MEASUREMENT, _VISUAL, _MEDICAL), strict=True):
        for name, answer_type, benchmark, pool in subtypes:
            number += 1
            yield Subtype(number, name, stage, answer_type, benchmark, pool)  # type: ignore[arg-type]


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
