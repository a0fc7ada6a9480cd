"""Answers of a model as the lines of a prediction file, which the scorer of the bench reads."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from reasonknee_hf.errors import RecordError
from reasonknee_hf.prompting.lessons import lessons_of
from reasonknee_hf.prompting.view import Scale
from reasonknee_hf.train.collator import Reference

logger = logging.getLogger(__name__)

_LIST = re.compile(r"\[[^\[\]{}]*\]")


def prediction_line(
    reference: Reference, text: str, *, scale: Scale | None = None, dataset: str | None = None
) -> dict[str, Any]:
    """One line of a prediction file: `{"id", "prediction"}`.

    Args:
        reference: What the batch keeps about the row, from `batch.references`.
        text: What the model answered.
        scale: For a model that answers in the coordinates of its view, their scale, see [`View.to_voxels`]:
            the numbers of its box are replaced by those in voxels, and nothing else of the text is touched.
            By default the text is kept as it is, boxes in voxels.
        dataset: Short name of the dataset; the first one that is known by default.
    """
    if scale is not None:
        box = lessons_of(dataset).read(text, reference.question_id).box
        text = _in_voxels(reference, text, box, scale)
    return {"id": reference.id, "prediction": text}


def _in_voxels(reference: Reference, text: str, box: tuple[float, ...] | None, scale: Scale) -> str:
    if box is None:
        return text
    try:
        voxels = json.dumps(reference.view.to_voxels(box, scale=scale))
    except RecordError as error:
        logger.warning("%s: its box is left out: %s", reference.id, error)
        voxels = "null"
    for match in reversed(list(_LIST.finditer(text))):
        if _numbers(match.group()) == box:
            return text[: match.start()] + voxels + text[match.end() :]
    logger.warning(
        "%s: its box is not a plain list of numbers and stays in the coordinates of the view", reference.id
    )
    return text


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        return tuple(float(number) for number in json.loads(text))
    except (ValueError, TypeError):
        return None
