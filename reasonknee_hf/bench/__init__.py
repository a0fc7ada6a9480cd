"""Scoring of answers about volumes: prediction files, metrics, intervals, comparison, reports and plots.

What a benchmark asks and how its answers are read is said by a [`Scorer`][reasonknee_hf.bench.scorer.Scorer],
ReasonKnee-Bench where none is given.

    from reasonknee_hf.bench import score

    report = score("answers.jsonl", reasonknee_hf.load_dataset("bench", split="test", streaming=True))
    print(report.text(compare_paper=True))
"""

from importlib import import_module
from typing import Any

from reasonknee_hf.bench.box_geometry import BoxConvention, iou
from reasonknee_hf.bench.priors import Priors, load_priors
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.scoring import score

_OF_THE_KNEE = {
    "count_grades": "knee_scorer:train_priors",
    "read_answer": "answer_reading:read_answer",
    "read_references": "reference_reading:read_references",
}

__all__ = [
    "BoxConvention",
    "Priors",
    "Reading",
    "Report",
    "count_grades",
    "iou",
    "load_priors",
    "read_answer",
    "read_references",
    "score",
]


def __getattr__(name: str) -> Any:
    """What ReasonKnee-Bench does in its own way, under the names it had here; imported when it is asked for."""
    if name not in _OF_THE_KNEE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _OF_THE_KNEE[name].partition(":")
    return getattr(import_module(f"reasonknee_hf.knee.scoring.{module}"), attribute)
