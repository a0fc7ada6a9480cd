"""Rows of DeepTumorVQA in training: what is asked and answered, views without a region, what answers earn."""

from __future__ import annotations

import pytest

import reasonknee_hf as rk
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.chats import conversation
from reasonknee_hf.prompting.recipes import get_recipe
from reasonknee_hf.tumor.tumor_lessons import CT_WINDOW, answer_reward, option_reward

STYLE = {"dataset": "deeptumorvqa", "target": "option", "view": get_recipe("middle", window=CT_WINDOW)}


@pytest.fixture(scope="module")
def rows():
    ds = rk.load_dataset(
        "deeptumorvqa/benchmark", split="test", streaming=True, source="sample", on_error="skip"
    )
    return list(ds)


def test_letters_are_asked_for_by_the_options_there_are(rows):
    for count, said in ((2, "A or B."), (3, "A, B or C."), (4, "A, B, C or D.")):
        row = next(row for row in rows if len(row["options"]) == count)
        asked, told = conversation(row, **STYLE)
        assert asked["content"][-1]["text"].endswith(f"Answer with one letter, {said}")
        assert all(f"{o['letter']}: {o['text']}" in asked["content"][-1]["text"] for o in row["options"])
        assert told["content"][0]["text"] == row["correct_option"]


def test_free_answers_are_asked_for_by_their_type(rows):
    row = next(row for row in rows if row["answer_type"] == "numeric")
    asked, told = conversation(row, **STYLE | {"target": "answer"})
    assert "0.83 x 0.83 x 5 mm" in asked["content"][-1]["text"]
    assert asked["content"][-1]["text"].endswith("Answer with one number, without a unit.")
    assert told["content"][0]["text"] == row["answer"]
    with pytest.raises(RecordError, match="no reasoning"):
        conversation(row, **STYLE | {"target": "think"})
    thought = conversation(row | {"cot": "It is large."}, **STYLE | {"target": "think_option"})
    assert thought[1]["content"][0]["text"] == (
        f"<think>It is large.</think><answer>{row['correct_option']}</answer>"
    )
    with pytest.raises(OptionError, match="no target 'box_grades'"):
        conversation(row, **STYLE | {"target": "box_grades"})


@pytest.mark.parametrize(("view", "frames"), [("middle", 8), ("slice", 1), ("o1", 12), ("upstream", 12)])
def test_views_are_axial_slices(rows, view, frames):
    pytest.importorskip("PIL")
    blocks = conversation(rows[0], **STYLE | {"view": get_recipe(view, window=CT_WINDOW, kind="images")})[0][
        "content"
    ]
    shown = [block["image"] for block in blocks[:-1]]
    if view != "o1":
        assert len(shown) == frames
    assert {picture.size for picture in shown} == {(24, 20)} or view in ("o1", "upstream")


def test_rewards():
    options = [
        [{"letter": letter, "text": text} for letter, text in zip("ABC", ("1", "2", "3"), strict=True)]
    ] * 4
    told = ["Because of that, C", "<think>C", "C", "A"]
    assert option_reward(told, options=options, correct_option=["C", "C", None, "C"]) == [1, 0, 0, 0]
    told = ["1,500", "740", "none", "Yes, seen", "Normal", "Mild!", "<think>1480"]
    truth = ["1,480", "1,480", "1,480", "Yes", "No", "mild", "1480"]
    kinds = ["numeric", "numeric", "numeric", "binary", "binary", "categorical", "numeric"]
    assert answer_reward(told, answer=truth, answer_type=kinds) == [1, 0.5, 0, 1, 0, 1, 0]


def test_prompts_bring_what_rewards_need(rows):
    pytest.importorskip("PIL")
    from reasonknee_hf.train.rewards import prompt_stream

    ds = rk.load_dataset(
        "deeptumorvqa/benchmark", split="test", streaming=True, source="sample", on_error="skip"
    )
    prompt = next(iter(prompt_stream(ds, **STYLE | {"view": "slice"})))
    assert prompt["dataset"] == "deeptumorvqa"
    assert prompt["correct_option"] == rows[0]["correct_option"]
    assert [message["role"] for message in prompt["prompt"]] == ["user"]
    assert option_reward([prompt["correct_option"]], [prompt["options"]], [prompt["correct_option"]]) == [1]


@pytest.mark.train
def test_feeds_the_collator(monkeypatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from tiny_model import tiny_processor
    from torch.utils.data import DataLoader

    from reasonknee_hf.train.collator import Collator

    ds = rk.load_dataset(
        "deeptumorvqa/benchmark", split="test", streaming=True, source="sample", on_error="skip", shuffle=3
    )
    view = get_recipe("middle", window=CT_WINDOW, size=56)
    batches = DataLoader(
        ds, 4, num_workers=2, collate_fn=Collator(tiny_processor(), **STYLE | {"view": view})
    )
    told = [one for batch in batches for one in batch.references]
    assert len({one.id for one in told}) == len(told) == 63
    assert {one.answer for one in told} <= {*"ABCD"}
