"""What a dataset says to training: what is asked, what should be answered, and how an answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.dataset.contract import described, imported
from reasonknee_hf.errors import OptionError

Coordinates = Literal["voxels", "view"]
RegionAs = Literal["text", "crop", "both"]


@dataclass(frozen=True)
class Lessons:
    """The words of one dataset.

    Args:
        settings: How a question can be asked.
        targets: What can be answered.
        box_targets: Those of them that hold a box, so that the question must ask for one.
        user_text: The text of the user about a row.
        target_text: The text that a model should answer to it.
        region_of: The box of a row in the coordinates of a view or in voxels.
        read: What an answer to the question of a number says; its reason is set where it cannot be read.
        nearness: How near a grade comes to the true one, from 0 to 1: takes the number of the question, the attribute,
            what was said (or `None`) and the truth.
        reward_columns: Columns of rows, beside those of every dataset, that its rewards need.

    Examples:
        >>> from reasonknee_hf.prompting.lessons import lessons_of
        >>> lessons_of("deeptumorvqa").targets
        ('answer', 'option', 'think', 'think_option')
    """

    settings: tuple[str, ...]
    targets: tuple[str, ...]
    box_targets: tuple[str, ...]
    user_text: Callable[..., str]
    target_text: Callable[..., str]
    region_of: Callable[..., list[int]]
    read: Callable[[str, int | None], Reading]
    nearness: Callable[[int, str, int | None, int], float]
    reward_columns: tuple[str, ...] = ()


def lessons_of(dataset: str | None) -> Lessons:
    """The words of a dataset, by its short name; of the first one that is known by default.

    Raises:
        OptionError: There is no such dataset, or nobody wrote what it says to training.
    """
    found = described(dataset)
    if found.lessons is None:
        raise OptionError(f"nothing says what models are asked about {found.title}.")
    lessons: Lessons = imported(found.lessons)
    return lessons


def check_choice(what: str, value: object, valid: Sequence[str]) -> None:
    """Refuses a value that is none of the valid ones."""
    if value not in valid:
        raise OptionError(f"There is no {what} {value!r}. Valid: {', '.join(valid)}.")


def name_of(row: Mapping[str, Any]) -> str:
    """What to call a row in errors."""
    return f"Row {row.get('id') or row.get('scan_id') or 'without id'}"
