"""One self-contained HTML page to leaf through the rows of a volume: no network, no other file.

The volume travels as one picture of all its sagittal slices (JPEG), the labels as another (PNG, exact). The
page (`page.html`) reads the voxels back from them, and cuts coronal and axial pictures itself.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np

from reasonknee_hf.errors import ExtraMissingError, RecordError
from reasonknee_hf.look.figures import BOX_COLOUR, COLOURS, OTHERS_COLOUR
from reasonknee_hf.look.planes import PLANES, Scene, scene
from reasonknee_hf.volumes import boxes, views
from reasonknee_hf.volumes.orientation import Array
from reasonknee_hf.volumes.volume import KneeVolume


def case_page(
    volume: KneeVolume,
    *,
    mask: KneeVolume | None = None,
    box: boxes.Box | None = None,
    title: str = "",
    question: str = "",
    answer: str = "",
    text: str = "",
    before: Sequence[Mapping[str, Any]] = (),
    after: Sequence[Mapping[str, Any]] = (),
    quality: int = 88,
    embedded: bool = False,
) -> str:
    """Makes the page.

    Args:
        volume, mask, box, title, question, answer, text: as in `reasonknee_hf.look.figures.draw_case`.
        before, after: other rows of the same volume to step to, each with any of `box`, `title`, `question`, `answer`
            and `text`. The page says it of a box that does not fit.
        quality: of the JPEG, 1 to 95. A volume of 160x384x384 gives a page of 5 to 10 MB.
        embedded: for a frame of another page, which says what is to be seen: it shows no texts, says `{asked: "row"}`
            when it is ready and `{asked: "next"}` or `"previous"` at the keys for it, and goes where it is told by
            `postMessage({row, boxes: [{box, name, colour}]})`; `row` counts in `before`, the row and `after`, and
            boxes are as rows have them.

    Returns:
        The page as HTML text.

    Raises:
        ExtraMissingError: Pillow is not installed.
        GridMismatchError, RecordError: mask or box do not fit the image.
    """
    shown = scene(volume, mask, box)
    own = {"box": box, "title": title, "question": question, "answer": answer, "text": text}
    facts = _facts(shown, quality) | {
        "cases": [_case(shown, **case) for case in (*before, own, *after)],
        "first": len(before),
        "embedded": embedded,
    }
    # "<" inside the data could close the script element early, or open another
    data = json.dumps(facts, ensure_ascii=True).replace("<", "\\u003c")
    values = {"TITLE": html.escape(title), "DATA": data}
    template = files("reasonknee_hf.look").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub("@(TITLE|DATA)@", lambda found: values[found[1]], template)


def row_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a decoded row beside its volume and mask: keywords of [`case_page`] and of `draw_case`."""
    name = row.get("id") or row.get("scan_id") or "row"
    choices = [f"{one['letter']}: {one['text']}" for one in row.get("options") or []]
    grades = [f"{one['lesion']}, {one['attribute']}: {one['grade']}" for one in row.get("grades") or []]
    return {
        "box": row.get("bbox"),
        "title": ", ".join(str(part) for part in (name, row.get("structure"), row.get("subregion")) if part),
        "question": "\n".join([row.get("prompt") or row.get("question") or "", *choices]),
        "answer": "\n".join(grades) or row.get("answer") or "",
        "text": row.get("cot") or "",
    }


def _case(
    shown: Scene,
    *,
    box: boxes.Box | None = None,
    title: str = "",
    question: str = "",
    answer: str = "",
    text: str = "",
) -> dict[str, Any]:
    """What the page is told of one row."""
    texts = [("Question", question), ("Answer", answer), ("Reasoning", text)]
    try:
        around = shown.with_box(box)
    except RecordError as error:
        around = shown.with_box(None)
        texts.insert(0, ("Box", str(error)))
    ids = _codes(shown)
    return {
        "title": title,
        "box": around.box,
        "rowBox": around.row_box,
        "start": list(around.center),
        "ranked": [ids[number] for number in around.ranked_ids()],
        "texts": [[heading, body.strip()] for heading, body in texts if body.strip()],
    }


def _facts(shown: Scene, quality: int) -> dict[str, Any]:
    """What the page is told of the volume."""
    codes = _codes(shown)
    window = shown.window
    low, high = (float(end) for end in (window.base.min(), (window.base + window.range).max()))
    return {
        "shape": list(shown.array.shape),
        "spacing": list(shown.spacing),
        "affine": shown.change.affine(shown.volume.affine, shown.volume.shape).tolist(),
        "axes": [list(shown.numbers(axis)) for axis in range(3)],
        "window": [low, high if math.isfinite(high) else low + 1],
        "boxColour": BOX_COLOUR,
        "othersColour": OTHERS_COLOUR,
        "palette": list(COLOURS),
        "planes": [
            {"name": name, "axis": axis, "rows": rows, "columns": columns, "words": list(words)}
            for name, axis, rows, columns, words in PLANES
        ],
        "columns": _tile_columns(shown.array.shape),
        "grey": _picture(_tiled(views.frames(shown.array, window)), "JPEG", quality=quality),
        "labels": None if shown.labels is None else _picture(_label_sheet(shown.labels, codes), "PNG"),
        "structures": [
            {"code": code, "name": shown.names.get(number, str(number))} for number, code in codes.items()
        ],
    }


def _codes(shown: Scene) -> dict[int, int]:
    """The number by which the page knows each label: itself, or its rank where labels are beyond two bytes."""
    ids = sorted(shown.names)
    return {number: number if ids[-1] < 1 << 16 else rank for rank, number in enumerate(ids, start=1)}


def _label_sheet(labels: Array, codes: Mapping[int, int]) -> Array:
    """All labels in one colour picture, exactly: the low byte of their codes in red, the high one in green."""
    known = np.array([0, *codes])
    coded = np.array([0, *codes.values()])[np.searchsorted(known, labels)]
    parts = [_tiled((coded >> shift & 255).astype(np.uint8)) for shift in (0, 8)]
    return np.stack([*parts, np.zeros_like(parts[0])], axis=-1)


def _tile_columns(shape: tuple[int, ...]) -> int:
    """How many slices lie side by side, so that the picture is about square: browsers limit either side."""
    count, width, height = shape
    return max(1, min(count, round(math.sqrt(count * height / width))))


def _tiled(slices: views.Frames) -> views.Frames:
    """All slices in one picture, row by row; a slice (P, I) stands upright as (I, P)."""
    count, width, height = slices.shape
    columns = _tile_columns(slices.shape)
    rows = -(-count // columns)
    sheet = np.zeros((rows, height, columns, width), dtype=np.uint8)
    for index in range(count):
        sheet[index // columns, :, index % columns] = slices[index].T
    return sheet.reshape(rows * height, columns * width)


def _picture(pixels: views.Frames, kind: str, **options: Any) -> str:
    """A picture as a data URL."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ExtraMissingError("the page needs Pillow: pip install 'reasonknee_hf[viz]'") from error
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
