"""The numbers of the benchmark, vectorised, with confidence intervals.

Denominators
    Every benchmark item stays in every denominator: a missing or invalid answer is a wrong answer.
    *Attribute accuracy* counts grades, *item accuracy* counts items whose grades are all right.
    *Micro* pools all grades (or items) of a group; *macro* is the unweighted mean over the categories
    present.

Balanced accuracy
    The mean recall over the grades that occur in the reference; a grade that never occurs there has no recall
    and is left out. For a category: the mean over its attributes. Chance is 1 / number of grades that occur.

Weighted kappa
    Quadratic weights, for ordinal and 0/1 grades (where it is Cohen's kappa), never for codes without order
    (morphology, tear location). An answer without a valid grade counts as the grade farthest from the
    truth, so that silence cannot raise the figure. Undefined (no variation at all) is `None`. For a category or
    a compartment: the mean over its attributes, each within it.

AC1
    Gwet's, with the same rule for silence, for all attributes: where a finding is rare, kappa is low however well
    both sides agree, and AC1 is not.

Intervals
    95 % percentile bootstrap over patients: each round draws as many patients as there are, with replacement,
    and keeps all items of a drawn patient together. Seeded. `None` where there are fewer than two patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.bench.references import Scheme

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Bootstrap:
    """Resamples of the patients, shared by all figures of one run (and of runs that are compared).

    Args:
        patients: Number of patients.
        rounds: Number of resamples; 0 gives no intervals.
        seed: Seed of the generator.
    """

    def __init__(self, patients: int, rounds: int = 1000, seed: int = 0) -> None:
        self.patients = patients
        self.weights: Floats = np.zeros((0, patients))
        if patients > 1 and rounds:
            chances = np.full(patients, 1 / patients)
            self.weights = (
                np.random.default_rng(seed).multinomial(patients, chances, size=rounds).astype(float)
            )

    def totals(self, sums: Floats) -> Floats:
        """Sums by patient (patients, groups) as (1 + rounds, groups): the whole set, then each resample."""
        totals: Floats = np.vstack([sums.sum(axis=0), self.weights @ sums])
        return totals


def sums(patients: Ints, groups: Ints, values: npt.ArrayLike, shape: tuple[int, int]) -> Floats:
    """Sums of `values` by (patient, group); entries with a negative group are left out."""
    kept = groups >= 0
    cells = patients[kept] * shape[1] + groups[kept]
    weights = np.broadcast_to(np.asarray(values, np.float64), groups.shape)[kept]
    flat = np.bincount(cells, weights, minlength=shape[0] * shape[1])
    return flat.astype(np.float64).reshape(shape)


def ratio(over: Floats, under: Floats) -> Floats:
    """`over / under`, NaN where `under` is 0."""
    quotient: Floats = np.divide(over, under, out=np.full(over.shape, np.nan), where=under > 0)
    return quotient


def mean_of_known(values: Floats) -> Floats:
    """The mean along the last axis over what is not NaN; NaN where nothing is known."""
    known = np.isfinite(values)
    return ratio(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1).astype(float))


def estimate(values: Floats, count: float) -> dict[str, Any]:
    """A figure for reports: its value on the whole set (the first entry), its 95 % interval and its count."""
    whole, resamples = float(values[0]), values[1:][np.isfinite(values[1:])]
    interval = None
    if np.isfinite(whole) and len(resamples):
        interval = [float(bound) for bound in np.percentile(resamples, [2.5, 97.5])]
    return {"value": whole if np.isfinite(whole) else None, "ci": interval, "n": int(count)}


def grouped(
    patients: Ints, groups: Ints, names: Sequence[str], values: npt.ArrayLike, bootstrap: Bootstrap
) -> tuple[dict[str, dict[str, Any]], Floats, Floats]:
    """Means of `values` by group, of the groups that occur.

    Returns:
        The estimate of each group by name; numerators and denominators of shape (1 + rounds, groups).
    """
    shape = bootstrap.patients, len(names)
    over = bootstrap.totals(sums(patients, groups, values, shape))
    under = bootstrap.totals(sums(patients, groups, 1.0, shape))
    means = ratio(over, under)
    table = {name: estimate(means[:, g], under[0, g]) for g, name in enumerate(names) if under[0, g]}
    return table, over, under


def micro_macro(over: Floats, under: Floats) -> dict[str, dict[str, Any]]:
    """Micro and macro averages over groups, from what [`grouped`] returns."""
    present = under[0] > 0
    count = float(under[0].sum())
    return {
        "micro": estimate(ratio(over.sum(axis=1), under.sum(axis=1)), count),
        "macro": estimate(mean_of_known(ratio(over, under)[:, present]), count),
    }


def grade_counts(
    scheme: Scheme, patients: Ints, kinds: Ints, truth: Ints, predicted: Ints, bootstrap: Bootstrap
) -> tuple[Floats, Floats]:
    """How often each grade of each attribute is the truth and how often it is then answered.

    Returns:
        Hits and counts, each (1 + rounds, all grades of all attributes); grades of attribute k begin at
        `scheme.grade_offsets[k]`.
    """
    shape = bootstrap.patients, int(scheme.grade_offsets[-1])
    cells = scheme.grade_offsets[kinds] + truth
    hits = bootstrap.totals(sums(patients, cells, predicted == truth, shape))
    return hits, bootstrap.totals(sums(patients, cells, 1.0, shape))


def recalls(scheme: Scheme, hits: Floats, counts: Floats, kind: int) -> Floats:
    """Recall of each grade of one attribute, (1 + rounds, grades); NaN where a grade does not occur."""
    cells = slice(scheme.grade_offsets[kind], scheme.grade_offsets[kind + 1])
    return ratio(hits[:, cells], counts[:, cells])


def confusion(scheme: Scheme, kinds: Ints, truth: Ints, predicted: Ints, kind: int) -> Ints:
    """Counts (grades, grades + 1): rows the truth, columns the answer, the last column no valid answer."""
    width = int(scheme.widths[kind])
    chosen = kinds == kind
    column = np.where(predicted[chosen] < 0, width, predicted[chosen])
    return np.bincount(truth[chosen] * (width + 1) + column, minlength=width * (width + 1)).reshape(
        width, width + 1
    )


def farthest(scheme: Scheme, kinds: Ints, truth: Ints, predicted: Ints) -> Ints:
    """`predicted` with the grade farthest from the truth where there is no valid one."""
    high = scheme.widths[kinds] - 1
    return np.where(predicted < 0, np.where(2 * truth >= high, 0, high), predicted)


def pair_tables(
    scheme: Scheme, patients: Ints, kinds: Ints, truth: Ints, predicted: Ints, bootstrap: Bootstrap
) -> list[Floats]:
    """For each attribute (1 + rounds, grades, grades): how often a grade is the truth and one is answered."""
    shape = bootstrap.patients, int(scheme.pair_offsets[-1])
    answered = farthest(scheme, kinds, truth, predicted)
    cells = scheme.pair_offsets[kinds] + truth * scheme.widths[kinds] + answered
    present = np.flatnonzero(np.bincount(cells, minlength=shape[1]))
    # Most pairs never occur: resamples of them would be zeros, worked out at length.
    codes = np.full(shape[1], -1)
    codes[present] = np.arange(len(present))
    totals = np.zeros((1 + len(bootstrap.weights), shape[1]))
    totals[:, present] = bootstrap.totals(sums(patients, codes[cells], 1.0, (shape[0], len(present))))
    return [
        totals[:, start:stop].reshape(-1, width, width)
        for start, stop, width in zip(
            scheme.pair_offsets, scheme.pair_offsets[1:], scheme.widths, strict=False
        )
    ]


def weighted_kappa(table: Floats) -> Floats:
    """Quadratic weighted kappa of each of the tables (n, grades, grades); NaN where nothing varies."""
    width = table.shape[1]
    weights = (np.arange(width)[:, None] - np.arange(width)) ** 2 / max(width - 1, 1) ** 2
    observed = (table * weights).sum(axis=(1, 2))
    chance = np.einsum("bi,bj,ij->b", table.sum(axis=2), table.sum(axis=1), weights)
    return 1 - ratio(observed * table.sum(axis=(1, 2)), chance)


def ac1(table: Floats) -> Floats:
    """Gwet's AC1 of each of the tables (n, grades, grades): agreement beyond chance that rare grades do not upset."""
    width, total = table.shape[1], table.sum(axis=(1, 2))
    observed = ratio(np.trace(table, axis1=1, axis2=2), total)
    shares = ratio(table.sum(axis=1) + table.sum(axis=2), 2 * total[:, None] * np.ones(width))
    chance = (shares * (1 - shares)).sum(axis=1) / max(width - 1, 1)
    return ratio(observed - chance, 1 - chance)


def kappas(scheme: Scheme, tables: list[Floats]) -> list[Floats | None]:
    """Quadratic weighted kappa of each attribute, (1 + rounds,); `None` for attributes without order."""
    return [
        None if kind.kind == "nominal" else weighted_kappa(table)
        for kind, table in zip(scheme.kinds, tables, strict=True)
    ]


def correlations(
    patients: Ints, groups: Ints, names: Sequence[str], x: Floats, y: Floats, bootstrap: Bootstrap
) -> dict[str, dict[str, Any]]:
    """Pearson's correlation of `x` and `y` by group; `None` where either does not vary."""
    shape = bootstrap.patients, len(names)
    count, sx, sy, sxx, syy, sxy = (
        bootstrap.totals(sums(patients, groups, values, shape)) for values in (1.0, x, y, x * x, y * y, x * y)
    )
    spread_x, spread_y = count * sxx - sx**2, count * syy - sy**2
    # Sums of floats leave crumbs where nothing varies.
    varied = (spread_x > 1e-9 * count**2) & (spread_y > 1e-9 * count**2)
    product = np.sqrt(np.where(varied, spread_x * spread_y, 0.0))
    values = np.clip(ratio(count * sxy - sx * sy, product), -1.0, 1.0)
    return {name: estimate(values[:, g], count[0, g]) for g, name in enumerate(names) if count[0, g]}
