"""What one benchmark is to the rooms that score any: how its rows and answers are read, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from reasonknee_hf.bench.inputs import Entry
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.references import References
from reasonknee_hf.dataset.contract import described, imported
from reasonknee_hf.errors import OptionError


class Scorer(Protocol):
    """One benchmark.

    Attributes:
        title: What people call it.
        dataset_id: The Hub id of its published references.
        task_id: Its name in evaluation results.
        tasks: All names that evaluation results have; empty if no framework that the Hub lists runs it.
        references_of: Config and split of the references.
        rules_version: Number of its reading rules, raised whenever a score could change.
        spacing: Voxel size in mm along slice, x, y, for rows that do not say.
        published: Rows of published figures: a label, a figure for each group of the kind `paper`, and the total.
        published_notes: What to know about them.

    Examples:
        >>> from reasonknee_hf.bench.scorer import scorer_of
        >>> scorer_of().title, scorer_of("deeptumorvqa").title
        ('ReasonKnee-Bench', 'DeepTumorVQA 2.0')
    """

    title: str
    dataset_id: str
    task_id: str
    tasks: tuple[str, ...]
    references_of: tuple[str, str]
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


def scorer_of(dataset: str | None = None) -> Scorer:
    """The benchmark of a dataset, by its short name; of the first one that is known by default.

    Raises:
        OptionError: There is no such dataset, or it has no benchmark.
    """
    scorer: Scorer = imported(_place(dataset))
    return scorer


def offered_by(dataset: str | None, name: str) -> Any:
    """What the module of a dataset's benchmark offers under a name, beside its scorer."""
    return imported(f"{_place(dataset).partition(':')[0]}:{name}")


def _place(dataset: str | None) -> str:
    found = described(dataset)
    if found.scorer is None:
        raise OptionError(f"{found.title} has no benchmark.")
    return found.scorer
