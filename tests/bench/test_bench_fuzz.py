"""The scorer against a second, plain one that shares none of its code: the same grades, boxes and figures."""

from __future__ import annotations

import random

import plain_scorer
import pytest
from answer_shapes import mutated, shapes
from bench_cases import rows, truth

from reasonknee_hf.bench import jsonish, read_answer, score
from reasonknee_hf.knee.moaks import QUESTIONS


def _texts(count, seed, change):
    """`count` answers, shape after shape, with the row each is for."""
    chance = random.Random(seed)
    made = 0
    while True:
        for row in rows(scans=3, questions=range(1, 70), seed=chance.randrange(10**6)):
            wrong = {a.name: chance.choice(a.grades) for a in QUESTIONS[row["question_id"]].attributes}
            grades = truth(row) if chance.random() < 0.6 else wrong
            box = [value + chance.choice([0, 0, 3]) for value in row["bbox"]]
            texts = shapes(chance, row, grades, box)
            for text in chance.sample(texts, 8):
                yield row, mutated(chance, text) if change else text
                made += 1
                if made == count:
                    return


def _agree(count, seed, change):
    for row, text in _texts(count, seed, change):
        question = QUESTIONS[row["question_id"]]
        reading = read_answer(text, question)
        assert (reading.grades, reading.box) == plain_scorer.read(text, question), (row["question_id"], text)


def test_there_are_sixty_shapes():
    row = next(rows())
    assert len(set(shapes(random.Random(0), row, truth(row), row["bbox"]))) >= 60


def test_mutated_answers_are_read_alike():
    _agree(1_500, seed=1, change=True)


@pytest.mark.slow
def test_twenty_thousand_mutated_answers_are_read_alike():
    _agree(20_000, seed=2, change=True)


def _figures(count):
    pairs = list(_texts(count, 3, change=False))
    references = [row | {"id": f"{row['id']}-{n}", "scan_id": f"s{n}"} for n, (row, _) in enumerate(pairs)]
    answers = {row["id"]: text for row, (_, text) in zip(references, pairs, strict=True)}
    report = score(answers, references, rounds=0)
    plain = plain_scorer.figures(references, answers)
    for name, value in plain["all"].items():
        assert report.figure(name) == pytest.approx(value), name
    for category, found in report.data["grades"]["category"].items():
        for name in ("item_accuracy", "attribute_accuracy", "coverage"):
            assert found[name]["value"] == pytest.approx(plain[category][name]), (category, name)
        assert report.data["localisation"]["category"][category]["iou"]["value"] == pytest.approx(
            plain[category]["iou"]
        )


def test_the_figures_are_those_of_the_plain_scorer():
    _figures(1_500)


@pytest.mark.slow
def test_the_figures_of_twenty_thousand_predictions_are_those_of_the_plain_scorer():
    _figures(20_000)


def test_reading_holds_no_more_than_a_few_times_the_text():
    import tracemalloc

    text = '{"Hoffa-Synovitis": {"grade": 1} ' * 30_000
    tracemalloc.start()
    read_answer(text, QUESTIONS[42])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(text)
    assert jsonish.MAX_STEPS < 20_000
