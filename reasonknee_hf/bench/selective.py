"""Risk against coverage: how wrong a model is on the items it is surest of."""

from __future__ import annotations

from typing import Any

import numpy as np

from reasonknee_hf.bench.metrics import Floats
from reasonknee_hf.bench.outcome import Outcome

COVERAGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def risk_by_coverage(outcome: Outcome) -> dict[str, Any]:
    """Shares of items that are not all right among the surest ones, where predictions carry a confidence.

    Returns:
        `items` with a confidence; `risk` by coverage; `area` under the curve, the mean risk over all coverages
        (0 is best). Empty where no prediction has a confidence. Items without one come last; among items that
        are equally sure, risk is that of a random order.
    """
    known = outcome.merged.confidences
    if not known:
        return {}
    ids = np.array(outcome.references.ids, dtype=object)[outcome.graded]
    sure = np.array([known.get(item, -np.inf) for item in ids], dtype=float)
    curve = risk_curve(sure, ~outcome.right[outcome.graded])
    if not len(curve):
        return {}
    places = {coverage: max(1, round(coverage * len(curve))) - 1 for coverage in COVERAGES}
    return {
        "items": int(np.isfinite(sure).sum()),
        "area": float(curve.mean()),
        "risk": {f"{coverage:g}": float(curve[place]) for coverage, place in places.items()},
    }


def risk_curve(sure: Floats, wrong: Any) -> Floats:
    """The share of `wrong` among the surest 1, 2, ... items, in expectation where some are equally sure."""
    _, group, size = np.unique(-sure, return_inverse=True, return_counts=True)
    shares = np.bincount(group, wrong, minlength=len(size)) / size
    counts: Floats = np.cumsum(np.repeat(shares, size)) / np.arange(1, len(sure) + 1)
    return counts
