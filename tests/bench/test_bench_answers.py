"""What an answer says: golden readings, the published templates, and what must hold for any text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.bench import read_answer
from reasonknee_hf.knee.moaks import QUESTIONS

GOLDEN = [
    case
    for name in ("answers.json", "borders.json")
    for case in json.loads(
        (Path(__file__).parents[1] / "golden" / "bench" / name).read_text(encoding="utf-8")
    )
]
SINGLE = [question for question in QUESTIONS.values() if len(question.attributes) == 1]
QUESTION = st.sampled_from(list(QUESTIONS.values()))


def test_there_are_enough_golden_answers():
    assert len(GOLDEN) >= 120


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_answer(case):
    reading = read_answer(case["answer"], QUESTIONS[case["question"]])
    read = {
        "grades": reading.grades,
        "reason": reading.reason,
        "repairs": reading.repairs,
        "notes": reading.notes,
        "box": None if reading.box is None else list(reading.box),
        "box_problem": reading.box_problem,
    }
    expected = {"box": None, "box_problem": None} | {key: case[key] for key in read if key in case}
    assert read == expected


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_strict_mode_takes_no_repair(case):
    question = QUESTIONS[case["question"]]
    reading = read_answer(case["answer"], question, strict=True)
    if case["repairs"]:
        assert (reading.reason, reading.grades, reading.box) == ("needs_repair", {}, None)
    else:
        assert (reading.reason, reading.grades) == (case["reason"], case["grades"])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_the_span_is_the_object_that_counts(case):
    reading = read_answer(case["answer"], QUESTIONS[case["question"]])
    if isinstance(case["answer"], str) and reading.span:
        alone = case["answer"][slice(*reading.span)]
        alone = "{" + alone + "}" if "bare_member" in reading.repairs else alone
        assert read_answer(alone, QUESTIONS[case["question"]]).grades == reading.grades


@pytest.mark.parametrize("name", ["questions_nobbox_guided.json", "questions_nobbox_zeroshot.json"])
def test_published_templates_filled_in_are_read_as_they_are(name, upstream_dir):
    prompts = json.loads((upstream_dir / "question_files" / name).read_text(encoding="utf-8"))
    assert len(prompts) == 69
    for key, prompt in prompts.items():
        question = QUESTIONS[int(key)]
        start = prompt.rindex(f'"{question.wrapper}"' if question.wrapper else f'"{question.prompt_key}"')
        broken = question.id in (58, 59)
        template = prompt[start if broken else prompt.rindex("{", 0, start) :]
        highs = [attribute.high for attribute in question.attributes]
        filled = template
        for high in highs:
            filled = re.sub(
                r"\(grade from 0-\d\)|\(0 \| 1\)|(?<=: )0 \| 1|\(0-3\)", str(high), filled, count=1
            )
        reading = read_answer(filled, question)
        assert list(reading.grades.values()) == highs, (key, filled)
        expected = ["surrounding_text", "bare_member"] if broken else []
        expected = (
            ["surrounding_text"] if question.id in (54, 55) else expected
        )  # a full stop after the object
        assert reading.repairs == expected, (key, filled)
        unfilled = read_answer(prompt, question)
        assert not unfilled.grades, "the template itself is no answer"


@pytest.mark.parametrize("question", SINGLE, ids=lambda question: str(question.id))
def test_what_begins_with_a_number_is_no_grade_in_any_fallback(question):
    from reasonknee_hf.train.rewards import grade_reward

    for value in ("0-3", "1 or 2", "0 | 1", "1/2", "1%", "1 mm", "1 to 2", "(0-1)"):
        truth = [{"attribute": question.attributes[0].name, "grade": grade} for grade in (0, 1)]
        for text in (
            json.dumps({"MOAKS_scores": {question.prompt_key: "?"}}).replace('"?"', value),
            f'"{question.prompt_key}": {value}',
            f'{{"{question.prompt_key}": {{"{question.attributes[0].name}": {value}}}}}',
            f"Grade {value}",
        ):
            assert read_answer(text, question, free_digits=True).grades == {}, text
            assert grade_reward([text] * 2, [question.id] * 2, [[grade] for grade in truth]) == [0, 0]


def test_numbers_of_numpy_count_as_numbers():
    import numpy as np

    question = QUESTIONS[16]
    grades = dict(zip(("size", "depth"), np.array([2, 1]), strict=True))
    for box in (np.arange(6), list(np.arange(6)), np.arange(6.0)):
        reading = read_answer({"bbox": box, question.release_key: grades}, question, strict=True)
        assert (reading.grades, reading.box) == ({"size": 2, "depth": 1}, (0, 1, 2, 3, 4, 5))


def test_free_digits_are_read_only_when_asked_for():
    question = QUESTIONS[44]
    for text, grade in [
        ("2", 2),
        ("Grade 2", 2),
        ("The extrusion is grade 2.", 2),
        ("grade 1 ... no, grade 2", None),
    ]:
        assert read_answer(text, question).reason == "no_object"
        guessed = read_answer(text, question, free_digits=True)
        assert guessed.grades.get("grade") == grade
        assert guessed.repairs == ([] if grade is None else ["free_digits"])
    assert read_answer("Grade 7", question, free_digits=True).reason == "out_of_range"
    assert read_answer(f"Grade {'7' * 5000}", question, free_digits=True).reason == "out_of_range"
    assert read_answer(f"Grade 2, grade {'7' * 5000}", question, free_digits=True).reason == "no_object"
    assert read_answer("Grade 2", QUESTIONS[1], free_digits=True).reason == "no_object"
    assert read_answer("Because it measures 2 mm", question, free_digits=True).reason == "no_object"


@settings(deadline=None)
@given(QUESTION, st.data(), st.booleans())
def test_every_right_answer_is_read_without_repair(question, data, released):
    grades = {a.name: data.draw(st.sampled_from(a.grades)) for a in question.attributes}
    answer = {question.release_key: grades} if released else question.answer(grades)
    for form in (answer, json.dumps(answer), json.dumps(answer, indent=2)):
        reading = read_answer(form, question, strict=True)
        assert (reading.grades, reading.reason, reading.repairs) == (grades, None, [])


@settings(deadline=None)
@given(QUESTION, st.data(), st.text(alphabet=st.characters(exclude_characters="{}[]<>\"'`"), max_size=40))
def test_prose_around_an_answer_changes_nothing(question, data, prose):
    grades = {a.name: data.draw(st.sampled_from(a.grades)) for a in question.attributes}
    reading = read_answer(f"{prose}\n{json.dumps(question.answer(grades))}\n{prose}", question)
    assert reading.grades == grades


@settings(deadline=None)
@given(QUESTION, st.text(max_size=300))
def test_any_text_gives_a_reading(question, text):
    reading = read_answer(text, question)
    for name, grade in reading.grades.items():
        attribute = question.attribute(name)
        assert attribute is not None
        assert grade in attribute.grades
    assert reading.valid == (len(reading.grades) == len(question.attributes))
    assert set(reading.grades) | set(reading.problems) == {a.name for a in question.attributes}


_FRAGMENTS = [*"{}[]()\"':,\\\n ", "2", "-1", "None", "NaN", "<think>", "</think>", "```", "//", "/*"]
_FRAGMENTS += ["Final diagnosis:", '"Hoffa-Synovitis"', '"grade"', "bounding_box"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=60).map("".join))
def test_any_broken_json_gives_a_reading(text):
    reading = read_answer(text, QUESTIONS[42])
    assert reading.valid == (reading.reason is None) == bool(reading.grades)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["Hoffa-Synovitis"]),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(["Hoffa-Synovitis", "grade", "bbox", "MOAKS_scores", "x"]), children, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_any_object_gives_a_reading(value):
    reading = read_answer(value, QUESTIONS[42])
    assert all(0 <= grade <= 3 for grade in reading.grades.values())


def test_nesting_without_end_is_no_answer():
    for deep in ('{"a":' * 900 + "1" + "}" * 900, '{"a":' * 20_000 + "1" + "}" * 20_000):
        assert read_answer(deep, QUESTIONS[42]).reason in ("no_object", "no_lesion")
    nested: dict = {}
    for _ in range(2_000):
        nested = {"a": nested}
    assert read_answer(nested, QUESTIONS[42]).reason == "no_object"


HOSTILE = [
    "{",
    '{"a":',
    "[",
    '{"a": "',
    "'a': ",
    '"patella medial BML": {',
    '"Hoffa-Synovitis": {',
    '"Hoffa-Synovitis": 0, ',
    '"bounding_box": {',
    '{"bounding_box": [',
    '{"Hoffa-Synovitis": {"grade": 1}} ',
    '{"Hoffa-Synovitis": {"grade": 1} ',
    "{/*",
    "{#",
    "{// \n",
    "#\n",
    "{'",
    "{“",
    '{"\\" ',
    "{a ",
    "[{},",
    "{}",
    "()",
    "<think>",
    "<think></think>",
    "<answer>",
    "final diagnosis: ",
    "<|im_end|>x",
    "grade ",
    "```\n",
    "1",
    " ",
    ", ",
    "{1" + "1" * 700 + "x",
    '"Hoffa-Synovitis": "',
    '"a": ' * 3 + "{",
]


def _steps(text, monkeypatch):
    """Steps that reading a text takes: those of the search, and the members and marks that are walked over."""
    from reasonknee_hf.bench import jsonish

    steps = []
    original = jsonish.Search.__init__
    with monkeypatch.context() as patch:
        searches = []
        patch.setattr(jsonish.Search, "__init__", lambda s, text: searches.append(s) or original(s, text))
        reading = read_answer(text, QUESTIONS[42], free_digits=True)
        steps = [search.steps for search in searches]
    return reading, sum(steps)


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_bounded_work(piece, monkeypatch):
    from reasonknee_hf.bench import jsonish

    one, two = (_steps(piece * (size // len(piece)), monkeypatch) for size in (8_000, 16_000))
    assert two[1] <= 2.2 * one[1] + 50, "work grows with the length and no faster"
    reading, steps = _steps(piece * (1_000_000 // len(piece)), monkeypatch)
    assert steps <= 3 * (jsonish.MAX_STEPS + 1)
    assert reading.grades in ({}, {"grade": 0}, {"grade": 1})


RULES = (Path(__file__).parents[2] / "BENCHMARK.md").read_text(encoding="utf-8")


def test_each_published_rule_names_the_golden_cases_that_fix_it():
    from reasonknee_hf.knee.scoring.answer_reading import RULES_VERSION

    assert f"Rules, version {RULES_VERSION}." in RULES
    rules = [line for line in RULES.splitlines() if line.startswith("| ") and "| Cases |" not in line]
    rules = [line for line in rules if "---" not in line]
    names = {case["name"] for case in GOLDEN}
    assert len(rules) > 25
    for rule in rules:
        cases = rule.split("|")[-2] if " | " in rule else ""
        cited = [case.strip()[1:-1] for case in cases.split("; ")]
        assert cited
        assert set(cited) <= names, set(cited) - names


def test_each_reason_and_repair_is_in_the_published_rules():
    for case in GOLDEN:
        for name in [case["reason"], case.get("box_problem"), *case["repairs"]]:
            assert name is None or f"`{name}`" in RULES, name
