"""Pairs for DPO from graded answers."""

from __future__ import annotations

import pytest
from tiny_model import tiny_model, tiny_processor
from trl import DPOConfig, DPOTrainer

from reasonknee_hf.errors import OptionError
from reasonknee_hf.train import (
    get_recipe,
    grade_reward,
    ordinal_reward,
    preference_stream,
    target_text,
    training_arguments,
)
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

ASKED = {"view": get_recipe("planes", size=28), "target": "grades", "prompts": PROMPTS}


@pytest.fixture
def answers(rows) -> dict[str, list[str]]:
    """Two answers to each of four rows, and one to a fifth. Those of the third row earn the same."""
    right = [target_text(row, "grades") for row in rows[:5]]
    return {
        rows[0]["id"]: ["I do not know.", right[0]],
        rows[1]["id"]: [right[1], "Nothing.", "I do not know."],
        rows[2]["id"]: [right[2], right[2]],
        rows[3]["id"]: ["", right[3]],
        rows[4]["id"]: [right[4]],
    }


@pytest.mark.parametrize("reward", [grade_reward, ordinal_reward])
def test_the_better_answer_is_chosen(make_stream, rows, answers, reward) -> None:
    pairs = list(preference_stream(make_stream(), answers, reward, **ASKED))
    assert [pair["chosen"][0]["content"] for pair in pairs] == [
        target_text(rows[number], "grades") for number in (0, 1, 3)
    ]
    assert [pair["rejected"][0]["content"] for pair in pairs] == ["I do not know.", "Nothing.", ""]
    for pair in pairs:
        assert set(pair) == {"prompt", "images", "chosen", "rejected"}
        kinds = [block["type"] for message in pair["prompt"] for block in message["content"]]
        assert kinds.count("image") == len(pair["images"]) == 1
        assert not any("image" in block for message in pair["prompt"] for block in message["content"])


def test_pairs_without_a_difference_are_none(make_stream, answers) -> None:
    assert list(preference_stream(make_stream(), answers, grade_reward, margin=1.0, **ASKED)) == []
    with pytest.raises(OptionError, match="two"):
        preference_stream(make_stream(), {"one": ["answer"]}, grade_reward, **ASKED)
    with pytest.raises(OptionError, match="margin=-1"):
        preference_stream(make_stream(), answers, grade_reward, margin=-1, **ASKED)


def test_dpo_prefers_the_better_answer(make_stream, answers, tmp_path) -> None:
    processor = tiny_processor()
    arguments = training_arguments(
        str(tmp_path),
        DPOConfig,
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=5e-3,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer = DPOTrainer(
        model=tiny_model(processor),
        ref_model=tiny_model(processor),
        args=arguments,
        train_dataset=preference_stream(make_stream(), answers, grade_reward, **ASKED),
        processing_class=processor,
    )
    trainer.train()
    margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert margins[-1] > margins[0]
