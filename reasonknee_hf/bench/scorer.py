"""What one benchmark is to the rooms that score any: how its rows and answers are read, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from reasonknee_hf.bench.inputs import Entry
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.references import References


class Scorer(Protocol):
    """One benchmark.

    Attributes:
        title: What people call it.
        dataset_id: The Hub id of its published references.
        task_id: Its name in evaluation results.
        rules_version: Number of its reading rules, raised whenever a score could change.
        spacing: Voxel size in mm along slice, x, y, for rows that do not say.
        published: Rows of published figures: a label, a figure for each group of the kind `paper`, and the total.
        published_notes: What to know about them.
    """

    title: str
    dataset_id: str
    task_id: str
    rules_version: int
    spacing: tuple[float, float, float]
    published: tuple[tuple[str, tuple[float, ...], float], ...]
    published_notes: tuple[str, ...]

    def references(self, rows: Iterable[Mapping[str, Any]]) -> References:
        """Rows of the benchmark as columns."""

    def read(self, answer: Any, question: Any, *, strict: bool = False, free_digits: bool = False) -> Reading:
        """What an answer says."""

    def entry(self, row: Mapping[str, Any]) -> Entry | None:
        """A row of a prediction file that names its item in the benchmark's own way; `None` if it does not."""


def default_scorer() -> Scorer:
    """ReasonKnee-Bench."""
    from reasonknee_hf.knee.scoring.knee_scorer import KNEE_SCORER

    return KNEE_SCORER
