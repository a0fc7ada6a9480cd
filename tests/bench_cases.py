"""Rows and answers for the benchmark's tests, made from the table of questions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator

from reasonknee_hf.knee.moaks import QUESTIONS

ALL = range(1, 63)


def rows(
    scans: int = 4, questions: Iterable[int] = ALL, seed: int = 0, patients: int | None = None
) -> Iterator[dict]:
    """Rows with the columns of the `bench` config (volumes left out), mostly grade 0 as in the release."""
    chance = random.Random(seed)
    questions = list(questions)
    for scan in range(scans):
        patient = f"{9_000_001 + scan % (patients or scans)}"
        scan_id = f"{patient}_00M_20041222_{10_300_000 + scan}_2"
        for question_id in questions:
            question = QUESTIONS[question_id]
            names = [attribute.name for attribute in question.attributes]
            corner = [chance.randrange(10, 100) for _ in range(3)]
            size = [chance.randrange(1, 40) for _ in range(3)]
            yield {
                "id": f"{scan_id}_{question_id}",
                "scan_id": scan_id,
                "patient_id": patient,
                "question_id": question_id,
                "category": question.category,
                "structure": question.structure,
                "subregion": question.subregion,
                "prompt": f"Grade it: {json.dumps(question.answer(dict.fromkeys(names, 0)))}",
                "bbox": [
                    end for low, length in zip(corner, size, strict=True) for end in (low, low + length)
                ],
                "grades": [
                    {
                        "lesion": question.lesion,
                        "attribute": attribute.name,
                        "grade": chance.choice([0, 0, 0, *attribute.grades]),
                    }
                    for attribute in question.attributes
                ],
            }


def truth(row: dict) -> dict[str, int]:
    return {grade["attribute"]: grade["grade"] for grade in row["grades"]}


def answer(row: dict, *, grades: dict[str, int] | None = None, box: list | None = None) -> str:
    """The text of a right answer, or of one with other grades or another box."""
    content = QUESTIONS[row["question_id"]].answer(truth(row) if grades is None else grades)
    return json.dumps({"bounding_box": row["bbox"] if box is None else box} | content)


def noisy(references: list[dict], seed: int = 1) -> dict[str, str]:
    """Answers of a middling model: some right, some wrong, some misplaced, some unreadable, some missing."""
    chance = random.Random(seed)
    answers = {}
    for row in references:
        luck = chance.random()
        question = QUESTIONS[row["question_id"]]
        wrong = {a.name: chance.choice(a.grades) for a in question.attributes}
        if luck < 0.05:
            continue
        if luck < 0.1:
            answers[row["id"]] = "I cannot tell."
            continue
        grades = truth(row) if luck < 0.6 else wrong
        shift = chance.choice([0, 2, 10, 60])
        box = [value + shift for value in row["bbox"]]
        answers[row["id"]] = answer(row, grades=grades, box=box)
    return answers
