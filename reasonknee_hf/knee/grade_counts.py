"""How many rows have each grade, by question and attribute: what priors and the weights of rare grades come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS

Counts = dict[int, dict[str, list[int]]]
"""Question id to attribute to the number of rows with each grade, from 0."""


def count_grades(grades: Iterable[tuple[int | None, str, int | None, int]]) -> Counts:
    """Counts grades. What is no grade of a known question is passed over.

    Args:
        grades: Question id, attribute in any spelling, grade, and how often these three come together.

    Example:
        >>> count_grades([(30, "grade", 2, 5), (30, "grade", 0, 1), (30, "grade", 9, 1)])
        {30: {'grade': [1, 0, 5, 0]}}
    """
    counts: Counts = {}
    for question_id, name, grade, times in grades:
        question = None if question_id is None else QUESTIONS.get(question_id)
        attribute = question.attribute(name) if question else None
        if question and attribute and grade is not None and grade in attribute.grades:
            table = counts.setdefault(question.id, {}).setdefault(attribute.name, [0] * len(attribute.grades))
            table[grade] += times
    return counts


def by_category(counts: Counts) -> dict[str, dict[int, int]]:
    """How often each category has each grade, all attributes together; in the order of the categories."""
    found: dict[str, Counter[int]] = {}
    for question_id, attributes in counts.items():
        category = found.setdefault(QUESTIONS[question_id].category, Counter())
        for grades in attributes.values():
            category.update({grade: times for grade, times in enumerate(grades) if times})
    return {name: dict(sorted(found[name].items())) for name in CATEGORIES if name in found}
