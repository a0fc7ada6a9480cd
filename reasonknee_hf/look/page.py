"""One self-contained HTML page to leaf through a case: a slider for each plane, no network, no other file.

The volume travels as one picture of all its sagittal slices (JPEG), the labels as another (PNG, exact). The
page reads the voxels back from them, and cuts coronal and axial pictures itself.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from io import BytesIO
from typing import Any

import numpy as np

from reasonknee_hf.errors import ExtraMissingError
from reasonknee_hf.look.figures import BOX_COLOUR, COLOURS, OTHERS_COLOUR
from reasonknee_hf.look.page_template import TEMPLATE
from reasonknee_hf.look.planes import PLANES, Scene, scene
from reasonknee_hf.volumes import boxes, views
from reasonknee_hf.volumes.volume import KneeVolume


def case_page(
    volume: KneeVolume,
    *,
    mask: KneeVolume | None = None,
    box: boxes.Box | None = None,
    title: str = "",
    question: str = "",
    grades: str = "",
    text: str = "",
    quality: int = 88,
) -> str:
    """Makes the page.

    Args:
        volume, mask, box, title, question, grades, text: as in `reasonknee_hf.look.figures.draw_case`.
        quality: of the JPEG, 1 to 95. A volume of 160x384x384 gives a page of 5 to 10 MB.

    Returns:
        The page as HTML text.

    Raises:
        ExtraMissingError: Pillow is not installed.
        GridMismatchError, RecordError: mask or box do not fit the image.
    """
    shown = scene(volume, mask, box)
    paragraphs = "".join(
        f"<h2>{heading}</h2><p>{html.escape(body.strip())}</p>"
        for heading, body in (("Question", question), ("Grades", grades), ("Reasoning", text))
        if body.strip()
    )
    # "</" inside the data could close the script element early
    data = json.dumps(_facts(shown, quality), ensure_ascii=True).replace("</", "<\\/")
    values = {"TITLE": html.escape(title), "PARAGRAPHS": paragraphs, "DATA": data}
    return re.sub("@(TITLE|PARAGRAPHS|DATA)@", lambda found: values[found[1]], TEMPLATE)


def _facts(shown: Scene, quality: int) -> dict[str, Any]:
    """What the script of the page is told."""
    window = shown.window
    ranked = shown.ranked_ids()
    colours = dict(zip(ranked, COLOURS, strict=False))
    return {
        "shape": list(shown.array.shape),
        "spacing": list(shown.spacing),
        "box": shown.box,
        "boxColour": BOX_COLOUR,
        "othersColour": OTHERS_COLOUR,
        "start": list(shown.center),
        "planes": [
            {"name": name, "axis": axis, "rows": rows, "columns": columns, "words": list(words)}
            for name, axis, rows, columns, words in PLANES
        ],
        "columns": _tile_columns(shown.array.shape),
        "grey": _picture(_tiled(views.frames(shown.array, window)), "JPEG", quality=quality),
        "labels": None if shown.labels is None else _picture(_tiled(_as_bytes(shown.labels)), "PNG"),
        "structures": [
            {
                "id": number,
                "name": shown.names.get(number, str(number)),
                "colour": colours.get(number, OTHERS_COLOUR),
            }
            for number in [*ranked, *sorted(set(shown.names) - set(ranked))]
        ],
    }


def _as_bytes(labels: Any) -> views.Frames:
    """Labels as they fit into a grey picture. Ids above 255, which no known release has, are not drawn."""
    return np.where(labels > 255, 0, labels).astype(np.uint8)


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
