"""The weight of every row where rare grades are oversampled: one pass over the records, kept beside the index."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.index import RowIndex
from reasonknee_hf.dataset.indexing import kept_beside
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.knee.grade_counts import count_grades
from reasonknee_hf.knee.grade_weights import describe_weights, grade_weights, row_weight
from reasonknee_hf.knee.records import to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import unlisted_scan

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
