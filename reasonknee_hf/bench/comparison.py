"""Runs against each other, item by item: differences with intervals, p values, and what could have been seen.

Runs of one model (several seeds) are averaged item by item before they are compared; different models never are.

A difference is paired: both sides answer the same items, and each bootstrap round draws the same patients for both.

- Interval: 95 % percentile bootstrap over patients.
- p: two-sided, signs of the patients' differences flipped at random (all flips where there are at most 12 patients
  that differ): how often chance alone makes a difference as large.
- Least detectable difference: what a test at 5 % finds in 80 % of all cases, (1.960 + 0.842) times the standard
  error over patients. A difference that is not significant says little where this is large.
- With more than two models: p by Holm's correction over all pairs of one figure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from reasonknee_hf.bench.metrics import Bootstrap, Floats, Ints, grouped, micro_macro, sums
from reasonknee_hf.bench.references import References
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.score_tables import Table, number, signed
from reasonknee_hf.errors import OptionError

FIGURES = ("item_accuracy", "attribute_accuracy", "iou")
_FLIPS, _EXACT = 10_000, 12
_POWER = 1.959964 + 0.841621


def check_same_items(reports: Mapping[str, Report]) -> Report:
    """The first report, if all are over the same items by the same rules.

    Raises:
        OptionError: They are not.
    """
    first = next(iter(reports.values()))
    for name, report in reports.items():
        if report.outcome.references.ids != first.outcome.references.ids:
            raise OptionError(
                f"The run {name} was scored on other items; score all runs on the same references."
            )
        if report.data["rules"] != first.data["rules"]:
            raise OptionError(f"The run {name} was scored by other rules; use the same for all runs.")
    return first


@dataclass(frozen=True)
class Values:
    """One figure before it is averaged: a value, a patient and a category for each item or grade that it counts."""

    patients: Ints
    groups: Ints
    values: Floats


def values_of(report: Report, figure: str) -> Values:
    """What `figure` averages in a report; all of it in the same order for the same references."""
    outcome, references = report.outcome, report.outcome.references
    codes, _ = references.item_codes("category")
    if figure == "attribute_accuracy":
        item = references.grade_item
        right = (outcome.predicted == references.truth).astype(float)
        return Values(references.patients[item], codes[item], right)
    counts, values = {
        "item_accuracy": (outcome.graded, outcome.right.astype(float)),
        "iou": (np.isfinite(outcome.iou), np.nan_to_num(outcome.iou)),
    }[figure]
    return Values(references.patients, np.where(counts, codes, -1), values)


def difference(
    with_: Values, without: Values, references: References, bootstrap: Bootstrap
) -> dict[str, Any]:
    """`with_` minus `without` by category, micro and macro, each with a paired interval."""
    table, over, under = grouped(
        with_.patients,
        with_.groups,
        references.scheme.categories,
        with_.values - without.values,
        bootstrap,
    )
    return {"category": table, **micro_macro(over, under)}


def compare(models: Mapping[str, Sequence[Report]], figures: Sequence[str] = FIGURES) -> dict[str, Any]:
    """Compares models on the same items.

    Args:
        models: Name to the reports of its runs; all by the same rules, with the same seed and rounds.
        figures: Which of `FIGURES`; `iou` is left out where no answer holds a box.

    Returns:
        `models`: for each its number of `runs` and its average figures; `differences`: for each figure and pair
        (`a` minus `b`) the `micro`, `macro` and `category` differences, `p`, `p_holm` and `least_detectable` of the
        micro one; `subset` and `rules` as in the reports.

    Raises:
        OptionError: There is no such figure, or the runs are not over the same items by the same rules.
    """
    for figure in figures:
        if figure not in FIGURES:
            raise OptionError(f"There is no figure {figure!r} to compare. Figures: {', '.join(FIGURES)}.")
    every = {f"{name} ({n})": run for name, runs in models.items() for n, run in enumerate(runs, start=1)}
    first = check_same_items(every)
    references, bootstrap = first.outcome.references, first.bootstrap
    if not any(report.outcome.places_judged for report in every.values()):
        figures = [figure for figure in figures if figure != "iou"]
    table: dict[str, Any] = {name: {"runs": len(runs)} for name, runs in models.items()}
    differences = []
    for figure in figures:
        averaged = {name: _average([values_of(run, figure) for run in runs]) for name, runs in models.items()}
        for name, of in averaged.items():
            _, over, under = grouped(
                of.patients, of.groups, references.scheme.categories, of.values, bootstrap
            )
            table[name][figure] = micro_macro(over, under)
        found = [
            {"figure": figure, "a": a, "b": b}
            | difference(averaged[a], averaged[b], references, bootstrap)
            | _test(averaged[a], averaged[b], bootstrap.patients)
            for a, b in combinations(averaged, 2)
        ]
        for entry, p in zip(found, _holm([entry["p"] for entry in found]), strict=True):
            entry["p_holm"] = p
        differences += found
    count = {name: first.data["count"][name] for name in ("items", "grades", "patients")}
    return {
        "benchmark": first.data["benchmark"],
        "subset": first.data["subset"],
        "rules": first.data["rules"],
        "count": count,
        "models": table,
        "differences": differences,
        "caveats": first.data["caveats"]
        + [text for text in first.data["warnings"] if "two patients" in text],
    }


def _average(runs: Sequence[Values]) -> Values:
    return Values(runs[0].patients, runs[0].groups, np.mean([run.values for run in runs], axis=0))


def _test(a: Values, b: Values, patients: int) -> dict[str, Any]:
    """p and the least detectable difference of the micro average, over patients."""
    groups = np.where(a.groups < 0, -1, 0)
    shape = patients, 1
    gained = sums(a.patients, groups, a.values - b.values, shape)[:, 0]
    count = sums(a.patients, groups, 1.0, shape)[:, 0]
    total = count.sum()
    if patients < 2 or not total:
        return {"p": None, "least_detectable": None}
    residuals = gained - count * gained.sum() / total
    error = np.sqrt(patients / (patients - 1) * (residuals**2).sum()) / total
    moved = gained[gained != 0]
    return {"p": _flip(moved), "least_detectable": float(_POWER * error)}


def _flip(moved: Floats) -> float:
    """How often flipped signs give a sum as far from 0."""
    reached = abs(moved.sum()) - 1e-9
    if len(moved) <= _EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=len(moved)))).reshape(2 ** len(moved), len(moved))
        return float((np.abs(signs @ moved) >= reached).mean())
    chance, hits, block = np.random.default_rng(0), 0, 1000
    for _ in range(_FLIPS // block):
        signs = chance.integers(0, 2, (block, len(moved))) * 2.0 - 1
        hits += int((np.abs(signs @ moved) >= reached).sum())
    return (1 + hits) / (1 + _FLIPS)


def _holm(values: Sequence[float | None]) -> list[float | None]:
    """p values by Holm's correction, in the given order."""
    known = sorted((p, index) for index, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[index] = largest
    return corrected


TITLES = {"item_accuracy": "Item accuracy", "attribute_accuracy": "Attribute accuracy", "iou": "3D IoU"}


def comparison_tables(data: Mapping[str, Any]) -> list[Table]:
    """The tables of [`compare`]: the models, then the differences of each figure."""
    subset = "" if data["subset"] is None else f" (SUBSET: {data['subset']})"
    figures = [figure for figure in FIGURES if figure in next(iter(data["models"].values()))]
    models = Table(f"Models{subset}", ["Model", "runs", *(TITLES[figure] for figure in figures)])
    for name, row in data["models"].items():
        cells = [number(row[figure]["micro"], interval=True) for figure in figures]
        models.rows.append([name, str(row["runs"]), *cells])
    tables = [models]
    for figure in figures:
        rows = [entry for entry in data["differences"] if entry["figure"] == figure]
        table = Table(
            f"{TITLES[figure]}, differences{subset}",
            ["", "micro", "macro", "p", "p (Holm)", "least detectable"],
        )
        for row in rows:
            cells = [signed(row[kind], interval=True) for kind in ("micro", "macro")]
            cells += ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("p", "p_holm")]
            least = "-" if row["least_detectable"] is None else f"{row['least_detectable']:.3f}"
            table.rows.append([f"{row['a']} - {row['b']}", *cells, least])
        table.notes = [
            "Paired by item, patients drawn and flipped as a whole. Least detectable: at 5 %, power 80 %."
        ]
        tables += [table] if rows else []
    return tables


def comparison_text(data: Mapping[str, Any], *, markdown: bool = False) -> str:
    """The comparison for a terminal, or as Markdown."""
    count = data["count"]
    lines = [
        f"{count['items']} items, patients: {count['patients']}; rules {data['rules']['version']}.",
        *(f"CAVEAT: {caveat}" for caveat in data["caveats"]),
    ]
    tables = comparison_tables(data)
    if markdown:
        parts = [f"## {data['benchmark']}: comparison", *lines, *(table.markdown() for table in tables)]
        return "\n\n".join(parts) + "\n"
    heading = "\n".join([f"{data['benchmark']}: comparison", *lines])
    return "\n\n".join([heading, *(table.text() for table in tables)]) + "\n"


def comparison_json(data: Mapping[str, Any]) -> str:
    """The comparison as JSON text."""
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
