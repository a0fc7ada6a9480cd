"""What a person sees: filters and questions on the left, the volume and what is said about it on the right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr

from reasonknee_app.answers import Judged, judged
from reasonknee_app.cases import Cases
from reasonknee_app.texts import COLOURS, CSS, HEAD, case_text, outcome, viewer
from reasonknee_hf.errors import ReasonKneeError

ANY = "any"
FACETS = (("category", "stage"), ("structure", "subtype"), ("subregion", "organ"))


def launch(
    cases: Cases, runs: Mapping[str, str] | None = None, *, host: str = "127.0.0.1", port: int | None = None,
    wait: bool = True, **options: Any,
) -> str:  # fmt: skip
    """Starts the app.

    Args:
        cases: What is shown.
        runs: Up to two prediction files by the name of their run.
        host, port: Where it listens; the first free port from 7860 on by default.
        wait: Whether to serve until it is interrupted.
        options: As `gradio.Blocks.launch` takes them.

    Returns:
        Its address, if it does not wait.
    """
    blocks = build(cases, dict(runs or {}))
    options = {"theme": gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"])} | options
    _, address, _ = blocks.launch(
        server_name=host, server_port=port, prevent_thread_lock=not wait, css=CSS, head=HEAD, share=False,
        footer_links=[], **options,
    )  # fmt: skip
    return str(address)


def build(cases: Cases, runs: dict[str, str]) -> gr.Blocks:
    """The app, not yet started."""
    screen = _Screen(cases, list(runs.items()))
    dataset = cases.dataset
    with gr.Blocks(title=dataset.title, analytics_enabled=False, fill_width=True) as blocks:
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                gr.Markdown(f"### {dataset.title}")
                split = gr.Dropdown(list(cases.splits), value=_first(cases.splits), label="Split")
                scan = gr.Dropdown([], label="Scan", filterable=True, elem_id="scan")
                with gr.Row():
                    category = gr.Dropdown(
                        [ANY, *dataset.categories], value=ANY, label="Category", min_width=120
                    )
                    structure = gr.Dropdown(
                        [ANY, *cases.structures()], value=ANY, label="Structure", min_width=120
                    )
                grade = gr.Slider(
                    0, screen.highest, value=0, step=1, label="A grade of at least", visible=screen.graded
                )
                with gr.Accordion("Compare two runs", open=bool(runs), visible=dataset.scorer is not None):
                    files = [
                        gr.File(label=screen.label(slot), height=90, elem_id=f"run-{slot}") for slot in (0, 1)
                    ]
                    differ = gr.Checkbox(label="Only questions whose outcomes differ")
                question = gr.Dropdown([], label="Question", filterable=True, elem_id="question")
                with gr.Row():
                    back = gr.Button("Previous (p)", size="sm", elem_id="previous-question", min_width=60)
                    on = gr.Button("Next (n)", size="sm", elem_id="next-question", min_width=60)
            with gr.Column(scale=4):
                picture = gr.HTML(elem_id="viewer")
                text = gr.HTML(elem_id="case", padding=False)
                table = gr.Dataframe(
                    interactive=False, label="Questions of this scan", elem_id="items", wrap=True
                )
        message = gr.Textbox(visible="hidden")
        asked = [split, scan, category, structure, grade, differ, *files]
        listed = {"fn": screen.questions, "inputs": asked, "outputs": [question, table]}
        shown = {"fn": screen.show, "inputs": [split, scan, question, *files], "outputs": [text, message]}
        tell = {"fn": None, "inputs": [message], "js": "message => tellFrame(message)"}
        quick: dict[str, Any] = {"show_progress": "hidden"}
        for change in (blocks.load, split.input):
            change(screen.scans, [split], [scan])
        scan.change(screen.picture, [split, scan], [picture]).then(**listed)
        for control in (category, structure, grade, differ, *files):
            control.change(**listed).then(**shown, **quick).then(**tell)
        question.change(**shown, **quick).then(**tell)
        for button, step in ((back, -1), (on, 1)):
            button.click(screen.step(step), [question, table], [question], **quick)
        table.select(screen.chosen, [table], [question], **quick)
    return blocks


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors of the package as a message on the screen."""

    @wraps(method)
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except ReasonKneeError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return call


class _Screen:
    """What the controls do."""

    def __init__(self, cases: Cases, runs: Sequence[tuple[str, str]]) -> None:
        self._cases = cases
        self._runs = [*runs[:2], *[("", "")] * (2 - len(runs))]
        questions = cases.dataset.questions.values()
        highest = [attribute.high for q in questions for attribute in getattr(q, "attributes", ())]
        self.graded, self.highest = bool(highest), max(highest, default=1)

    def label(self, slot: int) -> str:
        name, path = self._runs[slot]
        return f"{name} ({Path(path).name}); drop another" if path else f"Predictions of run {'AB'[slot]}"

    @_told
    def scans(self, split: str | None) -> Any:
        ids = self._cases.scan_ids(split) if split else []
        return gr.Dropdown(ids, value=_first(ids))

    @_told
    def picture(self, split: str, scan: str | None) -> str:
        return viewer(self._cases.case(split, scan).page) if scan else ""

    @_told
    def questions(
        self,
        split: str,
        scan: str | None,
        category: str,
        structure: str,
        grade: int,
        differ: bool,
        *files: Any,
    ) -> tuple[Any, Any]:
        """The questions that the filters leave, as choices and as a table."""
        rows = self._cases.case(split, scan).rows if scan else ()
        runs = self._judged(rows, files)
        kept = []
        for number, row in enumerate(rows):
            ends = [outcome(items.get(row.get("id", ""))) for items in runs.values()]
            highest = max((entry["grade"] for entry in row.get("grades") or ()), default=0)
            if (
                category in (ANY, facets(row)[0])
                and structure in (ANY, facets(row)[1])
                and highest >= grade
                and (not differ or len(set(ends)) > 1)
            ):
                kept.append((number, row, ends))
        choices = [(_name(number, row), number) for number, row, _ in kept]
        headers = ["#", "category", "structure", "region", "answer", *runs]
        lines = [[number, *_cells(row), *ends] for number, row, ends in kept]
        first = choices[0][1] if choices else None
        return gr.Dropdown(choices, value=first), gr.Dataframe({"headers": headers, "data": lines})

    @_told
    def show(self, split: str, scan: str | None, number: int | None, *files: Any) -> tuple[str, str]:
        """What is said about one row, and what the frame is told."""
        rows = self._cases.case(split, scan).rows if scan else ()
        if number is None or number >= len(rows):
            return "<p>No question of this scan is left by the filters.</p>", ""
        row, runs = rows[number], self._judged(rows, files)
        boxes = [
            {"box": item["box"], "name": f"box of {name}", "colour": colour}
            for (name, items), colour in zip(runs.items(), COLOURS, strict=False)
            if (item := items.get(row.get("id", ""))) and item["box"]
        ]
        return case_text(row, runs), json.dumps({"row": number, "boxes": boxes})

    def step(self, by: int) -> Callable[[int | None, Any], Any]:
        """Goes to another one of the questions that are listed."""

        def move(number: int | None, table: Any) -> Any:
            listed = [int(each) for each in table["#"]] if "#" in table else []
            if number not in listed:
                return _first(listed)
            return listed[min(max(listed.index(number) + by, 0), len(listed) - 1)]

        return move

    def chosen(self, table: Any, event: gr.SelectData) -> int:
        """The question whose line was clicked."""
        return int(table["#"].iloc[event.index[0]])

    def _judged(self, rows: Sequence[Mapping[str, Any]], files: Sequence[str | None]) -> dict[str, Judged]:
        runs: dict[str, Judged] = {}
        for slot, (uploaded, (name, path)) in enumerate(zip(files, self._runs, strict=True)):
            if uploaded or path:
                name = Path(uploaded).stem if uploaded else name
                name = f"{name} ({'AB'[slot]})" if name in runs else name
                runs[name] = judged(self._cases.dataset.name, uploaded or path, rows)
        return runs


def _first(values: Sequence[Any]) -> Any:
    return values[0] if values else None


def facets(row: Mapping[str, Any]) -> list[str]:
    """What a question is about, from the coarse to the fine, in the words of its dataset."""
    return [str(next((row[n] for n in names if row.get(n)), "")) for names in FACETS]


def _name(number: int, row: Mapping[str, Any]) -> str:
    return f"{number + 1}. " + (", ".join(filter(None, facets(row))) or "the whole volume")


def _cells(row: Mapping[str, Any]) -> list[str]:
    grades = ", ".join(f"{entry['attribute']} {entry['grade']}" for entry in row.get("grades") or ())
    return [*facets(row), grades or str(row.get("correct_option") or "")]
