"""What the true region buys, and what reasoning in the target buys: one setting against another, item by item.

Differences are those of [`comparison`][reasonknee_hf.bench.comparison]: paired, over patients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reasonknee_hf.bench.comparison import check_same_items, difference, values_of
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.score_tables import Table, signed
from reasonknee_hf.errors import OptionError

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
        `effects`: for each pair of `EFFECTS` whose settings are both there, and for each setting without such a
        partner against the first one, differences of item accuracy (with, minus without) by category, micro and
        macro, each with a paired interval; `subset` as in the reports.

    Raises:
        OptionError: The runs are not over the same items, or there is one setting alone.
    """
    if len(reports) < 2:
        raise OptionError(f"The settings {', '.join(reports)} make no pair to compare.")
    first = check_same_items(reports)
    effects = []
    for name, with_, without in _pairs(list(reports)):
        values = [values_of(reports[setting], "item_accuracy") for setting in (with_, without)]
        found = difference(values[0], values[1], first.outcome.references, first.bootstrap)
        effects.append({"of": name, "with": with_, "without": without, **found})
    return {
        "effects": effects,
        "subset": first.data["subset"],
        "categories": first.data["groups"]["category"],
    }


def _pairs(settings: list[str]) -> list[tuple[str, str, str]]:
    pairs = [pair for pair in EFFECTS if pair[1] in settings and pair[2] in settings]
    paired = {setting for pair in pairs for setting in pair[1:]}
    base, *others = settings
    alone = [other for other in others if other not in paired or (base not in paired and other == others[0])]
    return [*pairs, *((f"{other} over {base}", other, base) for other in alone)]


def attribution_table(data: Mapping[str, Any]) -> Table:
    """The table of [`attribution`]: one row per effect."""
    present = [
        name for name in data["categories"] if any(name in effect["category"] for effect in data["effects"])
    ]
    title = "What it buys: difference of item accuracy, paired"
    table = Table(
        title + ("" if data["subset"] is None else f" (SUBSET: {data['subset']})"),
        ["", "micro", "macro", *present],
    )
    for effect in data["effects"]:
        cells = [signed(effect[kind], interval=True) for kind in ("micro", "macro")]
        cells += [signed(effect["category"].get(name)) for name in present]
        table.rows.append([f"{effect['of']} ({effect['with']} - {effect['without']})", *cells])
    table.notes = ["In brackets: 95 % intervals of the difference, patients drawn for both runs alike."]
    return table
