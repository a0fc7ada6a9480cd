"""What the true region buys, and what reasoning in the target buys: one run against another, item by item.

Differences are paired: both runs answer the same items, and each bootstrap round draws the same patients
for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reasonknee_hf.bench.metrics import Bootstrap, Floats, estimate, mean_of_known, ratio, sums
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.score_tables import Table, number
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import CATEGORIES

EFFECTS = (
    ("the instruction", "instruction", "zero_shot"),
    ("the true region", "gt_region", "instruction"),
    ("training", "sft", "zero_shot"),
    ("reasoning in the target", "sft_cot", "sft"),
)
"""What an effect is of, the setting with it and the setting without it."""


def attribution(reports: Mapping[str, Report]) -> dict[str, Any]:
    """Compares runs of one model in several settings.

    Args:
        reports: Setting to report; all over the same items, with the same seed and rounds.

    Returns:
        `effects`: for each pair of `EFFECTS` whose settings are both there, differences of item accuracy
        (with, minus without) by category, micro and macro, each with a paired interval; `subset` as in the
        reports.

    Raises:
        OptionError: The runs are not over the same items, or no two settings make a pair.
    """
    pairs = [pair for pair in EFFECTS if pair[1] in reports and pair[2] in reports]
    if not pairs:
        wanted = "; ".join(f"{with_} and {without}" for _, with_, without in EFFECTS)
        raise OptionError(f"The settings {', '.join(reports)} make no pair to compare. Pairs: {wanted}.")
    first = next(iter(reports.values()))
    for setting, report in reports.items():
        if report.outcome.references.ids != first.outcome.references.ids:
            raise OptionError(
                f"The run {setting} was scored on other items; score all runs on the same references."
            )
        if report.data["rules"] != first.data["rules"]:
            raise OptionError(f"The run {setting} was scored by other rules; use the same for all runs.")
    effects = []
    for name, with_, without in pairs:
        categories, micro, macro = _difference(reports[with_], reports[without], first.bootstrap)
        effects.append(
            {
                "of": name,
                "with": with_,
                "without": without,
                "category": categories,
                "micro": micro,
                "macro": macro,
            }
        )
    return {"effects": effects, "subset": first.data["subset"]}


def _difference(
    with_: Report, without: Report, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    references = with_.outcome.references
    codes, names = references.item_codes("category")
    codes = np.where(with_.outcome.graded, codes, -1)
    shape = bootstrap.patients, len(names)
    count: Floats = bootstrap.totals(sums(references.patients, codes, 1.0, shape))
    gained = with_.outcome.right.astype(float) - without.outcome.right
    gain: Floats = bootstrap.totals(sums(references.patients, codes, gained, shape))
    means = ratio(gain, count)
    present = count[0] > 0
    categories = {name: estimate(means[:, g], count[0, g]) for g, name in enumerate(names) if present[g]}
    total = float(count[0].sum())
    micro = estimate(ratio(gain.sum(axis=1), count.sum(axis=1)), total)
    return categories, micro, estimate(mean_of_known(means[:, present]), total)


def attribution_table(data: Mapping[str, Any]) -> Table:
    """The table of [`attribution`]: one row per effect."""
    present = [name for name in CATEGORIES if any(name in effect["category"] for effect in data["effects"])]
    title = "What it buys: difference of item accuracy, paired"
    table = Table(
        title + ("" if data["subset"] is None else f" (SUBSET: {data['subset']})"),
        ["", "micro", "macro", *present],
    )
    for effect in data["effects"]:
        cells = [_signed(effect[kind], interval=True) for kind in ("micro", "macro")]
        cells += [_signed(effect["category"].get(name)) for name in present]
        table.rows.append([f"{effect['of']} ({effect['with']} - {effect['without']})", *cells])
    table.notes = ["In brackets: 95 % intervals of the difference, patients drawn for both runs alike."]
    return table


def _signed(figure: dict[str, Any] | None, *, interval: bool = False) -> str:
    text = number(figure, interval=interval)
    return f"+{text}" if figure and figure["value"] is not None and figure["value"] >= 0 else text
