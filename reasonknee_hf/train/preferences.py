"""Preference pairs out of several answers to each question, graded by a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets

from reasonknee_hf.errors import OptionError
from reasonknee_hf.train.rewards import REWARD_COLUMNS, prompt_stream

Reward = Callable[..., Sequence[float]]


def preference_stream(
    ds: datasets.IterableDataset,
    answers: Mapping[str, Sequence[str]],
    reward: Reward,
    *,
    margin: float = 0.0,
    **options: Any,
) -> datasets.IterableDataset:
    """A stream of pairs for trainers of TRL that learn from preferences (DPO): the best and the worst of some answers.

        preference_stream(rows, {"train_1_16": [first, second]}, ordinal_reward, margin=0.2, target="think")

    Its columns are `prompt`, `images`, `chosen` and `rejected`. Rows without two answers, and those whose answers earn
    about the same, are left out.

    Args:
        ds: A stream of rows.
        answers: What was answered to each row, by its id: samples, or the predictions of several models.
        reward: One of the rewards of this package, or of that form.
        margin: The best answer earns more than the worst one by more than this.
        options: Those of [`prompt_stream`][reasonknee_hf.train.rewards.prompt_stream].

    Raises:
        OptionError: The margin is below 0, or nothing was answered twice.

    Examples:
        >>> from reasonknee_hf.train import grade_reward, preference_stream, target_text
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> pairs = preference_stream(rows, {row["id"]: ["{}", target_text(row)]}, grade_reward, target="grades")
        >>> next(iter(pairs))["rejected"]
        [{'role': 'assistant', 'content': '{}'}]
    """
    if margin < 0 or not any(len(said) > 1 for said in answers.values()):
        raise OptionError(
            f"preference_stream() compares answers: margin={margin} is to be 0 or more, and some row is to have two."
        )
    named = {name: options[name] for name in ("dataset",) if options.get(name) is not None}
    judge = _Judge(answers, reward, margin, named)
    prompts = prompt_stream(ds.filter(judge.tells_apart), **options)
    return prompts.map(judge.pair, remove_columns=[*REWARD_COLUMNS, "view", *named])


class _Judge:
    """Grades the answers to a row; a class, so that it pickles for workers."""

    def __init__(
        self, answers: Mapping[str, Sequence[str]], reward: Reward, margin: float, named: dict[str, str]
    ) -> None:
        self.answers = answers
        self.named = named
        self.reward = reward
        self.margin = margin

    def _graded(self, row: Mapping[str, Any]) -> list[tuple[float, str]]:
        """Answers with what they earn, the worst first."""
        said = self.answers.get(row["id"], ())
        told = {name: row[name] for name in REWARD_COLUMNS} | self.named
        columns = {name: [value] * len(said) for name, value in told.items()}
        earned = self.reward(list(said), **columns) if len(said) > 1 else []
        return sorted(zip(earned, said, strict=False), key=lambda pair: pair[0])

    def tells_apart(self, row: Mapping[str, Any]) -> bool:
        graded = self._graded(row)
        return bool(graded) and graded[-1][0] - graded[0][0] > self.margin

    def pair(self, row: Mapping[str, Any]) -> dict[str, Any]:
        (_, worst), *_, (_, best) = self._graded(row)
        blocks = [block for message in row["prompt"] for block in message["content"]]
        return {
            "images": [block["image"] for block in blocks if block["type"] == "image"],
            "prompt": [{**message, "content": _places(message["content"])} for message in row["prompt"]],
            "chosen": [{"role": "assistant", "content": best}],
            "rejected": [{"role": "assistant", "content": worst}],
        }


def _places(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Blocks with the places of images, which have a column of their own."""
    return [{name: value for name, value in block.items() if name != "image"} for block in blocks]
