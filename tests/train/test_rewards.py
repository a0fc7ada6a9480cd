"""Rewards and prediction lines, against the bench's own reading."""

from __future__ import annotations

import json
import logging

import pytest

from reasonknee_hf.bench import iou, read_answer
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.prompting.chats import make_style, row_view
from reasonknee_hf.train import (
    RareGradeReward,
    ViewIou,
    conversation,
    format_reward,
    get_recipe,
    grade_reward,
    iou_reward,
    ordinal_reward,
    prompt_stream,
    repetition_reward,
    target_text,
)
from reasonknee_hf.train.collator import Reference
from reasonknee_hf.train.predictions import prediction_line
from reasonknee_hf.train.rewards import completion_text


@pytest.fixture(scope="module")
def row(rows: list[dict]) -> dict:
    return next(row for row in rows if row["question_id"] == 16)


def columns(row: dict, count: int) -> dict:
    return {name: [row[name]] * count for name in ("question_id", "grades", "bbox")}


def test_rewards_of_right_wrong_and_unreadable_answers(row: dict) -> None:
    right = target_text(row, "think_box")
    size = row["grades"][0]["grade"]
    half = right.replace(f'"Size of lesion": {size}', f'"Size of lesion": {(size + 1) % 4}')
    said = [right, half, "no idea", "", [{"role": "assistant", "content": right}]]
    said.append([{"role": "assistant", "content": [{"type": "text", "text": right}]}])
    assert grade_reward(said, **columns(row, 6), prompts=[]) == [1.0, 0.5, 0.0, 0.0, 1.0, 1.0]
    assert iou_reward(said, **columns(row, 6)) == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]


def test_iou_is_that_of_the_bench(row: dict) -> None:
    moved = [row["bbox"][0] + 1, row["bbox"][1] + 1, *row["bbox"][2:]]
    said = [target_text(row, "box_grades", box=moved)]
    assert iou_reward(said, **columns(row, 1)) == [float(iou(moved, row["bbox"]))]
    assert iou_reward(said, question_id=[16], bbox=[None]) == [0.0]


def test_a_question_that_is_not_known_gives_nothing(row: dict) -> None:
    said = [target_text(row, "box_grades")]
    assert grade_reward(said, question_id=[None], grades=[row["grades"]]) == [0.0]
    assert grade_reward(said, question_id=[16], grades=[None]) == [0.0]


def test_answers_in_the_coordinates_of_the_view(row: dict, caplog) -> None:
    view = row_view(row, make_style({"view": "region", "target": "grades"}))
    said = [target_text(row, "box_grades", box=view.to_view(row["bbox"]))]
    assert ViewIou()(said, **columns(row, 1), view=[view]) == [1.0]
    far = [target_text(row, "box_grades", box=[0, 900, 0, 900, 0, 900])]
    with caplog.at_level(logging.WARNING):
        assert ViewIou()(far, **columns(row, 1), view=[view]) == [0.0]
    assert "declare scale='thousandths'" in caplog.text


@pytest.mark.parametrize("is_mapped", [False, True])
def test_prompts_for_sampling_hold_images_and_what_rewards_need(make_stream, is_mapped: bool) -> None:
    rows = make_stream().map(lambda row: {"n": 1}) if is_mapped else make_stream()
    stream = prompt_stream(rows, view=get_recipe("jitter", most=8), target="think_box")
    found = next(iter(stream))
    assert set(found) == {"id", "question_id", "bbox", "grades", "prompt", "view"}
    assert [message["role"] for message in found["prompt"]] == ["user"]
    kinds = [part["type"] for part in found["prompt"][0]["content"]]
    assert kinds == ["image"] * 8 + ["text"]


def test_a_prediction_keeps_the_text_but_for_the_box(row: dict) -> None:
    view = row_view(row, make_style({"view": "region", "target": "grades"}))
    seen = view.to_view(row["bbox"])
    reference = Reference(row["id"], 16, tuple(row["bbox"]), {}, None, view)
    text = f"Noise in [1, 2, 3]. {target_text(row, 'think_box', box=seen)} Done."
    assert prediction_line(reference, text) == {"id": row["id"], "prediction": text}
    line = prediction_line(reference, text, scale="pixels")
    assert list(read_answer(line["prediction"], QUESTIONS[16]).box) == row["bbox"]
    assert line["prediction"].replace(str(row["bbox"]), str(seen)) == text
    assert prediction_line(reference, "no box", scale="pixels")["prediction"] == "no box"


def test_a_prediction_in_an_impossible_scale_has_no_box(row: dict, caplog) -> None:
    view = row_view(row, make_style({"view": "region", "target": "grades"}))
    reference = Reference(row["id"], 16, tuple(row["bbox"]), {}, None, view)
    text = target_text(row, "box_grades", box=[0, 900, 0, 900, 0, 900])
    line = prediction_line(reference, text, scale="pixels")
    reading = read_answer(line["prediction"], QUESTIONS[16])
    assert reading.valid
    assert reading.box is None
    assert row["id"] in caplog.text


def test_a_completion_of_another_kind_is_refused(row: dict) -> None:
    with pytest.raises(OptionError, match="a text or a list of messages"):
        grade_reward([3], **columns(row, 1))


def test_chats_and_targets_agree(row: dict) -> None:
    chat = conversation(row, view="planes", target="think_box")
    assert grade_reward([chat[-1:]], **columns(row, 1)) == [1.0]


THOUGHT = "<think>A small lesion.</think>"


def attacks(row: dict) -> dict[str, str]:
    right = target_text(row, "box_grades")
    nothing = {item["attribute"]: 0 for item in row["grades"]}
    return {
        "right": f"{THOUGHT}<answer>{right}</answer>",
        "all zero": json.dumps(QUESTIONS[16].answer(nothing)),
        "unclosed": f"<think>{right}",
        "answer in thoughts that never end": f"<think>I think <answer>{right}</answer>",
        "empty": f"<think></think><answer>{right}</answer>",
        "blank": f"<think> \n </think><answer>{right}</answer>",
        "nested": f"<think><think></think><answer>{right}</answer>",
        "no tags": right,
        "prose": f"{THOUGHT}<answer>{right} surely</answer>",
    }


@pytest.mark.parametrize(
    "name", ["unclosed", "answer in thoughts that never end", "empty", "blank", "nested"]
)
def test_thoughts_that_are_empty_or_never_end_earn_nothing(row: dict, name: str) -> None:
    said = [attacks(row)[name]]
    assert grade_reward(said, **columns(row, 1)) == ordinal_reward(said, **columns(row, 1)) == [0.0]
    assert iou_reward(said, **columns(row, 1)) == format_reward(said) == [0.0]


def test_what_is_well_formed(row: dict) -> None:
    said = attacks(row)
    assert [name for name, text in said.items() if format_reward([text]) == [1.0]] == ["right"]
    assert grade_reward([said["right"]], **columns(row, 1)) == [1.0]


def test_a_constant_answer_does_not_pay_where_grades_are_weighed_by_rarity(row: dict) -> None:
    question = QUESTIONS[16]
    counts = {16: {a.name: [900, 60, 30, 10] for a in question.attributes}}
    reward = RareGradeReward(counts)

    def expected(said: int) -> float:
        total = 0.0
        for truth, n in enumerate([900, 60, 30, 10]):
            grades = [{"attribute": a.name, "grade": truth} for a in question.attributes]
            text = json.dumps(question.answer({a.name: said for a in question.attributes}))
            total += n / 1000 * reward([text], [16], [grades])[0]
        return total

    assert [expected(said) for said in range(4)] == pytest.approx([0.01] * 4)
    assert reward([attacks(row)["right"]], [16], [row["grades"]])[0] > 0


def test_near_grades_earn_a_part_where_grades_have_an_order() -> None:
    grades = [{"attribute": "size", "grade": 3}, {"attribute": "depth", "grade": 0}]
    said = json.dumps(QUESTIONS[16].answer({"size": 2, "depth": 3}))
    assert ordinal_reward([said], [16], [grades]) == pytest.approx([(2 / 3 + 0) / 2])
    assert grade_reward([said], [16], [grades]) == [0.0]


def test_going_round_costs() -> None:
    words = " ".join(map(str, range(40)))
    assert repetition_reward([words, "", "short"]) == [0.0, 0.0, 0.0]
    assert repetition_reward([" ".join([words] * 20)])[0] < -0.9


def test_an_empty_message_is_an_empty_answer(row: dict) -> None:
    said = [[{"role": "assistant", "content": None}]]
    assert completion_text(said[0]) == ""
    assert grade_reward(said, **columns(row, 1)) == [0.0]
