"""Rewards out of the benchmark's own reading of answers, for trainers of TRL that sample answers (GRPO and its kind).

What attacks earn, on rows whose true grades are 0 in three of four cases:

| attack | `grade_reward` | `ordinal_reward` | `RareGradeReward` | `iou_reward` | `format_reward` |
|---|---|---|---|---|---|
| 0 everywhere | three quarters | more | a share of 1 over the number of grades, at most | 0 | 0 |
| thoughts that never end, the answer inside | 0 | 0 | 0 | 0 | 0 |
| empty thoughts, then the right answer | 0 | 0 | 0 | 0 | 0 |
| two answers that contradict each other | as the benchmark reads them: the last complete one | | | | 0 |
| one box around the whole volume | | | | the share of the volume that the true box is | |
| the right answer, then the same words over and over | 1 | 1 | as it is worth | | 0 (`repetition_reward`: down to -1) |

So train with `RareGradeReward`, `iou_reward`, `format_reward` and `repetition_reward` together; `grade_reward` alone is
for measuring.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from reasonknee_hf.bench.box_geometry import iou
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.chats import (
    Style,
    make_style,
    messages,
    row_view,
    row_volume,
)
from reasonknee_hf.prompting.lessons import lessons_of
from reasonknee_hf.prompting.recipes import get_recipe
from reasonknee_hf.prompting.view import Scale, View

logger = logging.getLogger(__name__)

_THOUGHT = re.compile(r"\s*<think>\s*(?=[^<\s])(?:(?!<think>).)*?</think>", re.DOTALL)
_ANSWER = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL)

REWARD_COLUMNS = ("id", "question_id", "bbox", "grades")
"""Columns of a row that rewards need beside the prompt."""


def prompt_stream(ds: datasets.IterableDataset, **options: Any) -> datasets.IterableDataset:
    """A stream of prompts for trainers that sample answers: `prompt`, what rewards need, and the `view`.

    Where `dataset` is given it is a column too, so that rewards read answers as that dataset does.

    Trainers of TRL take images in prompts, no videos, so videos become one image a frame. Images are drawn when a
    trainer first uses their pixels: passing over prompts, as it does to resume, decodes no volume.

    Args:
        ds: A stream of rows.
        options: Those of [`~reasonknee_hf.prompting.chats.Style`]; `target` says what is asked for, and
            is not part of the prompt.

    Examples:
        >>> from reasonknee_hf.train import prompt_stream
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> sorted(next(iter(prompt_stream(rows, setting="instruction", target="grades"))))
        ['bbox', 'grades', 'id', 'prompt', 'question_id', 'view']
    """
    style = make_style({"view": "planes", **options})
    if style.recipe.kind == "video":
        style = make_style({**options, "view": get_recipe(style.view, kind="images")})
    # After a transform nothing but a row tells the columns.
    names = ds.column_names if ds.column_names is not None else list(next(iter(ds.take(1)), ()))
    kept = {*REWARD_COLUMNS, *style.lessons.reward_columns}
    return ds.map(_Prompt(style), remove_columns=[name for name in names if name not in kept])


class _Prompt:
    """Makes the prompt of a row; a class, so that it pickles for workers."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        from reasonknee_hf.train.late_pictures import late_blocks

        view = row_view(row, self.style)
        chat = messages(row, self.style, view, late_blocks(view, row_volume(row)))
        told = {} if self.style.dataset is None else {"dataset": self.style.dataset}
        return {
            "prompt": [message for message in chat if message["role"] != "assistant"],
            "view": view,
        } | told


def grade_reward(
    completions: Sequence[Any], question_id: Sequence[int], grades: Sequence[Any], **columns: Any
) -> list[float]:
    """The share of a question's attributes that an answer grades right; 0 for what cannot be read.

    Most grades are 0, so an answer of 0 everywhere earns much: see `RareGradeReward`.

    Args:
        completions: Texts, or lists of messages.
        question_id: The question of each.
        grades: The true grades of each, as in rows.

    Returns:
        A value from 0 to 1 for each.

    Examples:
        >>> from reasonknee_hf.train import grade_reward, target_text
        >>> grade_reward([target_text(row)], [row["question_id"]], [row["grades"]])
        [1.0]
    """
    rewards = []
    readings = _readings(completions, question_id, columns)
    for read, truth in zip((reading.grades for reading in readings), grades, strict=True):
        wanted = {item["attribute"]: int(item["grade"]) for item in truth or ()}
        right = sum(read.get(name) == grade for name, grade in wanted.items())
        rewards.append(right / len(wanted) if wanted else 0.0)
    return rewards


def ordinal_reward(
    completions: Sequence[Any], question_id: Sequence[int], grades: Sequence[Any], **columns: Any
) -> list[float]:
    """As `grade_reward`, where ordinal grades that are near earn 1 less their distance, in shares of the scale.

    Codes without an order and yes-or-no grades earn all or nothing.

    Examples:
        >>> from reasonknee_hf.train import ordinal_reward, target_text
        >>> ordinal_reward([target_text(row)], [row["question_id"]], [row["grades"]])
        [1.0]
    """
    rewards = []
    readings, asked = _readings(completions, question_id, columns), _datasets(completions, columns)
    for reading, number, truth, dataset in zip(readings, question_id, grades, asked, strict=True):
        read = reading.grades
        wanted = {item["attribute"]: int(item["grade"]) for item in truth or ()}
        nearness = lessons_of(dataset).nearness
        near = [nearness(int(number), name, read.get(name), grade) for name, grade in wanted.items()]
        rewards.append(sum(near) / len(near) if near else 0.0)
    return rewards


class RareGradeReward:
    """`grade_reward` in which a right grade earns the more the rarer it is, so that no constant answer pays.

    A grade that `n` training rows have, where the rarest one of that attribute that occurs has `least`, earns
    `least / n`: whoever always says the most frequent grade earns as much as whoever always says the rarest.

    Args:
        counts: How many rows have each grade, by question and attribute, as `bench.count_grades` makes it.

    Examples:
        >>> from reasonknee_hf.train import RareGradeReward, target_text
        >>> reward = RareGradeReward({row["question_id"]: {"size": [30, 10, 0, 0]}})
        >>> reward(["{}"], [row["question_id"]], [row["grades"]])
        [0.0]
    """

    def __init__(self, counts: Mapping[int, Mapping[str, Sequence[int]]]) -> None:
        self.counts = counts
        self.__name__ = "rare_grade_reward"  # trainers log rewards by this name

    def __call__(
        self, completions: Sequence[Any], question_id: Sequence[int], grades: Sequence[Any], **columns: Any
    ) -> list[float]:
        """A value from 0 to 1 for each completion."""
        rewards = []
        readings = _readings(completions, question_id, columns)
        for reading, number, truth in zip(readings, question_id, grades, strict=True):
            read = reading.grades
            wanted = {item["attribute"]: int(item["grade"]) for item in truth or ()}
            earned = [
                self._worth(number, name, grade) for name, grade in wanted.items() if read.get(name) == grade
            ]
            rewards.append(sum(earned) / len(wanted) if wanted else 0.0)
        return rewards

    def _worth(self, number: int, name: str, grade: int) -> float:
        counts = self.counts.get(int(number), {}).get(name, ())
        n = counts[grade] if grade < len(counts) else 0
        return min(filter(None, counts)) / n if n else 1.0


def format_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """1 for thoughts, which are not empty, and one JSON object, in the tags of the target `think`; else 0.

    Examples:
        >>> from reasonknee_hf.train import format_reward
        >>> format_reward(['<think>Bright.</think><answer>{"size": 1}</answer>', '{}'])
        [1.0, 0.0]
    """
    return [float(_is_formed(completion_text(completion))) for completion in completions]


def _is_formed(text: str) -> bool:
    thought = _THOUGHT.match(text)
    answer = _ANSWER.fullmatch(text, thought.end()) if thought else None
    try:
        return answer is not None and isinstance(json.loads(answer[1]), dict)
    except ValueError:
        return False


def repetition_reward(completions: Sequence[Any], words: int = 12, **_: Any) -> list[float]:
    """0 less the share of stretches of so many words that repeat an earlier one; near -1 for text that goes round.

    Examples:
        >>> from reasonknee_hf.train import repetition_reward
        >>> repetition_reward(["one two " * 20, "short"], words=2)
        [-0.9487179487179487, 0.0]
    """
    rewards = []
    for completion in completions:
        said = completion_text(completion).split()
        stretches = [tuple(said[start : start + words]) for start in range(len(said) - words + 1)]
        rewards.append(len(set(stretches)) / len(stretches) - 1 if stretches else 0.0)
    return rewards


def iou_reward(
    completions: Sequence[Any],
    question_id: Sequence[int],
    bbox: Sequence[Any],
    **columns: Any,
) -> list[float]:
    """The 3D IoU of an answer's box with the true one; 0 without a box that can be read.

    The box is taken in voxels. For answers in the coordinates of the view use `ViewIou`.

    Args:
        completions: Texts, or lists of messages.
        question_id: The question of each.
        bbox: The true box of each in voxels, ends inclusive; `None` gives 0.

    Returns:
        A value from 0 to 1 for each.

    Examples:
        >>> from reasonknee_hf.train import iou_reward, target_text
        >>> iou_reward([target_text(row, "box_grades")], [row["question_id"]], [row["bbox"]])
        [1.0]
    """
    readings = _readings(completions, question_id, columns)
    return [_iou(reading.box, truth) for reading, truth in zip(readings, bbox, strict=True)]


class ViewIou:
    """`iou_reward` for a model that answers in the coordinates of what it sees.

    Args:
        scale: The scale of its numbers, see [`View.to_voxels`].

    Examples:
        >>> from reasonknee_hf.train import ViewIou
        >>> ViewIou(scale="thousandths").scale
        'thousandths'
    """

    def __init__(self, scale: Scale = "pixels") -> None:
        self.scale = scale
        self.__name__ = "view_iou_reward"  # trainers log rewards by this name

    def __call__(
        self,
        completions: Sequence[Any],
        question_id: Sequence[int],
        bbox: Sequence[Any],
        view: Sequence[View],
        **columns: Any,
    ) -> list[float]:
        """As `iou_reward`; `view` is the layout of what the model saw, from `prompt_stream`."""
        rewards = []
        for reading, truth, seen in zip(
            _readings(completions, question_id, columns), bbox, view, strict=True
        ):
            box = answer_box(reading, seen, self.scale)
            rewards.append(_iou(box, truth))
        return rewards


def answer_box(reading: Reading, view: View, scale: Scale = "pixels") -> list[int] | None:
    """The voxel box of an answer in the coordinates of a view; `None`, and a line in the log, if it has
    none."""
    if reading.box is None:
        return None
    try:
        return view.to_voxels(reading.box, scale=scale)
    except RecordError as error:
        logger.warning("an answer counts as one without a box: %s", error)
        return None


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or messages with text or blocks of text."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list):
        raise OptionError(f"a completion is a text or a list of messages, not a {type(completion).__name__}")
    parts = []
    for message in completion:
        content = message["content"] or ""  # some templates give null for an empty answer
        blocks = [{"text": content}] if isinstance(content, str) else content
        parts += [block["text"] for block in blocks if "text" in block]
    return "".join(parts)


def _datasets(completions: Sequence[Any], columns: Mapping[str, Any]) -> Sequence[str | None]:
    """Short names of the datasets that are asked about: the column of prompts that name theirs."""
    named: Sequence[str | None] = columns.get("dataset") or [None] * len(completions)
    return named


def _readings(
    completions: Sequence[Any], question_id: Sequence[int | None], columns: Mapping[str, Any]
) -> list[Reading]:
    """What answers say, each read as its dataset does."""
    asked = zip(completions, question_id, _datasets(completions, columns), strict=True)
    return [_read(completion, number, dataset) for completion, number, dataset in asked]


def _read(completion: Any, question_id: int | None, dataset: str | None) -> Reading:
    text = completion_text(completion)
    if "<think>" in text and not _THOUGHT.match(text):
        return Reading(
            "no_json"
        )  # thoughts that are empty or never end earn nothing, whatever stands in them
    return lessons_of(dataset).read(text, question_id)


def _iou(box: Sequence[float] | None, truth: Sequence[int] | None) -> float:
    return 0.0 if box is None or truth is None else float(iou(box, truth))
