"""Which scans and rows of a release go into a derived version."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from datasets.fingerprint import Hasher

from reasonknee_hf.dataset import selection as dataset
from reasonknee_hf.dataset.contract import Description
from reasonknee_hf.errors import OptionError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Selection(dataset.Selection):
    """A choice of scans and rows. What is not given does not restrict. See [`dataset.selection.Selection`].

    Args:
        splits: Splits to write.
        grades: Keep rows with one of these grades: numbers for any attribute, or attribute → numbers, e.g.
            `{"size": (2, 3)}`.
        where: A function of a row that says whether to keep it. For executors of other processes it must be a
            module-level function.
        limit: Rows a split (scans a split where the config has no questions), the first ones that the rest keeps.
    """

    splits: Sequence[str] | str | None = None
    grades: Sequence[int] | int | Mapping[str, Collection[int]] | None = None
    where: Callable[[Row], bool] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.grades, Mapping):
            per_attribute = {name: _grade_numbers(wanted) for name, wanted in self.grades.items()}
            object.__setattr__(self, "grades", per_attribute)
        elif self.grades is not None:
            object.__setattr__(self, "grades", _grade_numbers(self.grades))
        if self.limit is not None:
            object.__setattr__(self, "limit", whole_number("limit", self.limit))
            if self.limit < 1:
                raise OptionError(f"limit={self.limit} keeps nothing; give a number of rows of at least 1.")
        if self.where is not None and not callable(self.where):
            raise OptionError(f"where={self.where!r} is no function of a row.")
        # Told once, here: a filter may count in its module, and its name must not change on the way.
        object.__setattr__(self, "_filter", None if self.where is None else filter_name(self.where))

    def check_questions(self, of: Description) -> None:
        """Refuses questions, categories, structures and attributes that a dataset does not ask.

        Raises:
            OptionError: One is not among them; the message lists those that are.
        """
        asked = of.questions.values()
        dataset.check_known("question", self.questions, [*of.questions])
        dataset.check_known("category", self.categories, of.categories)
        dataset.check_known("structure", self.structures, [*dict.fromkeys(q.structure for q in asked)])
        if isinstance(self.grades, Mapping):
            attributes = dict.fromkeys(a.name for q in asked for a in q.attributes)
            dataset.check_known("attribute", tuple(self.grades), [*attributes])

    def keeps_row(self, row: Row) -> bool:
        """Whether a row of a scan that may contribute, its category given by name, is chosen.

        Raises:
            OptionError: The function given as `where` failed; the message names the row.
        """
        columns: dict[str, Any] = {
            "question_id": self.questions,
            "category": self.categories,
            "structure": self.structures,
        }
        for column, wanted in columns.items():
            if wanted is not None and row[column] not in wanted:
                return False
        if self.grades is not None and not _has_grade(row["grades"] or (), self.grades):
            return False
        if self.where is None:
            return True
        try:
            return bool(self.where(row))
        except Exception as error:
            raise OptionError(
                f"The function given as where= failed for row {row['id']}: {type(error).__name__}: {error}. "
                "A row is a mapping of columns; some may be null."
            ) from error

    @property
    def by_question(self) -> bool:
        """Whether rows are chosen by more than the scan they belong to."""
        chosen = (self.questions, self.categories, self.structures, self.grades, self.where)
        return any(value is not None for value in chosen)

    def describe(self) -> dict[str, Any]:
        """The restrictions as plain JSON values; a Python filter by its name and a hash of its code."""
        told: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            told[field.name] = vars(self)["_filter"] if field.name == "where" else value
        return dict(json.loads(json.dumps(told)))


def _has_grade(grades: Sequence[Mapping[str, Any]], wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return any(one["grade"] in wanted.get(one["attribute"], ()) for one in grades)
    return any(one["grade"] in wanted for one in grades)


def whole_number(what: str, value: Any) -> int:
    """A number of any integer type as `int`.

    Raises:
        OptionError: It is not a whole number.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise OptionError(f"{what}={value!r} is not a whole number.")


def _grade_numbers(given: Any) -> tuple[int, ...]:
    many = isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) != 0
    return tuple(sorted({whole_number("grades", one) for one in (given if many else (given,))}))


def filter_name(function: Callable[..., Any]) -> str:
    """Module, name, and a hash of the module's text, of bound values, and of the code where no module has it."""
    named = getattr(function, "func", function)  # what is inside a `functools.partial`
    named = named if hasattr(named, "__qualname__") else type(named)
    # The hasher takes a function of a module by its name alone, so what stands in its file is told beside it.
    try:
        text = sys.modules[named.__module__].__loader__.get_source(named.__module__)  # type: ignore[union-attr]
    except (KeyError, AttributeError, ImportError):
        text = None
    return f"{named.__module__}.{named.__qualname__}#{Hasher.hash([function, text])}"
