"""One picture of a case: three planes through the box, outlines of structures, question and answer."""

from __future__ import annotations

import base64
import html
import textwrap
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee_hf.errors import ExtraMissingError, OptionError, ReasonKneeError
from reasonknee_hf.look.planes import PLANES, Scene, scene
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.volume import KneeVolume

# Colours that stay apart for readers with any common colour vision, on grey (after Okabe and Ito).
COLOURS = ("#56b4e9", "#e69f00", "#00d09a", "#f06eaa", "#f0e442", "#9d8df1", "#ff7043", "#c8e6c9")
BOX_COLOUR = "#ff3b30"
OTHERS_COLOUR = "#8a8a8a"
_WIDTH = 13.0  # inches
_CHARACTERS = 170  # of text in one line of that width, at the size used
_LINE = 0.19  # inches a line of text takes
_LEGEND_COLUMNS = 5


def draw_case(
    volume: KneeVolume,
    *,
    mask: KneeVolume | None = None,
    box: boxes.Box | None = None,
    title: str = "",
    question: str = "",
    answer: str = "",
    text: str = "",
    out: str | Path | None = None,
) -> bytes:
    """Draws three planes through the middle of a box, in true proportions, and a closer look at each below.

    Args:
        volume: the image.
        mask: labels; the largest structures in and around the box get a colour and a name, the others a grey
            outline.
        box: slice-first, as published; the middle of the volume is shown without one.
        title: one line above.
        question, answer, text: paragraphs below, as far as they are not empty; long ones are wrapped, never
            cut.
        out: where to write the picture; its ending chooses the format.

    Returns:
        The picture as PNG bytes.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        GridMismatchError, RecordError: mask or box do not fit the image.
        OptionError: pictures are not written in the format of `out`.
    """
    kind = None if out is None else picture_format(out)
    shown = scene(volume, mask, box)
    figure = _figure(shown, title, [("Question", question), ("Answer", answer), ("Reasoning", text)])
    picture = _written(figure, "png", 110)
    if kind is not None:
        Path(out or "").write_bytes(picture if kind == "png" else _written(figure, kind, 110))
    return picture


def picture_format(out: str | Path) -> str:
    """The format that the ending of a file's name chooses; `png` without one.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        OptionError: pictures are not written in that format.
    """
    ending = Path(out).suffix[1:].lower() or "png"
    known = sorted(_new_figure(1.0, 1.0).canvas.get_supported_filetypes())
    if ending not in known:
        raise OptionError(f"{out}: pictures are not written as {ending!r}; use one of {', '.join(known)}")
    return ending


def draw_volume(volume: KneeVolume) -> bytes:
    """Three planes through the middle of a volume, or of the labels of a mask, as PNG bytes; what notebooks show."""
    shown = scene(volume, volume if volume.mask else None)
    if volume.mask:  # through the middle of what is there
        shown = shown.with_box(boxes.box_of(volume.array()))
    colours = _colours(shown)
    handles = _legend(replace(shown, box=None), colours)
    legend = 0.3 * -(-len(handles) // _LEGEND_COLUMNS)
    figure = _new_figure(9.0, 3.4 + legend)
    for plane, axes in enumerate(figure.subplots(1, 3)):
        _draw_plane(axes, replace(shown, box=None), plane, colours, filled=volume.mask, at=shown.center)
    base = legend / (3.4 + legend)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.92, bottom=base + 0.03, wspace=0.06)
    if handles:
        figure.legend(handles=handles, loc="lower left", ncols=_LEGEND_COLUMNS, fontsize=8, frameon=False)
    return _written(figure, "png", 80)


def _written(figure: Any, kind: str, dpi: int) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, facecolor="white")
    return buffer.getvalue()


def _new_figure(width: float, height: float) -> Any:
    """A figure outside of pyplot, so that nothing of the caller's plots or backend is touched."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ExtraMissingError("pictures need matplotlib: pip install 'reasonknee_hf[viz]'") from error
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _figure(shown: Scene, title: str, paragraphs: list[tuple[str, str]]) -> Any:
    if shown.row_box is not None:
        title = f"{title}, box {shown.row_box}".removeprefix(", ")
    lines = _wrapped(paragraphs)
    colours = _colours(shown)
    handles = _legend(shown, colours)
    extents = [shown.extent(plane) for plane in range(3)]
    planes = (
        0.94 * _WIDTH / sum(width / height for height, width in extents)
    )  # inches, so that the row is filled
    rows = [planes, 0.75 * planes] if shown.box is not None else [planes]
    head, legend = 0.65, 0.23 * -(-len(handles) // _LEGEND_COLUMNS) + 0.1
    text = _LINE * len(lines) + 0.1
    height = head + sum(rows) + 0.4 * len(rows) + legend + text
    figure = _new_figure(_WIDTH, height)
    grid = figure.add_gridspec(
        len(rows), 3, left=0.015, right=0.985, top=1 - head / height, bottom=(text + legend + 0.15) / height,
        wspace=0.03, hspace=0.1, height_ratios=rows, width_ratios=[width / height for height, width in
        extents],
    )  # fmt: skip
    figure.text(0.02, 1 - 0.3 / height, title, fontsize=13, fontweight="bold", va="center")
    for plane in range(3):
        _draw_plane(figure.add_subplot(grid[0, plane]), shown, plane, colours)
        if shown.box is not None:
            axes = figure.add_subplot(grid[1, plane])
            _draw_plane(axes, shown, plane, colours)
            _zoom(axes, shown, plane)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.01, (text + legend) / height),
        ncols=_LEGEND_COLUMNS, fontsize=10, frameon=False, handlelength=1.4, columnspacing=1.6,
        borderaxespad=0, borderpad=0.1,
    )  # fmt: skip
    for number, (line, bold) in enumerate(lines):
        weight = "bold" if bold else "normal"
        y = (text - _LINE * (number + 0.7)) / height
        figure.text(0.02, y, line, fontsize=10, fontweight=weight, va="center", parse_math=False)
    return figure


def _wrapped(paragraphs: list[tuple[str, str]]) -> list[tuple[str, bool]]:
    """Lines of text, and whether each is a heading."""
    lines: list[tuple[str, bool]] = []
    for heading, body in paragraphs:
        if body.strip():
            lines.append((heading, True))
            for paragraph in body.strip().splitlines():
                lines += [(line, False) for line in textwrap.wrap(paragraph, _CHARACTERS) or [""]]
    return lines


def _colours(shown: Scene) -> dict[int, str]:
    """The colours of the structures that get one."""
    return dict(zip(shown.ranked_ids(), COLOURS, strict=False))


def _draw_plane(
    axes: Any, shown: Scene, plane: int, colours: dict[int, str], *, filled: bool = False, at: Any = None
) -> None:
    """One plane with outlines and box, or with the labels as areas of their colours."""
    _, axis, rows, columns, words = PLANES[plane]
    index = (at or shown.center)[axis]
    height, width = shown.extent(plane)
    labels = shown.label_picture(plane, index)
    place = {"extent": (0, width, height, 0)}
    if filled and labels is not None:
        axes.imshow(_areas(labels, colours), interpolation="nearest", **place)
    else:
        grey = shown.picture(plane, index)
        axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="bilinear", **place)
    axes.set(xticks=[], yticks=[], facecolor="black")
    if labels is not None and not filled:
        _outlines(axes, labels, shown.spacing[rows], shown.spacing[columns], colours)
    edges = shown.box_edges(plane)
    if edges is not None:
        from matplotlib.patches import Rectangle

        top, bottom, left, right = edges
        axes.add_patch(
            Rectangle(
                (left, top), right - left, bottom - top, fill=False, edgecolor=BOX_COLOUR, linewidth=1.6
            )
        )
    axes.set_title(shown.caption(plane, index), fontsize=10, pad=3)
    _compass(axes, words)


def _areas(labels: Any, colours: dict[int, str]) -> Any:
    """Labels as colours, (rows, columns, 3); those without one of their own in grey."""
    from matplotlib.colors import to_rgb

    picture = np.zeros((*labels.shape, 3))
    picture[labels != 0] = to_rgb(OTHERS_COLOUR)
    for number, colour in colours.items():
        picture[labels == number] = to_rgb(colour)
    return picture


def _compass(axes: Any, words: tuple[str, str, str, str]) -> None:
    from matplotlib.patheffects import withStroke

    edge = [withStroke(linewidth=2.5, foreground="black")]  # else they are lost on bright bone
    left, right, top, bottom = words
    for word, x, y in ((left, 0.04, 0.5), (right, 0.96, 0.5), (top, 0.5, 0.965), (bottom, 0.5, 0.035)):
        axes.text(
            x, y, word, transform=axes.transAxes, color="#ffe9a8", fontsize=10, ha="center", va="center",
            path_effects=edge,
        )  # fmt: skip


def _outlines(axes: Any, labels: Any, row_mm: float, column_mm: float, colours: dict[int, str]) -> None:
    y = (np.arange(labels.shape[0]) + 0.5) * row_mm
    x = (np.arange(labels.shape[1]) + 0.5) * column_mm
    for number in np.unique(labels):
        where = labels == number
        rows, columns = (_around(where.any(axis=axis)) for axis in (1, 0))
        part = where[rows, columns]
        if number != 0 and min(part.shape) > 1:
            colour = colours.get(int(number))
            axes.contour(
                x[columns], y[rows], part.astype(float), levels=[0.5],
                colors=[colour or OTHERS_COLOUR], linewidths=[1.3 if colour else 0.7],
            )  # fmt: skip


def _around(hit: Any) -> slice:
    """From one before the first to one behind the last true value: contours of small parts take a fraction."""
    found = np.flatnonzero(hit)
    return slice(max(int(found[0]) - 1, 0), int(found[-1]) + 2)


def _zoom(axes: Any, shown: Scene, plane: int, margin_mm: float = 8.0) -> None:
    """Shows the box and its surroundings, in the proportions of the whole picture."""
    edges = shown.box_edges(plane)
    assert edges is not None
    top, bottom, left, right = edges
    height, width = shown.extent(plane)
    scale = max((bottom - top + 2 * margin_mm) / height, (right - left + 2 * margin_mm) / width)
    x, y = (left + right) / 2, (top + bottom) / 2
    axes.set_xlim(x - scale * width / 2, x + scale * width / 2)
    axes.set_ylim(y + scale * height / 2, y - scale * height / 2)
    axes.set_title(f"{scale * width:.0f} x {scale * height:.0f} mm around the box", fontsize=9, pad=3)


def _legend(shown: Scene, colours: dict[int, str]) -> list[Any]:
    """What each colour stands for."""
    from matplotlib.lines import Line2D

    entries = [(BOX_COLOUR, "box")] if shown.box is not None else []
    for number, colour in colours.items():
        name = shown.names.get(number, str(number))
        entries.append((colour, name if name != str(number) else f"id {number}, not in the label table"))
    if len(shown.names) > len(colours):
        entries.append((OTHERS_COLOUR, f"{len(shown.names) - len(colours)} other structures"))
    return [Line2D([], [], color=colour, linewidth=2, label=name) for colour, name in entries]


def volume_html(volume: KneeVolume) -> str:
    """Facts of the header and a picture of three planes, as HTML without outside references.

    A notebook must show something also for a volume that cannot be read: the message of the error then.
    """
    from reasonknee_hf.look.figures import draw_volume

    lines = [repr(volume)]
    picture = ""
    try:
        spacing = " x ".join(f"{edge:.3g}" for edge in volume.spacing)
        shape = " x ".join(str(length) for length in volume.shape)
        lines.append(f"{shape} voxels of {spacing} mm, axes {volume.axcodes}, {volume.header.dtype}")
        lines += volume.header.notes
        encoded = base64.b64encode(draw_volume(volume)).decode()
        picture = f'<img alt="three planes" src="data:image/png;base64,{encoded}">'
    except ExtraMissingError as error:
        lines.append(str(error))
    except (ReasonKneeError, OSError) as error:
        lines.append(f"{type(error).__name__}: {error}")
    return "<div>" + "".join(f"<div>{html.escape(line)}</div>" for line in lines) + picture + "</div>"
