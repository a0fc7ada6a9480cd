"""What models are trained to say is what the scorer reads back to full marks."""

from __future__ import annotations

import pytest

from reasonknee_hf.bench import read_answer, score
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.training.targets import TARGETS, target_text

BOX_TARGETS = ("box_grades", "think_box")


def row_of(number: int, grade: int | None = None, **changes: object) -> dict[str, object]:
    """A row of a question, with its highest or the given grades."""
    question = QUESTIONS[number]
    grades = [
        {
            "lesion": question.lesion,
            "attribute": a.name,
            "grade": a.high if grade is None else min(grade, a.high),
        }
        for a in question.attributes
    ]
    return {
        "id": f"9000001_00M_20041222_10300001_2_{number}",
        "question_id": number,
        "bbox": [3, 9, 11, 40, 7, 12],
        "cot": 'Compared {"grade": 3} with grade 2 next to it: "looks fine", he said.',
        "grades": grades,
        **changes,
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("grade", [0, 1, None])
def test_every_question_is_read_back(target: str, grade: int | None) -> None:
    for number, question in QUESTIONS.items():
        row = row_of(number, grade)
        reading = read_answer(target_text(row, target), question)
        assert reading.valid, (number, reading)
        assert reading.grades == {item["attribute"]: item["grade"] for item in row["grades"]}
        assert reading.box == ((3, 9, 11, 40, 7, 12) if target in BOX_TARGETS else None)


@pytest.mark.parametrize("target", ["grades", "box_grades", "reasoning_grades"])
def test_json_targets_need_no_repair(target: str) -> None:
    for number, question in QUESTIONS.items():
        assert read_answer(target_text(row_of(number), target), question, strict=True).valid


@pytest.mark.parametrize("target", TARGETS)
def test_targets_of_all_62_prompts_score_full_marks(target: str, rows: list[dict], make_stream) -> None:
    scored = [row for row in rows if row["grades"] and row["question_id"] and row["bbox"] and row["cot"]]
    assert {row["question_id"] for row in scored} == set(range(1, 63))
    report = score({row["id"]: target_text(row, target) for row in scored}, scored, rounds=0)
    assert all(report.outcome.right)
    assert not any(report.outcome.reasons)
    if target in BOX_TARGETS:
        assert (report.outcome.iou == 1).all()


def test_a_box_in_other_coordinates_is_said_as_given() -> None:
    text = target_text(row_of(16), "box_grades", box=[0, 7, 1, 2, 3, 4])
    assert read_answer(text, QUESTIONS[16]).box == (0, 7, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("grades", {"question_id": None}, "none of the 69 questions"),
        ("grades", {"grades": None}, "no grade for size, depth"),
        ("grades", {"grades": [{"lesion": "x", "attribute": "size", "grade": 1}]}, "no grade for depth"),
        ("box_grades", {"bbox": None}, "no box"),
        ("reasoning_grades", {"cot": None}, "cot is empty"),
        ("think", {"cot": ""}, "cot is empty"),
    ],
)
def test_what_a_row_lacks_is_named(target: str, changes: dict, said: str) -> None:
    with pytest.raises(RecordError, match=said) as error:
        target_text(row_of(16, **changes), target)
    assert "9000001_00M_20041222_10300001_2_16" in str(error.value)


def test_bench_rows_have_no_reasoning_to_train_on() -> None:
    row = row_of(16)
    del row["cot"]
    with pytest.raises(RecordError, match="train on full"):
        target_text(row, "reasoning_grades")


def test_an_unknown_target_lists_the_valid_ones() -> None:
    with pytest.raises(OptionError, match="box_grades, reasoning_grades"):
        target_text(row_of(1), "boxes")  # type: ignore[arg-type]
