"""One picture of a run: accuracy against the prior, IoU against correctness, and confusion matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.errors import ExtraMissingError
from reasonknee_hf.look.figures import picture_format

BLUE, DARK, GREY, RED = "#3b6fb6", "#1f2a44", "#8a8f98", "#c44e52"
_BINS = (0.0, 1e-9, 0.1, 0.25, 0.5, 0.75, 1.0 + 1e-9)
_BIN_NAMES = ("0", "0-0.1", "0.1-0.25", "0.25-0.5", "0.5-0.75", "0.75-1")
_COLUMNS, _SMALL = 6, 4  # matrices side by side; most grades of a small one
_WIDTH, _TOP, _ROW = 14.0, 5.6, 2.55  # inches


def draw(report: Report, path: str | Path, *, dpi: int = 110) -> Path:
    """Draws accuracy by category with its prior, share of right items by IoU, all confusion matrices.

    Args:
        report: What `score` returned.
        path: Where to write the picture; its ending chooses the format, PNG without one.
        dpi: Dots per inch.

    Raises:
        ExtraMissingError: matplotlib is not installed.
        OptionError: Pictures are not written in that format.
    """
    attributes = report.data["attributes"]["table"]
    places = _places(attributes)
    matrix_rows = 1 + max((cell // _COLUMNS for _, cell, _ in places), default=-1)
    figure = blank_figure((_WIDTH, _TOP + _ROW * matrix_rows))
    top, bottom = figure.subfigures(2, 1, height_ratios=[_TOP, max(_ROW * matrix_rows, 0.1)])
    left, right = top.subplots(1, 2, width_ratios=[1.35, 1])
    top.subplots_adjust(left=0.055, right=0.985, top=0.82, bottom=0.17, wspace=0.14)
    _title(top, report)
    _accuracy(left, report.data)
    _place_and_grade(right, report)
    if attributes:
        _confusions(bottom, attributes, places, matrix_rows)
    return save(figure, path, dpi)


def blank_figure(size: tuple[float, float]) -> Any:
    """An empty figure of `size` inches.

    Raises:
        ExtraMissingError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ExtraMissingError("Plots need matplotlib: pip install 'reasonknee_hf[viz]'.") from error
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: str | Path, dpi: int) -> Path:
    """Writes a figure in the format that the ending of `path` says.

    Raises:
        OptionError: Pictures are not written in that format.
    """
    kind, target = picture_format(path), Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format=kind, dpi=dpi, facecolor="white")
    return target


def _title(figure: Any, report: Report) -> None:
    count, subset = report.data["count"], report.data["subset"]
    figure.suptitle(
        f"{report.data['benchmark']}: {report.data['name']}",
        x=0.055,
        y=0.975,
        ha="left",
        fontsize=16,
        weight="bold",
    )
    text = f"{count['items']} items, {count['scans']} scans, {count['patients']} patients"
    figure.text(0.055, 0.89, text, fontsize=11, color=GREY)
    if subset is not None:
        figure.text(
            0.985, 0.955, f"SUBSET: {subset}", ha="right", va="center", fontsize=12, color=RED, weight="bold"
        )


def _accuracy(axes: Any, data: dict[str, Any]) -> None:
    table = data["grades"]["category"]
    names = [name for name in data["groups"]["category"] if name in table]
    places = np.arange(len(names))
    for offset, column, colour, label in (
        (-0.2, "attribute_accuracy", BLUE, "attributes right"),
        (0.2, "item_accuracy", DARK, "items right (all attributes)"),
    ):
        figures = [table[name][column] for name in names]
        values = [figure["value"] for figure in figures]
        axes.bar(places + offset, values, 0.36, color=colour, label=label)
        for place, figure in zip(places + offset, figures, strict=True):
            if figure["ci"] is not None:
                axes.plot([place, place], figure["ci"], color="black", linewidth=1.2)
        priors = [table[name].get(f"prior_{column}") for name in names]
        if all(priors) and priors:
            levels = [prior["value"] for prior in priors]
            axes.hlines(levels, places + offset - 0.19, places + offset + 0.19, color=RED, linewidth=2.6)
    if data["prior_origin"]:
        axes.plot([], [], color=RED, linewidth=2.6, label="prior: most frequent grade of each question")
    axes.set_xticks(places, [name.replace(" & ", " &\n") for name in names], fontsize=10)
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy")
    note = "" if data["prior_origin"] else " (no prior was given)"
    axes.set_title(f"Accuracy by category, 95 % intervals over patients{note}", loc="left", fontsize=12)
    if names:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, frameon=False, fontsize=10)
    _tidy(axes)


def _place_and_grade(axes: Any, report: Report) -> None:
    outcome = report.outcome
    judged = np.isfinite(outcome.iou) & outcome.graded
    axes.set_title("Does the right place go with the right grade?", loc="left", fontsize=12)
    axes.set_ylim(0, 1)
    _tidy(axes)
    if not outcome.places_judged or not judged.any():
        axes.text(
            0.5, 0.5, "no answer holds a box", ha="center", transform=axes.transAxes, color=GREY, fontsize=12
        )
        axes.set_xticks([])
        return
    overlap, right = outcome.iou[judged], outcome.right[judged]
    bins = np.digitize(overlap, _BINS) - 1
    counts = np.bincount(bins, minlength=len(_BIN_NAMES))
    shares = np.bincount(bins, right, minlength=len(_BIN_NAMES)) / np.maximum(counts, 1)
    places = np.arange(len(_BIN_NAMES))
    axes.bar(places, counts / counts.sum(), 0.82, color="#d9dee7", label="share of items")
    known = counts > 0
    axes.plot(places[known], shares[known], "o-", color=DARK, linewidth=2, markersize=7, label="items right")
    for place, share, count in zip(places, shares, counts, strict=True):
        if count:
            axes.annotate(
                f"{share:.2f}",
                (place, share),
                (0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=10,
                color=DARK,
            )
        axes.text(place, 0.015, f"n={count}", ha="center", fontsize=9, color=GREY)
    axes.set_xticks(places, _BIN_NAMES)
    axes.set_xlabel("3D IoU of the answered box", labelpad=2)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=10)


def _places(attributes: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Name, first cell and width in cells of each matrix; large ones come last and are wider."""
    large = {name for name, row in attributes.items() if len(row["confusion"]) > _SMALL}
    places, cell = [], 0
    for name in sorted(attributes, key=lambda name: name in large):
        width = 3 if name in large else 1
        if cell % _COLUMNS + width > _COLUMNS:
            cell += _COLUMNS - cell % _COLUMNS
        places.append((name, cell, width))
        cell += width
    return places


def _confusions(
    figure: Any, attributes: dict[str, Any], places: list[tuple[str, int, int]], rows: int
) -> None:
    height = _ROW * rows
    grid = figure.add_gridspec(
        rows,
        _COLUMNS,
        left=0.055,
        right=0.985,
        top=1 - 0.95 / height,
        bottom=0.3 / height,
        wspace=0.42,
        hspace=0.52,
    )
    title = 1 - 0.18 / height
    figure.text(0.055, title, "Confusion matrices", fontsize=12, va="center")
    text = (
        "row: true grade (count), column: answered grade, x: none valid; number and colour: share of the row"
    )
    figure.text(0.175, title, text, fontsize=10, color=GREY, va="center")
    for name, cell, width in places:
        row, column = divmod(cell, _COLUMNS)
        _matrix(figure.add_subplot(grid[row, column : column + width]), name, attributes[name]["confusion"])


def _matrix(axes: Any, name: str, confusion: list[list[int]]) -> None:
    counts = np.array(confusion)
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, None]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    size = 9 if len(counts) <= _SMALL else 7.5
    for true, answered in np.argwhere(counts > 0):
        share = shares[true, answered]
        text = f"{share:.2f}".lstrip("0") if share < 1 else "1"
        colour = "white" if share > 0.55 else DARK
        axes.text(answered, true, text, ha="center", va="center", fontsize=size, color=colour)
    axes.set_xticks(range(counts.shape[1]), [*map(str, range(len(counts))), "x"], fontsize=9)
    axes.set_yticks(range(len(counts)), [f"{grade} ({n})" for grade, n in enumerate(totals)], fontsize=size)
    axes.set_title(name.replace(": ", "\n"), fontsize=10, loc="left", linespacing=1.1)
    axes.tick_params(length=0)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
