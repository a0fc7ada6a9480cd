"""Scoring of answers about volumes: prediction files, metrics, intervals, comparison, reports and plots.

What a benchmark asks and how its answers are read is said by a [`Scorer`][reasonknee_hf.bench.scorer.Scorer],
that of the first dataset that is known where none is given.

    from reasonknee_hf.bench import score

    report = score("answers.jsonl", reasonknee_hf.load_dataset("bench", split="test", streaming=True))
    print(report.text(compare_paper=True))
"""

from typing import Any

from reasonknee_hf.bench.box_geometry import BoxConvention, iou
from reasonknee_hf.bench.priors import Priors, load_priors
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.scorer import offered_by
from reasonknee_hf.bench.scoring import score
from reasonknee_hf.dataset.contract import imported

_OF_THE_DATASET = ("count_grades", "read_answer", "read_references")

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
    "run",
    "score",
]


def __getattr__(name: str) -> Any:
    """What the benchmark of the dataset that is meant where none is named does in its own way; and `run`.

    `run` makes the answers that are scored here. It stands rooms above, for it needs those that draw volumes.
    """
    if name == "run":
        return imported("reasonknee_hf.running.runner:run")
    if name not in _OF_THE_DATASET:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return offered_by(None, name)
