"""Tables of a report, once for the terminal and once as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reasonknee_hf.bench.outcome import STAGES
from reasonknee_hf.bench.scorer import Scorer


@dataclass
class Table:
    """A title, a header, rows of text and notes below."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal: columns padded, numbers to the right."""
        widths = [
            max(len(row[column]) for row in (self.header, *self.rows)) for column in range(len(self.header))
        ]
        lines = [self.title, ""]
        for number, row in enumerate((self.header, *self.rows)):
            cells = [
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
            if number == 0:
                lines.append("  " + "  ".join("-" * width for width in widths))
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def markdown(self) -> str:
        """As a pipe table below a heading."""
        lines = [f"### {self.title}", ""]
        for number, row in enumerate((self.header, *self.rows)):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
            if number == 0:
                lines.append("|" + "|".join([" --- ", *(" ---: " for _ in row[1:])]) + "|")
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])


def number(figure: dict[str, Any] | None, *, interval: bool = False, digits: int = 3) -> str:
    """An estimate as text, `-` where it is not defined."""
    if figure is None or figure["value"] is None:
        return "-"
    text = f"{figure['value']:.{digits}f}"
    if interval and figure["ci"] is not None:
        text += " [{:.{d}f}, {:.{d}f}]".format(*figure["ci"], d=digits)
    return text


def signed(figure: dict[str, Any] | None, *, interval: bool = False) -> str:
    """A difference as text, with its sign."""
    text = number(figure, interval=interval)
    return f"+{text}" if figure and figure["value"] is not None and figure["value"] >= 0 else text


def all_tables(data: dict[str, Any], published: Scorer | None = None) -> list[Table]:
    """The tables of a report, the most read first; beside the figures that were published for a benchmark."""
    tables = [_overall(data), _paper(data, published), _categories(data), _stages(data)]
    if data["localisation"]["answers_hold_boxes"]:
        tables.append(_boxes(data))
    tables += [
        _attributes(data),
        _kappas(data),
        _risk(data),
        _ranges(data),
        _structures(data),
        _invalid(data),
        _answers(data),
    ]
    return [table for table in tables if table.rows]


def headline(data: dict[str, Any]) -> list[str]:
    """What was scored by which rules: the lines above the tables."""
    count, inputs, rules = data["count"], data["inputs"], data["rules"]
    bootstrap = rules["bootstrap"]
    lines = [] if data["subset"] is None else [f"SUBSET of the benchmark: {data['subset']}."]
    lines += [
        f"{count['items']} items ({count['grades']} grades, {count['items_with_box']} boxes) of "
        f"{count['scans']} scans; patients: {count['patients']}.",
        f"{inputs['entries']} predictions read ({', '.join(inputs['forms']) or 'none'}): "
        f"{inputs['answered_items']} items answered, "
        f"{inputs['missing_items']} missing, {inputs['identical_repeats']} identical repeats ignored, "
        f"{inputs['passed_over_entries']} entries without an answer passed over, "
        f"{inputs['conflicting_items']} items with conflicting answers ({rules['conflicts']}), "
        f"{inputs['unknown_entries']} unknown ids. Missing and invalid answers count as wrong.",
        f"Answers read {'strictly' if rules['strict'] else 'with repairs'}"
        f"{', grades guessed from free text' if rules['free_digits'] else ''}, rules {rules['version']} of "
        f"BENCHMARK.md. Boxes: {rules['boxes']}.",
    ]
    if bootstrap["rounds"]:
        lines.append(
            f"In brackets: 95 % intervals, {bootstrap['rounds']} bootstrap rounds over patients, "
            f"seed {bootstrap['seed']}."
        )
        lines += [f"CAVEAT: {caveat}" for caveat in data["caveats"]]
    prior = data["prior_origin"]
    lines.append(
        f"Prior: always the most frequent grade of each question in {prior}."
        if prior
        else "Prior: not given. Accuracy means little without it: pass `--priors train` or a file of priors."
    )
    return [*lines, *(f"WARNING: {warning}" for warning in data["warnings"])]


_LABELS = {
    "attribute_accuracy": "Attribute accuracy",
    "prior_attribute_accuracy": "  prior",
    "item_accuracy": "Item accuracy (all attributes right)",
    "prior_item_accuracy": "  prior",
    "coverage": "Coverage (valid answers)",
}


def _overall(data: dict[str, Any]) -> Table:
    overall = data["grades"].get("overall", {})
    table = Table(
        "Overall", ["", "micro", "macro"], notes=["Micro: all pooled. Macro: mean of the categories."]
    )
    for column, label in _LABELS.items():
        if column in overall:
            both = overall[column]
            interval = not column.startswith("prior")
            table.rows.append(
                [label, *(number(both[kind], interval=interval) for kind in ("micro", "macro"))]
            )
    balanced = data["attributes"]["balanced_accuracy"]["macro"]
    table.rows.append(["Balanced accuracy", "", number(balanced, interval=True)])
    places = data["localisation"]["overall"]
    if data["localisation"]["answers_hold_boxes"]:
        for column, label in (("iou", "3D IoU"), ("hit_rate_0.25", "IoU at least 0.25")):
            row = [number(places[column][kind], interval=True) for kind in ("micro", "macro")]
            table.rows.append([label, *row])
    else:
        table.rows.append(["3D IoU", "no answer holds a box", ""])
    return table


def _paper(data: dict[str, Any], compare: Scorer | None) -> Table:
    overall, columns = data["grades"].get("overall", {}), data["grades"]["paper"]
    names = data["groups"]["paper"]
    title = "The paper's columns" + (", with its published figures" if compare else "")
    table = Table(title, ["Run", *names, "micro", "macro", *(["overall"] if compare else [])])
    suffix = "" if data["subset"] is None else " (SUBSET)"
    for column, label in (("attribute_accuracy", "attributes"), ("item_accuracy", "items")):
        cells = [number(columns.get(name, {}).get(column)) for name in names]
        totals = (
            [number(overall[column][kind]) for kind in ("micro", "macro")]
            if column in overall
            else ["-", "-"]
        )
        table.rows.append([f"{data['name']}, {label}{suffix}", *cells, *totals, *(["-"] if compare else [])])
    if compare:
        for label, figures, total in compare.published:
            cells = [f"{value:.3f}" for value in figures]
            table.rows.append([f"PAPER, as published: {label}", *cells, "-", "-", f"{total:.3f}"])
        table.notes = compare.published_notes
    return table


def _categories(data: dict[str, Any]) -> Table:
    table = Table(
        "By category",
        ["Category", "items", "coverage", "attributes", "prior", "items right", "prior", "balanced"],
    )
    balanced = data["attributes"]["balanced_accuracy"]["category"]
    for name in data["groups"]["category"]:
        row = data["grades"]["category"].get(name)
        if row is None:
            continue
        table.rows.append(
            [
                name,
                str(row["item_accuracy"]["n"]),
                number(row["coverage"]),
                number(row["attribute_accuracy"], interval=True),
                number(row.get("prior_attribute_accuracy")),
                number(row["item_accuracy"], interval=True),
                number(row.get("prior_item_accuracy")),
                number(balanced.get(name), interval=True),
            ]
        )
    return table


def _stages(data: dict[str, Any]) -> Table:
    stages = data["stages"]
    lucky = "right grade at a wrong place"
    table = Table("The first link that broke (shares)", ["Category", *STAGES, "of wrong place: grade right"])
    for name, row in [*stages["category"].items(), ("All items", stages["overall"])]:
        if row:
            table.rows.append([name, *(f"{row[stage]:.3f}" for stage in STAGES), f"{row[lucky]:.3f}"])
    if stages["places_judged"]:
        table.notes = [f"Wrong place: IoU under {data['rules']['iou_threshold']:g}."]
    else:
        table.notes = ["No answer holds a box, so no place was judged."]
    return table


def _boxes(data: dict[str, Any]) -> Table:
    section = data["localisation"]
    header = ["Category", "boxes", "3D IoU", ">=0.1", ">=0.25", ">=0.5", "distance mm", "r(IoU, right)"]
    table = Table(f"Localisation ({data['rules']['box_ends']} ends)", header)
    for name, row in section["category"].items():
        table.rows.append(
            [
                name,
                str(row["iou"]["n"]),
                number(row["iou"], interval=True),
                *(number(row[f"hit_rate_{level}"]) for level in ("0.1", "0.25", "0.5")),
                number(row.get("centre_distance_mm"), digits=1),
                number(section["correlation_with_correctness"].get(name), interval=True, digits=2),
            ]
        )
    problems = ", ".join(f"{count} {name}" for name, count in section["invalid"].items()) or "none"
    table.notes = [
        f"Over all items with a reference box; missing and invalid boxes score 0: {problems}.",
        f"Distance between centres over the {section['valid_boxes']} valid boxes.",
    ]
    return table


def _attributes(data: dict[str, Any]) -> Table:
    header = [
        "Attribute",
        "grades",
        "accuracy",
        "balanced",
        "chance",
        "kappa",
        "AC1",
        "recall of 0, 1, 2, ...",
    ]
    table = Table("By attribute", header)
    for name, row in data["attributes"]["table"].items():
        recall = " ".join("-" if value is None else f"{value:.2f}" for value in row["recall"])
        table.rows.append(
            [
                name,
                str(row["accuracy"]["n"]),
                number(row["accuracy"]),
                number(row["balanced_accuracy"]),
                f"{row['chance']:.3f}",
                "no order"
                if row["weighted_kappa"] is None
                else number(row["weighted_kappa"], interval=True, digits=2),
                number(row["ac1"], digits=2),
                recall,
            ]
        )
    table.notes = [
        "Kappa: quadratic weights; AC1: Gwet's, for rare findings. Recall: '-' where no reference has the grade."
    ]
    return table


def _kappas(data: dict[str, Any]) -> Table:
    table = Table("Weighted kappa, mean of the attributes", ["Group", "grades", "kappa"])
    for group in ("category", "compartment"):
        for name, figure in data["attributes"]["weighted_kappa"][group].items():
            table.rows.append([name, str(figure["n"]), number(figure, interval=True, digits=2)])
    return table


def _risk(data: dict[str, Any]) -> Table:
    risk = data["risk"]
    table = Table(
        "Risk by coverage (share of items not right among the surest)", ["", "area", *risk.get("risk", {})]
    )
    if risk:
        table.rows.append(
            [data["name"], *(f"{value:.3f}" for value in (risk["area"], *risk["risk"].values()))]
        )
        table.notes = [f"{risk['items']} items have a confidence; those without come last."]
    return table


def _ranges(data: dict[str, Any]) -> Table:
    table = Table("By range of the grades", ["Grades", "count", "attributes", "prior"])
    for name, row in data["grade_ranges"].items():
        accuracy = row["attribute_accuracy"]
        prior = number(row.get("prior_attribute_accuracy"))
        table.rows.append([name, str(accuracy["n"]), number(accuracy, interval=True), prior])
    return table


def _structures(data: dict[str, Any]) -> Table:
    table = Table("By structure", ["Structure", "items", "attributes", "items right", "3D IoU"])
    for name, row in data["grades"]["structure"].items():
        place = data["localisation"]["structure"].get(name, {})
        iou = number(place.get("iou")) if data["localisation"]["answers_hold_boxes"] else "-"
        figures = [number(row[column]) for column in ("attribute_accuracy", "item_accuracy")]
        table.rows.append([name, str(row["item_accuracy"]["n"]), *figures, iou])
    return table


def _invalid(data: dict[str, Any]) -> Table:
    names = list(data["invalid"])
    table = Table("Items without a valid answer, by reason", ["Category", *names])
    for category, row in [*data["invalid_by_category"].items(), ("All items", data["invalid"])]:
        table.rows.append([category, *(str(row.get(name, 0)) for name in names)])
    return table


def _answers(data: dict[str, Any]) -> Table:
    table = Table("How answers were read", ["What", "answers"])
    for title, section in (("repaired", "repairs"), ("noted", "notes")):
        table.rows += [[f"{title}: {name}", str(count)] for name, count in data[section].items()]
    return table
