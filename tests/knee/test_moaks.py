"""The table of questions against the published prompts and the facts extracted from them."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from reasonknee_hf.knee.moaks import (
    CATEGORIES,
    QUESTIONS,
    fold,
    question_for_key,
    question_for_prompt,
)

FILES = ("questions_nobbox_guided.json", "questions_nobbox_zeroshot.json")


@pytest.fixture(scope="session")
def prompts(upstream_dir: Path) -> dict[str, dict[str, str]]:
    return {name: json.loads((upstream_dir / "question_files" / name).read_text("utf-8")) for name in FILES}


@pytest.fixture(scope="session")
def facts(upstream_dir: Path) -> dict[int, dict[str, str]]:
    with (upstream_dir / "questions.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {int(row["question_id"]): row for row in rows}


@pytest.mark.parametrize("name", FILES)
def test_every_published_prompt_is_known_by_its_keys(prompts: dict[str, dict[str, str]], name: str) -> None:
    found = {number: question_for_prompt(text) for number, text in prompts[name].items()}
    assert {number: question and question.id for number, question in found.items()} == {
        str(number): number for number in range(1, 70)
    }


@pytest.mark.parametrize("name", FILES)
def test_wording_does_not_matter(prompts: dict[str, dict[str, str]], name: str) -> None:
    for number, text in prompts[name].items():
        template = text[text.index('"') - 1 :] if int(number) in (58, 59) else text[text.index("{") :]
        question = question_for_prompt(f"Bitte beurteilen. Antworte so: {template}")
        assert question is QUESTIONS[int(number)]


def test_the_table_agrees_with_the_published_templates(facts: dict[int, dict[str, str]]) -> None:
    assert sorted(facts) == sorted(QUESTIONS) == list(range(1, 70))
    for number, row in facts.items():
        question = QUESTIONS[number]
        assert question.prompt_key == row["lesion_key"]
        assert (question.family, question.structure, question.subregion) == (
            row["category"],
            row["structure"],
            row["subregion"],
        )
        assert (question.wrapper or "none") == row["wrapper_key"].removesuffix("(broken)")
        attributes = [
            re.fullmatch(r"(.+) \[0-(\d)\]", text) for text in row["attributes_with_range"].split("; ")
        ]
        assert [(a.prompt_key or "(bare value)", str(a.high)) for a in question.attributes] == [
            match.groups() for match in attributes if match
        ]
        kinds = {a.kind for a in question.attributes}
        assert kinds == set(row["value_kind"].replace(" code", "").split(" + "))


def test_the_object_that_is_asked_for(prompts: dict[str, dict[str, str]]) -> None:
    for name in FILES:
        for number, text in prompts[name].items():
            question = QUESTIONS[int(number)]
            grades = {attribute.name: 0 for attribute in question.attributes}
            if question.id in (58, 59):  # the published template is cut
                assert question.answer(grades) == {question.prompt_key: {"presence": 0}}
                continue
            template = text[text.index("{") : text.rindex("}") + 1]
            filled = re.sub(r"\(grade from 0-\d\)|\(0 \| 1\)|\(0-\d\)|0 \| 1", "0", template)
            assert json.loads(filled) == question.answer(grades)


def test_counts() -> None:
    assert Counter(question.category for question in QUESTIONS.values()) == {
        "BML": 15,
        "Cartilage": 14,
        "Osteophyte": 12,
        "Meniscus": 16,
        "Ligament & Tendon": 3,
        "Synovitis & Effusion": 2,
        "Periarticular": 7,
    }
    assert set(CATEGORIES) == {question.category for question in QUESTIONS.values()}
    assert sum(len(question.attributes) for question in QUESTIONS.values()) == 118
    assert len({question.lesion for question in QUESTIONS.values()}) == 69


@pytest.mark.parametrize("number", QUESTIONS)
def test_lesion_keys_in_every_spelling(number: int) -> None:
    question = QUESTIONS[number]
    for key in (question.prompt_key, question.release_key, question.lesion, question.prompt_key.upper()):
        assert question_for_key(key) is question


@pytest.mark.parametrize("number", QUESTIONS)
def test_attributes_in_every_spelling(number: int) -> None:
    question = QUESTIONS[number]
    for attribute in question.attributes:
        for key in filter(None, (attribute.name, attribute.prompt_key, *attribute.aliases)):
            assert question.attribute(key) is attribute
            assert question.attribute(key.upper().replace(" ", "_")) is attribute
    spellings = [fold(key) for a in question.attributes for key in (a.name, *a.aliases)]
    assert len(spellings) == len(set(spellings))
    assert question.attribute("no such attribute") is None


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "Please describe the knee.",
        'Answer as {"size": 1}',
        'Answer as {"ACL": {"Complete Tear": 0}, "PCL": {"Complete Tear": 0}}',
        "Grade the patella medial BML without any template.",
    ],
)
def test_prompts_without_exactly_one_lesion_key_are_unknown(prompt: str) -> None:
    assert question_for_prompt(prompt) is None


def test_short_names_follow_the_release() -> None:
    assert QUESTIONS[24].release_key == "tibia_medial_anterior_cartilage_lesion"
    assert [attribute.name for attribute in QUESTIONS[24].attributes] == ["size", "depth"]
