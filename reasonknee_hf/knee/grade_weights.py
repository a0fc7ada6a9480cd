"""How often rows come where rare grades are oversampled. Pure functions, for the order of a shuffled epoch.

The rule: among the rows that ask the same question, a grade that `n` rows have, where the most frequent grade of
that attribute has `m`, weighs `(m / n) ** power`, at most `limit`. A row weighs what its rarest grade does, and
at least 1, so no row is lost. The rows of a scan are repeated in proportion to their weights: these are scaled up
so that their sum is whole, and the running sum is cut at whole numbers. So a scan has the same number of rows in
every epoch, a row of weight 2.3 comes two or three times, and which it is changes from epoch to epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.index import RowIndex, kept_beside
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.grade_counts import count_grades
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.records import to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import unlisted_scan

Counts = Mapping[int, Mapping[str, Sequence[int]]]
"""Question id to attribute to the number of rows with each grade, from 0; `grade_counts` makes it."""

POWER = 0.5
LIMIT = 8.0


def grade_weights(
    counts: Counts, *, power: float = POWER, limit: float = LIMIT
) -> dict[int, dict[str, list[float]]]:
    """The weight of every grade, in the form of `counts`; 0 for grades that no row has.

    Args:
        counts: How many rows have each grade.
        power: 0 weighs all grades alike, 1 makes all grades of an attribute equally frequent (up to `limit`).
        limit: The largest weight.

    Raises:
        OptionError: `power` is not within 0 and 1, or `limit` is below 1.
    """
    if not 0 <= power <= 1 or limit < 1:
        raise OptionError(f"power={power} is to be within 0 and 1, and limit={limit} at least 1.")
    return {
        question: {
            name: [_weight(n, max(grades), power, limit) for n in grades]
            for name, grades in attributes.items()
        }
        for question, attributes in counts.items()
    }


def _weight(n: int, most: int, power: float, limit: float) -> float:
    return min((most / n) ** power, limit) if n else 0.0


def row_weight(
    question_id: int | None,
    grades: Iterable[Mapping[str, Any]] | None,
    weights: Mapping[int, Mapping[str, Sequence[float]]],
) -> float:
    """The weight of a row: that of its rarest grade, and 1 where nothing is known.

    Args:
        question_id: As in the row.
        grades: As in the row: `{"lesion", "attribute", "grade"}` each.
        weights: From [`grade_weights`].
    """
    if question_id is None or question_id not in weights:
        return 1.0
    table = weights[question_id]
    known = QUESTIONS[question_id]
    found = [1.0]
    for item in grades or ():
        attribute = known.attribute(item["attribute"])
        if attribute is not None and attribute.name in table and item["grade"] in attribute.grades:
            found.append(table[attribute.name][int(item["grade"])])
    return max(found)


def describe_weights(counts: Counts, *, power: float = POWER, limit: float = LIMIT) -> str:
    """The weights as a table, one line an attribute of a question, for logs and reports."""
    lines = [f"weights of grades: (most / n) ** {power:g}, at most {limit:g}"]
    for question, attributes in sorted(grade_weights(counts, power=power, limit=limit).items()):
        for name, table in attributes.items():
            shown = ", ".join(
                f"{grade}: {weight:.2f} (n={n})"
                for grade, (weight, n) in enumerate(zip(table, counts[question][name], strict=True))
                if n
            )
            lines.append(f"{question:>2} {QUESTIONS[question].lesion}, {name}: {shown}")
    return "\n".join(lines)


logger = logging.getLogger(__name__)


def row_weights(release: Release, path: str, index: RowIndex) -> npt.NDArray[np.float64]:
    """The weight of each row of an annotation file, in the order of the index, by the rule of `knee.grade_weights`.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """

    def weighed() -> bytes:
        logger.info("weighing the rows of %s of %s", path, release.tree.name)
        return _weigh(release, path).tobytes()

    return np.frombuffer(kept_beside().once(f"weights of {index.identity}", weighed, -1), np.float64)


def _weigh(release: Release, path: str) -> npt.NDArray[np.float64]:
    # Rows are told apart by question and grades alone, so a few hundred kinds of rows stand for all.
    kinds: dict[tuple[Any, ...], int] = {}
    rows: list[int] = []
    nobody = unlisted_scan(None)
    for record in iter_records(release.tree.stream(path), name=path):
        row, _ = to_row(record.value, nobody, None, None)
        grades = tuple((item["attribute"], item["grade"]) for item in row["grades"] or ())
        rows.append(kinds.setdefault((row["question_id"], grades), len(kinds)))
    times = np.bincount(rows, minlength=len(kinds)).tolist()
    counts = count_grades(
        (question, name, grade, times[kind])
        for (question, grades), kind in kinds.items()
        for name, grade in grades
    )
    logger.info("%s", describe_weights(counts))
    table = grade_weights(counts)
    of_kind = [
        row_weight(question, [{"attribute": name, "grade": grade} for name, grade in grades], table)
        for question, grades in kinds
    ]
    return np.array(of_kind)[np.array(rows, dtype=np.int64)]
