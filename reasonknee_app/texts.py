"""The HTML of what stands beside the volume. Everything of rows and runs is escaped: answers may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from reasonknee_app.answers import Judged

COLOURS = ("#2f7ed8", "#d9730d")
"""Of the first and the second run, also of their boxes."""

CSS = """
#viewer iframe { width: 100%; height: 700px; border: 0; background: #fff; border-radius: 6px; }
#case table { border-collapse: collapse; width: 100%; }
#case th, #case td { text-align: left; padding: .15rem .7rem .15rem 0; vertical-align: top; border: 0; }
#case .text { white-space: pre-wrap; overflow-wrap: anywhere; max-width: 75ch; }
#case h3 { margin: .9rem 0 .2rem; font-size: 1rem; }
#case h3:first-child { margin-top: 0; }
#case .right { color: #1a7f37; font-weight: 600; } #case .wrong { color: #c2321f; font-weight: 600; }
.dark #case .right { color: #4cc26b; } .dark #case .wrong { color: #ff7b6b; }
footer { display: none !important; }
"""

HEAD = """
<script>
(() => {
  let last = null;
  const frame = () => document.querySelector("#viewer iframe");
  const ask = what => document.querySelector(`#${what}-question`)?.click();
  window.tellFrame = message => {
    last = message ? JSON.parse(message) : null;
    if (last && frame()) frame().contentWindow.postMessage(last, "*");
  };
  addEventListener("message", event => {
    if (!frame() || event.source !== frame().contentWindow) return;
    if (event.data.asked !== "row") ask(event.data.asked);
    else if (last) event.source.postMessage(last, "*");
  });
  addEventListener("keydown", event => {
    if (event.target.matches?.("input, textarea, [contenteditable]")) return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const what = { n: "next", p: "previous" }[event.key];
    if (what) ask(what);
  });
})();
</script>
"""


def viewer(page: str | None) -> str:
    """The frame that the volume is in. It may run scripts and nothing else: no origin, no form, no way out."""
    if page is None:
        return (
            "<p>There is no volume of this scan here. Volumes may be under terms of their own; start the app with"
            " <code>--images</code> and the folder or URL that holds yours.</p>"
        )
    return f'<iframe title="three planes of the volume" sandbox="allow-scripts" srcdoc="{escape(page)}"></iframe>'


def case_text(row: Mapping[str, Any], runs: Mapping[str, Judged]) -> str:
    """Question, grades and reasoning of a row, and what the runs answered beside the reference."""
    items = {name: items[row["id"]] for name, items in runs.items() if row.get("id") in items}
    parts = [
        ("Question", _text(row.get("prompt") or row.get("question"))),
        ("Grades and box", _table(row, items)),
    ]
    parts += [("Options", _text("\n".join(f"{o['letter']}: {o['text']}" for o in row.get("options") or ())))]
    parts += [
        ("Reasoning", _text(row.get("cot"))),
        ("Reference", "" if row.get("cot") else _text(row.get("answer"))),
    ]
    parts += [(f"Answer of {name}", _text(item["answer"] or "(none)")) for name, item in items.items()]
    return "".join(f"<h3>{escape(heading)}</h3>{body}" for heading, body in parts if body)


def outcome(item: Mapping[str, Any] | None) -> str:
    """How an item of a run ended, in a few words."""
    if item is None:
        return ""
    if item["answer"] is None:
        return "no answer"
    return str(item["stage"] or item["reason"] or "not graded")


def _text(text: Any) -> str:
    return f'<div class="text">{escape(str(text))}</div>' if text else ""


def _table(row: Mapping[str, Any], items: Mapping[str, Mapping[str, Any]]) -> str:
    grades = [(e["attribute"], e["grade"]) for e in row.get("grades") or []]
    lines = [
        (escape(name), str(truth), *(_said(item, name, truth) for item in items.values()))
        for name, truth in grades
    ]
    if row.get("bbox") is not None:
        lines.append(("box", _box(row["bbox"]), *(_place(item) for item in items.values())))
    if items:
        ends = [outcome(item) for item in items.values()]
        marked = [_marked(escape(end), end == "right") for end in ends]
        lines.append(("outcome", "", *marked))
    if not lines:
        return ""
    names = [
        f'<span style="color: {colour}">\u25a0</span> {escape(name)}'
        for name, colour in zip(items, COLOURS, strict=False)
    ]
    head = "".join(f"<th>{word}</th>" for word in ("", "reference", *names))
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _said(item: Mapping[str, Any], name: str, truth: int) -> str:
    if name in item["grades"]:
        return _marked(str(item["grades"][name]), item["grades"][name] == truth)
    return _marked(escape(str(item["problems"].get(name) or item["reason"] or "-")), False)


def _place(item: Mapping[str, Any]) -> str:
    if not item["box"]:
        return escape(item["box_problem"] or "none")
    overlap = "" if item["iou"] is None else f", IoU {item['iou']:.2f}"
    return _box(item["box"]) + overlap


def _box(box: Any) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"


def _marked(text: str, right: bool) -> str:
    return f'<span class="{"right" if right else "wrong"}">{text}</span>'
