"""Rewards out of the benchmark's own reading of answers, for trainers of TRL that sample answers (GRPO
and its kind)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from reasonknee_hf.bench.answer_reading import Reading, read_answer
from reasonknee_hf.bench.box_reading import iou
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.train.chats import (
    Style,
    make_style,
    messages,
    picture_blocks,
    row_view,
    row_volume,
)
from reasonknee_hf.train.recipes import get_recipe
from reasonknee_hf.train.view import Scale, View

logger = logging.getLogger(__name__)

REWARD_COLUMNS = ("id", "question_id", "bbox", "grades")
"""Columns of a row that rewards need beside the prompt."""


def prompt_stream(ds: datasets.IterableDataset, **options: Any) -> datasets.IterableDataset:
    """A stream of prompts for trainers that sample answers: `prompt`, what rewards need, and the `view`.

    Trainers of TRL take images in prompts, no videos, so videos become one image a frame.

    Args:
        ds: A stream of rows.
        options: Those of [`~reasonknee_hf.train.chats.Style`]; `target` says what is asked for, and
            is not part of the prompt.
    """
    style = make_style({"view": "planes", **options})
    if style.recipe.kind == "video":
        style = make_style({**options, "view": get_recipe(style.view, kind="images")})
    # After a transform nothing but a row tells the columns.
    names = ds.column_names if ds.column_names is not None else list(next(iter(ds.take(1)), ()))
    return ds.map(_Prompt(style), remove_columns=[name for name in names if name not in REWARD_COLUMNS])


class _Prompt:
    """Makes the prompt of a row; a class, so that it pickles for workers."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        view = row_view(row, self.style)
        chat = messages(row, self.style, view, picture_blocks(view, view.draw(row_volume(row))))
        return {"prompt": [message for message in chat if message["role"] != "assistant"], "view": view}


def grade_reward(
    completions: Sequence[Any], question_id: Sequence[int], grades: Sequence[Any], **_: Any
) -> list[float]:
    """The share of a question's attributes that an answer grades right; 0 for what cannot be read.

    Args:
        completions: Texts, or lists of messages.
        question_id: The question of each.
        grades: The true grades of each, as in rows.

    Returns:
        A value from 0 to 1 for each.
    """
    rewards = []
    for completion, number, truth in zip(completions, question_id, grades, strict=True):
        read = _read(completion, number).grades
        wanted = {item["attribute"]: int(item["grade"]) for item in truth or ()}
        right = sum(read.get(name) == grade for name, grade in wanted.items())
        rewards.append(right / len(wanted) if wanted else 0.0)
    return rewards


def iou_reward(
    completions: Sequence[Any],
    question_id: Sequence[int],
    bbox: Sequence[Any],
    **_: Any,
) -> list[float]:
    """The 3D IoU of an answer's box with the true one; 0 without a box that can be read.

    The box is taken in voxels. For answers in the coordinates of the view use `ViewIou`.

    Args:
        completions: Texts, or lists of messages.
        question_id: The question of each.
        bbox: The true box of each in voxels, ends inclusive; `None` gives 0.

    Returns:
        A value from 0 to 1 for each.
    """
    boxes = [_read(completion, n).box for completion, n in zip(completions, question_id, strict=True)]
    return [_iou(box, truth) for box, truth in zip(boxes, bbox, strict=True)]


class ViewIou:
    """`iou_reward` for a model that answers in the coordinates of what it sees.

    Args:
        scale: The scale of its numbers, see [`View.to_voxels`].
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
        **_: Any,
    ) -> list[float]:
        """As `iou_reward`; `view` is the layout of what the model saw, from `prompt_stream`."""
        rewards = []
        for completion, number, truth, seen in zip(completions, question_id, bbox, view, strict=True):
            box = answer_box(_read(completion, number), seen, self.scale)
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
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        parts += [block["text"] for block in blocks if "text" in block]
    return "".join(parts)


def _read(completion: Any, question_id: int | None) -> Reading:
    question = None if question_id is None else QUESTIONS.get(int(question_id))
    if question is None:
        return Reading("unknown_question")
    return read_answer(completion_text(completion), question)


def _iou(box: Sequence[float] | None, truth: Sequence[int] | None) -> float:
    return 0.0 if box is None or truth is None else float(iou(box, truth))
