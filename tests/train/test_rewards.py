"""Rewards and prediction lines, against the bench's own reading."""

from __future__ import annotations

import logging

import pytest

from reasonknee_hf.bench import iou, read_answer
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.train import (
    ViewIou,
    conversation,
    get_recipe,
    grade_reward,
    iou_reward,
    prompt_stream,
    target_text,
)
from reasonknee_hf.train.chats import make_style, row_view
from reasonknee_hf.train.collator import Reference
from reasonknee_hf.train.predictions import prediction_line


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
