"""The picture of the grade distribution on a card."""

from __future__ import annotations

import io
import logging

from reasonknee_hf.publish.config_facts import GradeCounts

logger = logging.getLogger(__name__)


def grade_picture(counts: GradeCounts) -> bytes | None:
    """A PNG of stacked bars: for each category the share of each grade. `None` where matplotlib is not installed.

    Args:
        counts: Category → grade → number.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("the card has no picture of the grades: pip install 'reasonknee_hf[viz]'")
        return None
    categories = list(counts)[::-1]
    highest = max(grade for grades in counts.values() for grade in grades)
    colours = colormaps["viridis"].resampled(highest + 1)
    figure = Figure(figsize=(8, 0.45 * len(categories) + 1.3), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    left = [0.0] * len(categories)
    for grade in range(highest + 1):
        shares = [100 * counts[name].get(grade, 0) / sum(counts[name].values()) for name in categories]
        axes.barh(categories, shares, left=left, color=colours(grade), label=str(grade), edgecolor="white")
        left = [start + share for start, share in zip(left, shares, strict=True)]
    labels = [f"{name} ({sum(counts[name].values()):,})" for name in categories]
    axes.set_yticks(range(len(categories)), labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of graded attributes, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="grade", ncols=1, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    sink = io.BytesIO()
    figure.savefig(sink, format="png", metadata={"Software": None})
    return sink.getvalue()
