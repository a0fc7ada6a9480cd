"""A forest plot of differences between models: one line a pair and figure, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reasonknee_hf.bench.comparison import TITLES
from reasonknee_hf.bench.plots import DARK, GREY, RED, blank_figure, save

_ROW = 0.34  # inches


def draw_forest(data: Mapping[str, Any], path: str | Path, *, dpi: int = 110) -> Path:
    """Draws what [`compare`][reasonknee_hf.bench.comparison.compare] found.

    The square is the difference, the line its 95 % interval, the grey band what could not have been told from none;
    what stays significant after Holm's correction is red.

    Args:
        data: From `compare`.
        path: Where to write the picture; its ending chooses the format, PNG without one.
        dpi: Dots per inch.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        OptionError: Pictures are not written in that format.
    """
    rows = data["differences"]
    figure = blank_figure((11.0, 1.9 + _ROW * max(len(rows), 1)))
    axes = figure.subplots()
    figure.subplots_adjust(
        left=0.4, right=0.97, top=1 - 0.95 / figure.get_figheight(), bottom=0.5 / figure.get_figheight()
    )
    for place, row in enumerate(rows):
        value, least = row["micro"]["value"], row["least_detectable"]
        if value is None:
            continue
        if least is not None:
            axes.plot([-least, least], [place, place], color="#e6e8ec", linewidth=9, solid_capstyle="butt")
        colour = RED if row["p_holm"] is not None and row["p_holm"] < 0.05 else DARK
        if row["micro"]["ci"] is not None:
            axes.plot(row["micro"]["ci"], [place, place], color=colour, linewidth=1.8)
        axes.plot([value], [place], "s", color=colour, markersize=6)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{row['a']} - {row['b']}, {TITLES[row['figure']]}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("difference, 95 % interval over patients; grey: below the least detectable difference")
    subset = "" if data["subset"] is None else f" (SUBSET: {data['subset']})"
    figure.text(
        0.02,
        1 - 0.4 / figure.get_figheight(),
        f"{data['benchmark']}: comparison{subset}",
        fontsize=14,
        weight="bold",
    )
    return save(figure, path, dpi)
