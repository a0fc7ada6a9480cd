"""From published records to rows."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import grades_dict, published_object

from reasonknee_hf.knee.description import row_features
from reasonknee_hf.knee.moaks import QUESTIONS, Question
from reasonknee_hf.knee.records import (
    Problem,
    _usual_diagnosis,
    scan_columns,
    to_row,
)
from reasonknee_hf.knee.scans import Scan

SCAN = Scan(
    patient_id="9000001",
    visit="00M",
    study="20041222",
    series="10300001",
    knee_side="left",
    image_filepath="../data/images/9000001/00M/20041222_10300001_2.nii.gz",
    label_filepath="../data/masks/knee_003.nii.gz",
    split="train",
)
SCAN_ID = "9000001_00M_20041222_10300001_2"
LESION = "tibia medial anterior cartilage lesion"
GRADES = [
    {"lesion": LESION, "attribute": "size", "grade": 2},
    {"lesion": LESION, "attribute": "depth", "grade": 1},
]


def prompt_for(question: Question) -> str:
    grades = {attribute.name: 0 for attribute in question.attributes}
    return f"Grade it and answer like this: {json.dumps(question.answer(grades))}"


def record(**changes: Any) -> dict[str, Any]:
    """A record of question 24 as the release has them."""
    return {
        "image": "/data/images/9000001/00M/20041222_10300001_2.nii.gz",
        "prompt": prompt_for(QUESTIONS[24]),
        "answer": "The surface is uneven. Final diagnosis: size 2, depth 1",
        "final_diagnosis": {
            "bounding_box": [10, 20, 100, 200, 110, 210],
            "final_diagnosis": {"tibia_medial_anterior_cartilage_lesion": {"size": 2, "depth": 1}},
        },
    } | changes


def row_of(**changes: Any) -> dict[str, Any]:
    row, problems = to_row(record(**changes), SCAN, "image.nii.gz", "mask.nii.gz")
    assert problems == []
    return row


def problems_of(**changes: Any) -> tuple[dict[str, Any], list[Problem]]:
    return to_row(record(**changes), SCAN, "image.nii.gz", None)


def test_published_record() -> None:
    row = row_of()
    assert row == {
        "id": f"{SCAN_ID}_24",
        "scan_id": SCAN_ID,
        "patient_id": "9000001",
        "visit": "00M",
        "study": "20041222",
        "series": "10300001",
        "knee_side": "left",
        "image": {"bytes": None, "path": "image.nii.gz"},
        "mask": {"bytes": None, "path": "mask.nii.gz"},
        "question_id": 24,
        "category": "Cartilage",
        "structure": "tibia",
        "subregion": "medial anterior",
        "prompt": record()["prompt"],
        "bbox": [10, 20, 100, 200, 110, 210],
        "cot": "The surface is uneven.",
        "answer": record()["answer"],
        "grades": GRADES,
        "final_diagnosis": json.dumps(record()["final_diagnosis"]),
    }
    assert list(row) == list(row_features("full"))
    assert list(scan_columns(SCAN, "i", None)) == list(row_features("scans"))
    assert scan_columns(SCAN, None, None)["image"] is None


@pytest.mark.parametrize(
    "diagnosis",
    [
        {"final_diagnosis": {"tibia_medial_anterior_cartilage_lesion": {"size": 2, "depth": 1}}},
        {"tibia_medial_anterior_cartilage_lesion": {"size": 2, "depth": 1}},
        {"bounding_box": [1, 2, 3, 4, 5, 6], LESION: {"size": 2, "depth": 1}},
        {"MOAKS_scores": {LESION: {"Size of lesion": 2, "Depth of lesion": 1}}},
        {"final_diagnosis": {"MOAKS_scores": {LESION.upper(): {"SIZE": 2, "Depth_of_lesion": 1}}}},
        json.dumps({LESION: {"size": 2, "depth": 1}}),
        {"final_diagnosis": json.dumps({"bbox": [1, 2, 3, 4, 5, 6], LESION: {"size": 2, "depth": 1}})},
    ],
)
def test_grades_from_every_shape(diagnosis: Any) -> None:
    row = row_of(final_diagnosis=diagnosis)
    assert row["grades"] == GRADES
    assert grades_dict(row) == {LESION: {"size": 2, "depth": 1}}
    assert published_object(row) == diagnosis


@pytest.mark.parametrize("number", QUESTIONS)
@pytest.mark.parametrize("style", ["prompt", "release"])
def test_every_question_answered_with_its_largest_grades(number: int, style: str) -> None:
    question = QUESTIONS[number]
    grades = {attribute.name: attribute.high for attribute in question.attributes}
    answer = (
        question.answer(grades) if style == "prompt" else {"final_diagnosis": {question.release_key: grades}}
    )
    row = row_of(prompt=prompt_for(question), final_diagnosis=answer)
    assert row["question_id"] == number
    assert (row["category"], row["structure"], row["subregion"]) == (
        question.category,
        question.structure,
        question.subregion,
    )
    assert grades_dict(row) == {question.lesion: grades}
    for attribute in question.attributes:
        over = grades | {attribute.name: attribute.high + 1}
        row, (problem,) = problems_of(prompt=prompt_for(question), final_diagnosis=question.answer(over))
        assert row["grades"] is None
        assert problem.column == "grades"
        assert f"{attribute.name} of {question.lesion!r} is {attribute.high + 1}, outside" in problem.text


@pytest.mark.parametrize("grade", ["2", 2.0, True, None, [2], -1, 4, {"value": 2}])
def test_grades_that_do_not_fit_are_null_and_named(grade: Any) -> None:
    diagnosis = {LESION: {"size": grade, "depth": 1}}
    row, (problem,) = problems_of(final_diagnosis=diagnosis)
    assert row["grades"] is None
    assert problem.column == "grades"
    assert f"size of {LESION!r} is {json.dumps(grade)}" in str(problem)
    assert published_object(row) == diagnosis
    assert grades_dict(row) is None


@pytest.mark.parametrize(
    ("diagnosis", "text"),
    [
        (5, "5 in final_diagnosis instead of an object"),
        ("no JSON", '"no JSON" in final_diagnosis instead of an object'),
        ([1], r"[1] in final_diagnosis"),
        ({LESION: 2}, "a single value for"),
        ({"ACL": {"Complete Tear": 0}}, "'ACL' is graded, but the prompt asks for 'tibia medial anterior"),
        ({"x": "y" * 200}, "a single value for 'x'"),
        ({LESION: {"size": 1, "Size of lesion": 2}}, "is graded twice, under different keys"),
        ({LESION: {"size": 1}, LESION.upper(): {"size": 1}}, "is graded twice"),
        ({"half \ud800": {"size": 1}}, "half of a surrogate pair"),
        ({LESION: {"half \ud800": 1}}, "half of a surrogate pair"),
    ],
)
def test_diagnoses_that_do_not_fit_are_named(diagnosis: Any, text: str) -> None:
    row, (problem,) = problems_of(final_diagnosis=diagnosis)
    assert row["grades"] is None
    assert text in problem.text
    assert published_object(row) == diagnosis


def test_a_lesion_key_that_the_table_does_not_know_keeps_its_name() -> None:
    row = row_of(final_diagnosis={"tibia_med_ant_cartilage": {"size": 3, "new_measure": 1}})
    assert grades_dict(row) == {"tibia med ant cartilage": {"size": 3, "new_measure": 1}}
    _, (problem,) = problems_of(final_diagnosis={"tibia_med_ant_cartilage": {"new_measure": 9}})
    assert "new_measure of 'tibia med ant cartilage' is 9, outside 0-3" in problem.text


@pytest.mark.parametrize(
    ("diagnosis", "grades"),
    [(None, None), ({}, []), ([], []), ({"final_diagnosis": {}}, []), ({LESION: {}}, [])],
)
def test_null_empty_and_missing_are_told_apart(diagnosis: Any, grades: Any) -> None:
    row = row_of(final_diagnosis=diagnosis)
    assert row["grades"] == grades
    assert row["final_diagnosis"] == json.dumps(diagnosis)
    assert published_object(row) == diagnosis


def test_a_record_without_a_diagnosis() -> None:
    bare = record()
    del bare["final_diagnosis"], bare["answer"]
    row, problems = to_row(bare, SCAN, "i", None)
    assert problems == []
    assert [row[c] for c in ("final_diagnosis", "grades", "bbox", "answer", "cot", "mask")] == [None] * 6
    assert published_object(row) is None


# --- boxes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "outer", "box"),
    [
        ([1, 2, 3, 4, 5, 6], [7, 8, 7, 8, 7, 8], [1, 2, 3, 4, 5, 6]),
        (None, [7, 8, 7, 8, 7, 8], [7, 8, 7, 8, 7, 8]),
        (None, None, None),
        ([], None, None),
        ([], [7, 8, 7, 8, 7, 8], [7, 8, 7, 8, 7, 8]),
        ([5, 5, 0, 0, 7, 7], None, [5, 5, 0, 0, 7, 7]),
        ([1.0, 2.0, 3, 4, 5, 6], None, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_boxes(inner: Any, outer: Any, box: Any) -> None:
    diagnosis = {"bounding_box": inner, LESION: {"size": 2, "depth": 1}}
    for key in ("bounding_box", "bbox", "Bounding Box"):
        row = row_of(final_diagnosis=diagnosis, **{key: outer})
        assert row["bbox"] == box
        assert all(type(number) is int for number in row["bbox"] or [])


@pytest.mark.parametrize(
    ("box", "text"),
    [
        ([2, 1, 3, 4, 5, 6], "minimum, 2, above its maximum, 1"),
        ([1, 2, 3, 4, 6, 5], "minimum, 6, above its maximum, 5"),
        ([1, 2, 3, 4, 5], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, 6, 7], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, 6.5], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, "6"], "instead of six whole numbers"),
        ([True, 2, 3, 4, 5, 6], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, 2**31], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, math.nan], "instead of six whole numbers"),
        ([1, 2, 3, 4, 5, math.inf], "instead of six whole numbers"),
        ([[1, 2], [3, 4], [5, 6]], "instead of six whole numbers"),
        ({"x": 1}, "instead of six whole numbers"),
        ("1,2,3,4,5,6", "instead of six whole numbers"),
    ],
)
def test_boxes_that_do_not_fit_are_null_and_named(box: Any, text: str) -> None:
    good = {LESION: {"size": 2, "depth": 1}}
    for changes in (
        {"final_diagnosis": {"bounding_box": box, **good}},
        {"bbox": box, "final_diagnosis": good},
    ):
        row, (problem,) = problems_of(**changes)
        assert row["bbox"] is None
        assert row["grades"] == GRADES
        assert problem.column == "bbox"
        assert text in problem.text


def test_a_bad_inner_box_is_not_replaced_by_the_outer_one() -> None:
    row, (problem,) = problems_of(bbox=[1, 2, 3, 4, 5, 6], final_diagnosis={"bounding_box": [9]})
    assert row["bbox"] is None
    assert problem.column == "bbox"


def test_box_and_grades_are_both_named() -> None:
    _, problems = problems_of(final_diagnosis={"bounding_box": [9], "final_diagnosis": 7})
    assert [problem.column for problem in problems] == ["bbox", "grades"]


# --- texts and ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "published", "cot"),
    [
        ("Because. Final diagnosis: 2", None, "Because."),
        ("A Final diagnosis: is near.\n Final diagnosis:2", None, "A Final diagnosis: is near."),
        ("Because. Final diagnosis: 2", "Published.", "Published."),
        ("Final diagnosis: 2", None, ""),
        ("no marker", None, None),
        (None, None, None),
        (None, "Published.", "Published."),
    ],
)
def test_reasoning(answer: Any, published: Any, cot: Any) -> None:
    row = row_of(answer=answer, cot=published)
    assert (row["answer"], row["cot"]) == (answer, cot)


@pytest.mark.parametrize("column", ["prompt", "answer", "cot"])
@pytest.mark.parametrize("value", [5, {"a": 1}, ["x"], True, "half \ud800"])
def test_texts_that_are_none_are_null_and_named(column: str, value: Any) -> None:
    row, (problem,) = problems_of(**{column: value})
    assert row[column] is None
    assert problem.column == column


def test_unknown_prompts_have_no_question_but_an_id_of_their_own() -> None:
    first, second, again = (row_of(prompt=text) for text in ("How are you?", "And now?", "How are you?"))
    assert [first[c] for c in ("question_id", "category", "structure", "subregion")] == [None] * 4
    assert first["id"] == again["id"] != second["id"]
    assert first["id"].startswith(f"{SCAN_ID}_x")
    assert first["grades"] == GRADES  # the lesion key tells what is graded
    row = row_of(prompt="How are you?", final_diagnosis={"mood": {"level": 100}, "other": 1})
    assert grades_dict(row) == {"mood": {"level": 100}, "other": {"grade": 1}}


def test_a_record_without_a_prompt() -> None:
    bare = record()
    del bare["prompt"]
    row, problems = to_row(bare, SCAN, "i", "m")
    assert [problem.column for problem in problems] == ["prompt"]
    assert row["question_id"] is None


@pytest.mark.parametrize("number", [58, 59])
def test_the_cut_prompts_are_known(number: int) -> None:
    question = QUESTIONS[number]
    prompt = (
        "Is the root torn? Provide your reasoning and end_slice, x_min, x_max, y_min, y_max], "
        f'"{question.prompt_key}": {{"presence": (0 | 1)}}}}'
    )
    row = row_of(prompt=prompt, final_diagnosis={question.release_key: {"presence": 1}})
    assert row["id"] == f"{SCAN_ID}_{number}"
    assert grades_dict(row) == {question.lesion: {"presence": 1}}


# --- the published object -----------------------------------------------------------------------------------

_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.text(st.characters(), max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(_JSON)
def test_the_published_object_is_rebuilt_exactly(value: Any) -> None:
    # As repr, so that the order of keys, 2 and 2.0, 0.0 and -0.0, and NaN count.
    row, _ = problems_of(final_diagnosis=value)
    row["final_diagnosis"].encode()
    assert repr(published_object(row)) == repr(value)


_SOME_NUMBERS = [-1, 0, 3, 4, 2.0, True, None, "2", 2**31 - 1, 2**31, 1 - 2**31, -(2**31), 10**20]
_PARTS: dict[str, list[Any]] = {
    "box key": ["bounding_box", "Bounding Box", "bbox", "box", "\0"],
    "box": [
        [],
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, 6, 7],
        [2, 1, 3, 4, 5, 6],
        [1, 2, 4, 3, 5, 6],
        [1, 2, 3, 4, 6, 5],
    ],
    "low edge": _SOME_NUMBERS,
    "high edge": _SOME_NUMBERS,
    "wrapper": ["final_diagnosis", "MOAKS_scores", "MOA\u212a\u017f grade", "scores", "bbox", "100%d"],
    "lesion": [
        "patella_medial_BML",
        "Patella-medial BML",
        "patella lateral BML",
        "MOAKS_scores",
        "bbox",
        "\ud800",
    ],
    "attribute": [
        "% BML",
        "% of lesion that is BML",
        "percent",
        "NUMBER",
        "Number of BML",
        "50%d",
        "\0",
        "\ud800",
    ],
    "grade": _SOME_NUMBERS,
    "grades": [{}, 2, None, [], {"size": 1}],
    "lesions": [{}, 2, None, [], {"patella medial BML": {"size": 1}, "patella lateral BML": {"size": 1}}],
}


def diagnosis_with(**parts: Any) -> Any:
    box = parts.get("box", [parts.get("low edge", 0), parts.get("high edge", 2**31 - 1), 3, 4, 5, 6])
    grades = parts.get(
        "grades", {"size": 1, "number": 3, parts.get("attribute", "percent_bml"): parts.get("grade", 2)}
    )
    lesions = parts.get("lesions", {parts.get("lesion", "patella medial BML"): grades})
    return {parts.get("box key", "bounding_box"): box, parts.get("wrapper", "final_diagnosis"): lesions}


@pytest.mark.parametrize(("part", "value"), [(part, value) for part in _PARTS for value in _PARTS[part]])
def test_the_fast_way_gives_what_the_general_one_gives(
    part: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = diagnosis_with(**{part: value})
    for diagnosis in (
        usual,
        dict([*usual.items()][::-1]),
        usual | {"comment": "none"},
        [usual],
        json.dumps(usual),
    ):
        fast = row_and_problems(diagnosis)
        with monkeypatch.context() as patch:
            patch.setattr("reasonknee_hf.knee.records._usual_diagnosis", lambda *_: None)
            assert row_and_problems(diagnosis) == fast


def row_and_problems(diagnosis: Any) -> tuple[str, list[Problem]]:
    row, problems = problems_of(final_diagnosis=diagnosis, prompt=prompt_for(QUESTIONS[1]))
    return repr(row), problems  # as repr, so that 1 and True differ


def test_published_records_go_the_fast_way() -> None:
    assert _usual_diagnosis(record()["final_diagnosis"], QUESTIONS[24]) is not None


@settings(deadline=None)
@given(_JSON, _JSON, _JSON)
def test_any_record_gives_a_row_that_the_schema_takes(diagnosis: Any, inner: Any, text: Any) -> None:
    features = row_features("full")
    for value in (diagnosis, {"bounding_box": inner, LESION: diagnosis}, {LESION: {"size": inner}}):
        row, problems = problems_of(final_diagnosis=value, prompt=text)
        pa.Table.from_pylist([features.encode_example(row)], schema=features.arrow_schema)
        named = {problem.column for problem in problems}
        for column in named:
            assert row[column] is None
