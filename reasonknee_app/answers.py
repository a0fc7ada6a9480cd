"""What runs answered about the rows of one scan, read and judged as the dataset's benchmark does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from reasonknee_hf.bench import score
from reasonknee_hf.bench.inputs import CONFLICTING
from reasonknee_hf.bench.scorer import scorer_of

Judged = dict[str, dict[str, Any]]
"""Items by id, as `Report.items` gives them, each with its `answer` as text (`None`: there is none)."""


def judged(dataset: str, path: str, rows: Sequence[Mapping[str, Any]]) -> Judged:
    """The items of a run, for rows that ask something.

    Raises:
        PredictionError: The file is no prediction file.
        OptionError: The dataset has no benchmark.
    """
    asked = [row for row in rows if row.get("prompt") and row.get("grades")]
    if not asked:
        return {}
    file = Path(path)
    return _judged(dataset, path, file.stat().st_mtime_ns if file.exists() else 0, json.dumps(asked))


@lru_cache(maxsize=32)
def _judged(dataset: str, path: str, changed: int, rows: str) -> Judged:
    scorer = scorer_of(dataset)
    report = score(path, json.loads(rows), scorer=scorer, rounds=0, conflicts="invalid")
    answers = report.outcome.merged.answers
    return {item["id"]: item | {"answer": _text(answers.get(item["id"]))} for item in report.items()}


def _text(answer: Any) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    return (
        "(answers that differ)" if answer is CONFLICTING else json.dumps(answer, ensure_ascii=False, indent=1)
    )
