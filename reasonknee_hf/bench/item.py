"""One item for the eye: what was asked, what was answered, what was read of it, and how it was judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reasonknee_hf.bench.inputs import CONFLICTING
from reasonknee_hf.bench.score_report import Report


def item_text(row: Mapping[str, Any], report: Report) -> str:
    """The item of `row` in a report over that row alone, as text for a terminal."""
    item = report.item(0)
    answer = report.outcome.merged.answers.get(item["id"])
    lines = [f"Item {item['id']}: {item['category']}, {row.get('structure')}, {row.get('subregion')}"]
    if report.data["subset"] is not None:
        lines.append(f"SUBSET of the benchmark: {report.data['subset']}.")
    lines += ["", "Prompt", _indented(str(row["prompt"])), "", "Answer", _indented(_answer(answer))]
    if item["span"]:
        start, stop = item["span"]
        text = answer.get("response") if isinstance(answer, Mapping) else answer
        lines += ["", f"Read from characters {start} to {stop}", _indented(str(text)[start:stop])]
    grades = {name: _grade(item, name, truth) for name, truth in item["truth"].items()}
    overlap = "-" if item["iou"] is None else f"{item['iou']:.3f}"
    lines += [
        "",
        f"Reading   {item['reason'] or 'valid'}",
        f"Repairs   {', '.join(item['repairs']) or 'none'}",
        f"Notes     {', '.join(item['notes']) or 'none'}",
        *(f"Grade     {name}: {text}" for name, text in grades.items()),
        f"Box       {_box(item['box']) if item['box'] else item['box_problem'] or 'none'}",
        f"          {_box(item['box_truth']) if item['box_truth'] else 'none'} in the reference",
        f"3D IoU    {overlap} ({report.data['rules']['boxes']})",
        f"Stage     {item['stage']}",
    ]
    return "\n".join(lines)


def _grade(item: Mapping[str, Any], name: str, truth: int) -> str:
    if name in item["grades"]:
        said = item["grades"][name]
        return f"answered {said}, reference {truth}: {'right' if said == truth else 'wrong'}"
    return f"no valid grade ({item['problems'].get(name, item['reason'])}), reference {truth}"


def _answer(answer: Any) -> str:
    if answer is None:
        return "(none)"
    if answer is CONFLICTING:
        return "(answers that differ)"
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, indent=1)


def _box(box: list[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
