"""What a model that never looks can reach: always the most frequent grade of the training split.

The prior is taken per question and attribute, because a question tells its own site; a grade that is most
frequent together with another is the lower one. Priors come from training rows, never from the rows that
are scored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reasonknee_hf.bench.references import References
from reasonknee_hf.errors import PredictionError


@dataclass(frozen=True)
class Priors:
    """Counts of grades in the training split.

    Args:
        counts: Question id to attribute to the count of each grade, from 0.
        origin: Where they come from, for reports.

    Examples:
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> priors = rk.bench.count_grades(rows)
        >>> priors.origin
        'training rows'
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

    Examples:
        >>> from tempfile import mkdtemp
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> priors = rk.bench.count_grades(rows)
        >>> path = mkdtemp() + "/priors.json"
        >>> priors.save(path)
        >>> rk.bench.load_priors(path).origin
        'training rows'
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
