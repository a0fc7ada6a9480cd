"""From the outcome of each item to the figures of a report, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee_hf.bench import metrics
from reasonknee_hf.bench.metrics import Bootstrap, Floats, Ints, grouped, micro_macro
from reasonknee_hf.bench.outcome import STAGES, Outcome
from reasonknee_hf.bench.references import References, Scheme
from reasonknee_hf.bench.selective import risk_by_coverage

if TYPE_CHECKING:
    from reasonknee_hf.bench.priors import Priors

HIT_RATES = (0.1, 0.25, 0.5)
FEWEST_PATIENTS = 20
"""Fewer clusters than that make bootstrap intervals too narrow to be taken at their word."""
NOTHING: dict[str, Any] = {"value": None, "ci": None, "n": 0}
GROUPS = ("category", "paper", "structure")


def summarise(outcome: Outcome, priors: Priors | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """All sections of a report."""
    references, merged = outcome.references, outcome.merged
    has_box = np.isfinite(outcome.iou)
    reasons: dict[str, Counter[str]] = {}
    for question, reason, graded in zip(references.questions, outcome.reasons, outcome.graded, strict=True):
        if question and reason and graded:
            reasons.setdefault(question.category, Counter())[reason] += 1
    repairs = Counter(name for reading in outcome.readings if reading for name in set(reading.repairs))
    notes = Counter(name for reading in outcome.readings if reading for name in set(reading.notes))
    return {
        "count": {
            "items": len(references),
            "graded_items": int(outcome.graded.sum()),
            "grades": len(references.truth),
            "items_with_box": int(has_box.sum()),
            "scans": len(set(references.scan_ids)),
            "patients": len(references.patient_ids),
        },
        "inputs": {
            "entries": merged.entries,
            "forms": sorted(merged.forms),
            "answered_items": len(merged.answers),
            "missing_items": len(references) - sum(item in merged.answers for item in references.ids),
            "identical_repeats": merged.repeats,
            "passed_over_entries": merged.passed_over,
            "conflicting_items": len(merged.conflicts),
            "conflicting_ids": merged.conflicts[:20],
            "unknown_entries": len(merged.unknown),
            "unknown_ids": merged.unknown[:20],
            "respelled_ids": merged.respelled,
        },
        "groups": {group: list(references.scheme.groups[group][0]) for group in GROUPS},
        "unscored": dict(list(references.unscored.items())[:20]),
        "unscored_count": len(references.unscored),
        "invalid": dict(sorted(sum(reasons.values(), Counter[str]()).items())),
        "invalid_by_category": {
            name: dict(sorted(reasons[name].items()))
            for name in references.scheme.categories
            if name in reasons
        },
        "repairs": dict(sorted(repairs.items())),
        "notes": dict(sorted(notes.items())),
        "prior_origin": priors.origin if priors else None,
        "grades": _grades(outcome, priors, bootstrap),
        "attributes": _attributes(outcome, bootstrap),
        "grade_ranges": _grade_ranges(outcome, priors, bootstrap),
        "localisation": _localisation(outcome, bootstrap),
        "risk": risk_by_coverage(outcome),
        "stages": _stages(outcome),
        "caveats": _caveats(references),
        "warnings": outcome.warnings + _remarks(outcome, priors),
    }


def _remarks(outcome: Outcome, priors: Priors | None) -> list[str]:
    merged, references = outcome.merged, outcome.references
    remarks = []
    if merged.unknown:
        examples = ", ".join(merged.unknown[:3])
        remarks.append(
            f"{len(merged.unknown)} answered ids have no reference and were not counted, e.g. {examples}."
        )
    if merged.conflicts:
        examples = ", ".join(merged.conflicts[:3])
        remarks.append(f"{len(merged.conflicts)} items have answers that differ, e.g. {examples}.")
    if merged.respelled:
        remarks.append(
            f"{merged.respelled} ids matched only after leading zeros, blanks and .nii.gz were ignored."
        )
    if references.unscored:
        item, why = next(iter(references.unscored.items()))
        remarks.append(
            f"{len(references.unscored)} references cannot be graded (in part), e.g. {item}: {why}."
        )
    unknown = int((priors.predict(references) < 0).sum()) if priors else 0
    if unknown:
        remarks.append(f"The prior knows no grade for {unknown} of {len(references.truth)} reference grades.")
    patients = len(references.patient_ids)
    if patients < 2:
        remarks.append("Fewer than two patients: no confidence intervals.")

    return remarks


def _caveats(references: References) -> list[str]:
    patients = len(references.patient_ids)
    if not 2 <= patients < FEWEST_PATIENTS:
        return []
    return [f"Only {patients} patients: intervals over fewer than {FEWEST_PATIENTS} are too narrow."]


def _grades(outcome: Outcome, priors: Priors | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """Accuracy of grades and items, coverage, prior: overall, by category, paper column and structure."""
    references = outcome.references
    hit = outcome.predicted == references.truth
    guessed = priors.predict(references) == references.truth if priors else None
    prior_right = None
    if guessed is not None:
        wrong = np.bincount(references.grade_item[~guessed], minlength=len(references))
        prior_right = wrong == 0
    valid = np.array([reason is None for reason in outcome.reasons], bool)
    sections: dict[str, Any] = {}
    for group in GROUPS:
        codes, names = references.item_codes(group)
        items = np.where(outcome.graded, codes, -1)
        patients = references.patients
        grade_patients, grade_codes = patients[references.grade_item], codes[references.grade_item]
        columns = {
            "attribute_accuracy": (grade_patients, grade_codes, hit),
            "item_accuracy": (patients, items, outcome.right),
            "coverage": (patients, items, valid),
        }
        if guessed is not None and prior_right is not None:
            columns["prior_attribute_accuracy"] = (grade_patients, grade_codes, guessed)
            columns["prior_item_accuracy"] = (patients, items, prior_right)
        section: dict[str, Any] = {}
        for column, (who, where, values) in columns.items():
            table, over, under = grouped(who, where, names, values, bootstrap)
            for name, figure in table.items():
                section.setdefault(name, {})[column] = figure
            if group == "category":
                sections.setdefault("overall", {})[column] = micro_macro(over, under)
        sections[group] = section
    return sections


def _attributes(outcome: Outcome, bootstrap: Bootstrap) -> dict[str, Any]:
    """By attribute: accuracy, balanced accuracy, recalls, kappa, confusion matrix."""
    references, predicted = outcome.references, outcome.predicted
    kinds, truth = references.grade_kind, references.truth
    patients = references.patients[references.grade_item]
    scheme = references.scheme
    names = [kind.name for kind in scheme.kinds]
    accuracy, _, _ = grouped(patients, kinds, names, predicted == truth, bootstrap)
    hits, counts = metrics.grade_counts(scheme, patients, kinds, truth, predicted, bootstrap)
    tables = metrics.pair_tables(scheme, patients, kinds, truth, predicted, bootstrap)
    kappas = metrics.kappas(scheme, tables)
    table: dict[str, Any] = {}
    balanced: dict[str, list[Floats]] = {}
    for code, kind in enumerate(scheme.kinds):
        if kind.name not in accuracy:
            continue
        recall = metrics.recalls(scheme, hits, counts, code)
        mean = metrics.mean_of_known(recall)
        balanced.setdefault(kind.category, []).append(mean)
        occurring = int(np.isfinite(recall[0]).sum())
        kappa = kappas[code]
        table[kind.name] = {
            "category": kind.category,
            "kind": kind.kind,
            "accuracy": accuracy[kind.name],
            "balanced_accuracy": metrics.estimate(mean, accuracy[kind.name]["n"]),
            "chance": 1 / occurring,
            "recall": [None if np.isnan(value) else float(value) for value in recall[0]],
            "weighted_kappa": None if kappa is None else metrics.estimate(kappa, accuracy[kind.name]["n"]),
            "ac1": metrics.estimate(metrics.ac1(tables[code]), accuracy[kind.name]["n"]),
            "truth_counts": _counts(scheme, kinds, truth, code),
            "confusion": metrics.confusion(scheme, kinds, truth, predicted, code).tolist(),
        }
    by_category = {name: metrics.mean_of_known(np.stack(values, axis=1)) for name, values in balanced.items()}
    count = len(truth)
    overall = (
        metrics.mean_of_known(np.stack(list(by_category.values()), axis=1))
        if by_category
        else np.array([np.nan])
    )
    return {
        "table": table,
        "weighted_kappa": _kappas_by_group(outcome, kappas, bootstrap),
        "balanced_accuracy": {
            "macro": metrics.estimate(overall, count),
            "category": {
                name: metrics.estimate(by_category[name], 0)
                | {"n": _count_of(scheme, references.grade_kind, name)}
                for name in scheme.categories
                if name in by_category
            },
        },
    }


def _kappas_by_group(
    outcome: Outcome, kappas: list[Floats | None], bootstrap: Bootstrap
) -> dict[str, dict[str, Any]]:
    """Mean weighted kappa over the attributes of a category, and of a compartment within it."""
    references, scheme = outcome.references, outcome.references.scheme

    def mean(found: list[Floats | None], count: int) -> dict[str, Any]:
        known = [kappa for kappa in found if kappa is not None]
        return metrics.estimate(metrics.mean_of_known(np.stack(known, axis=1)), count) if known else NOTHING

    sections: dict[str, dict[str, Any]] = {"category": {}, "compartment": {}}
    for name in scheme.categories:
        of_category = [
            kappa for kind, kappa in zip(scheme.kinds, kappas, strict=True) if kind.category == name
        ]
        count = _count_of(scheme, references.grade_kind, name)
        if count:
            sections["category"][name] = mean(of_category, count)
    codes, names = references.item_codes("compartment")
    codes = codes[references.grade_item]
    patients = references.patients[references.grade_item]
    kinds, truth, predicted = references.grade_kind, references.truth, outcome.predicted
    for code, name in enumerate(names):
        chosen = codes == code
        if chosen.any():
            tables = metrics.pair_tables(
                scheme, patients[chosen], kinds[chosen], truth[chosen], predicted[chosen], bootstrap
            )
            sections["compartment"][name] = mean(metrics.kappas(scheme, tables), int(chosen.sum()))
    return sections


def _grade_ranges(outcome: Outcome, priors: Priors | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """Attribute accuracy by the range of the grades, for guessing is easier where there are fewer."""
    references = outcome.references
    widths = references.scheme.widths
    highs = sorted({int(width) - 1 for width in widths})
    names = [f"0-{high}" if high > 1 else "0/1" for high in highs]
    codes = np.searchsorted(highs, widths[references.grade_kind] - 1)
    patients = references.patients[references.grade_item]
    columns = {"attribute_accuracy": outcome.predicted == references.truth}
    if priors:
        columns["prior_attribute_accuracy"] = priors.predict(references) == references.truth
    section: dict[str, Any] = {}
    for column, values in columns.items():
        for name, figure in grouped(patients, codes, names, values, bootstrap)[0].items():
            section.setdefault(name, {})[column] = figure
    return section


def _counts(scheme: Scheme, kinds: Ints, truth: Ints, code: int) -> list[int]:
    return [int(count) for count in np.bincount(truth[kinds == code], minlength=int(scheme.widths[code]))]


def _count_of(scheme: Scheme, kinds: Ints, category: str) -> int:
    wanted = [code for code, kind in enumerate(scheme.kinds) if kind.category == category]
    return int(np.isin(kinds, wanted).sum())


def _localisation(outcome: Outcome, bootstrap: Bootstrap) -> dict[str, Any]:
    """IoU, hit rates and distances over the items with a reference box; IoU against correctness."""
    references = outcome.references
    has_box = np.isfinite(outcome.iou)
    overlap, patients = np.nan_to_num(outcome.iou), references.patients
    section: dict[str, Any] = {
        "answers_hold_boxes": outcome.places_judged,
        "valid_boxes": int((has_box & (outcome.box_problems == "")).sum()),
        "invalid": dict(sorted(Counter(str(p) for p in outcome.box_problems[has_box] if p).items())),
    }
    values = {"iou": overlap} | {f"hit_rate_{level:g}": overlap >= level for level in HIT_RATES}
    for group in GROUPS:
        codes, names = references.item_codes(group)
        codes = np.where(has_box, codes, -1)
        table: dict[str, Any] = {}
        for column, numbers in values.items():
            estimates, over, under = grouped(patients, codes, names, numbers, bootstrap)
            for name, figure in estimates.items():
                table.setdefault(name, {})[column] = figure
            if group == "category":
                section.setdefault("overall", {})[column] = micro_macro(over, under)
        known = np.isfinite(outcome.distance)
        distances, over, under = grouped(
            patients, np.where(known, codes, -1), names, np.nan_to_num(outcome.distance), bootstrap
        )
        for name, figure in distances.items():
            table[name]["centre_distance_mm"] = figure
        if group == "category":
            section["overall"]["centre_distance_mm"] = micro_macro(over, under)
            both = np.where(outcome.graded, codes, -1)
            section["correlation_with_correctness"] = metrics.correlations(
                patients, both, names, overlap, outcome.right.astype(float), bootstrap
            )
        section[group] = table
    return section


def _stages(outcome: Outcome) -> dict[str, Any]:
    """Shares of the stages, overall and by category, and of right grades at a wrong place."""
    codes, names = outcome.references.item_codes("category")
    judged = outcome.stage >= 0

    def shares(chosen: Any) -> dict[str, Any]:
        total = int(chosen.sum())
        counts = np.bincount(outcome.stage[chosen], minlength=len(STAGES))
        table: dict[str, Any] = {
            stage: int(count) / total for stage, count in zip(STAGES, counts, strict=True)
        }
        lucky = chosen & (outcome.stage == 1) & outcome.right
        return table | {"n": total, "right grade at a wrong place": int(lucky.sum()) / total}

    present = {name: judged & (codes == code) for code, name in enumerate(names)}
    return {
        "places_judged": outcome.places_judged,
        "overall": shares(judged) if judged.any() else {},
        "category": {name: shares(chosen) for name, chosen in present.items() if chosen.any()},
    }
