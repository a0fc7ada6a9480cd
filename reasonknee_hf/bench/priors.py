"""What a model that never looks can reach: always the most frequent grade of the training split.

The prior is taken per question and attribute, because a question tells its own site; a grade that is most
frequent together with another is the lower one. Priors come from training rows, never from the rows that
are scored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.bench.references import References, needed_columns, read_references
from reasonknee_hf.errors import PredictionError
from reasonknee_hf.knee.moaks import QUESTIONS


@dataclass(frozen=True)
class Priors:
    """Counts of grades in the training split.

    Args:
        counts: Question id to attribute to the count of each grade, from 0.
        origin: Where they come from, for reports.
    """

    counts: Mapping[int, Mapping[str, list[int]]]
    origin: str

    def majority(self, question: int, attribute: str) -> int:
        """The most frequent grade, -1 where the training split has none."""
        counts = self.counts.get(question, {}).get(attribute)
        return int(np.argmax(counts)) if counts and any(counts) else -1

    def predict(self, references: References) -> npt.NDArray[np.int64]:
        """The majority grade for each reference grade, -1 where there is none."""
        known: dict[tuple[int, str], int] = {}
        grades = np.full(len(references.truth), -1, np.int64)
        for row, (item, name) in enumerate(zip(references.grade_item, references.grade_name, strict=True)):
            question = references.questions[item]
            assert question is not None  # grades exist only for known questions
            key = question.id, name
            if key not in known:
                known[key] = self.majority(*key)
            grades[row] = known[key]
        return grades

    def save(self, path: str | Path) -> None:
        """Writes the counts as JSON, so that the training split has to be read once only."""
        table = {"origin": self.origin, "counts": {str(q): dict(a) for q, a in sorted(self.counts.items())}}
        Path(path).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def load_priors(path: str | Path) -> Priors:
    """Reads what [`Priors.save`] wrote.

    Raises:
        PredictionError: The file is not such a file.
    """
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        counts = {
            int(question): {
                str(name): [int(count) for count in grades] for name, grades in attributes.items()
            }
            for question, attributes in table["counts"].items()
        }
        return Priors(counts, str(table["origin"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = "make one with `reasonknee bench priors OUT --source ...`"
        raise PredictionError(f"{path}: not a file of priors ({error}); {text}.") from error


def count_grades(rows: Iterable[Mapping[str, Any]], origin: str = "training rows") -> Priors:
    """Counts the grades of training rows, block by block, so that a stream of any length will do."""
    totals: Counter[tuple[int, str, int]] = Counter()
    block: list[Mapping[str, Any]] = []

    def flush() -> None:
        references = read_references(block)
        for item, name, grade in zip(
            references.grade_item, references.grade_name, references.truth, strict=True
        ):
            question = references.questions[item]
            assert question is not None
            totals[question.id, name, int(grade)] += 1
        block.clear()

    for row in needed_columns(rows):
        block.append(row)
        if len(block) == 10_000:
            flush()
    flush()
    counts: dict[int, dict[str, list[int]]] = {}
    for (question_id, name, grade), count in totals.items():
        attribute = QUESTIONS[question_id].attribute(name)
        assert attribute is not None
        counts.setdefault(question_id, {}).setdefault(name, [0] * len(attribute.grades))[grade] = count
    return Priors(counts, origin)
