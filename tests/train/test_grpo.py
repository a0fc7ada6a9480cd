"""Trainers that sample answers: how much is drawn before the first reward, and when they resume."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from tiny_model import tiny_model, tiny_processor
from trl import GRPOConfig, GRPOTrainer

from reasonknee_hf.prompting.view import View
from reasonknee_hf.train import conversation, get_recipe, grade_reward, prompt_stream, training_arguments
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

ASKED = {"view": get_recipe("planes", size=28), "target": "think_box", "prompts": PROMPTS}


@pytest.fixture
def drawn(monkeypatch) -> list[int]:
    """Grows with each view that is drawn."""
    found: list[int] = []
    original = View.draw
    monkeypatch.setattr(View, "draw", lambda self, volume: found.append(1) or original(self, volume))
    return found


def run(make_stream, folder, steps: int, reward, resume: str | None = None) -> GRPOTrainer:
    processor = tiny_processor()
    arguments = training_arguments(
        str(folder),
        GRPOConfig,
        max_steps=steps,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=4,
        save_strategy="steps",
        save_steps=3,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=tiny_model(processor),
        args=arguments,
        train_dataset=prompt_stream(make_stream(shuffle=0), **ASKED),
        processing_class=processor,
        reward_funcs=[reward],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_few_prompts_are_drawn_before_the_first_reward_and_none_for_steps_that_were_made(
    make_stream, tmp_path, drawn
) -> None:
    at_rewards, seen = [], []

    def reward(completions, **columns):
        at_rewards.append(len(drawn))
        seen.append(columns["id"])
        return grade_reward(completions, columns["question_id"], columns["grades"])

    run(make_stream, tmp_path, 4, reward)
    batch = 4 // 2  # prompts of a step
    assert at_rewards[0] <= 2 * batch
    whole, before = list(seen), len(drawn)
    assert before <= 5 * batch
    run(make_stream, tmp_path, 4, reward, resume=str(tmp_path / "checkpoint-3"))
    assert seen[len(whole) :] == whole[3:]
    assert at_rewards[-1] - before <= 2 * batch


def test_a_late_picture_is_the_picture(rows, make_stream, drawn) -> None:
    (prompt,) = make_prompts(make_stream, 1)
    assert not drawn
    late = prompt["prompt"][0]["content"][0]["image"]
    wanted = conversation(rows[0], **ASKED)[0]["content"][0]["image"]
    assert (late.size, late.mode) == (wanted.size, wanted.mode)
    for again in (copy.deepcopy(late), pickle.loads(pickle.dumps(late)), late.copy(), late.resize(late.size)):
        assert np.array_equal(np.array(again), np.array(wanted))
    assert len(drawn) == 2


def make_prompts(make_stream, count: int) -> list[dict]:
    return list(prompt_stream(make_stream().take(count), **ASKED))
