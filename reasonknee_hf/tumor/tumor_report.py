"""The items of the benchmark of DeepTumorVQA 2.0, what a run was given, and what came of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from reasonknee_hf.bench.score_tables import Table, number
from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.dataset.record_forms import records_of
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.tumor.question_types import STAGES, Subtype, subtype_of
from reasonknee_hf.tumor.tumor_answers import read_yes_no
from reasonknee_hf.tumor.tumor_rows import asked

Form = Literal["mc", "freeform"]
FORMS = ("mc", "freeform")
MODES = ("direct", "oracle", "predicted", "vision")
"""Which tools a model had: none, reference masks, automatic segmentations, pictures only."""
INPUTS = ("3d_volume", "2d_image", "2d_video")
TOLERANCES = (0.05, 0.1, 0.2, 0.5)
FEW = 10
"""Subtypes with fewer questions are marked."""
EXPERT_QUESTIONS = 200


class Item(NamedTuple):
    """One question of the benchmark, and its truth."""

    id: str
    scan_id: str
    subtype: Subtype
    answer: str | None
    options: tuple[tuple[str, str], ...]
    correct: str | None

    @property
    def kind(self) -> str:
        """How a free answer is compared: as `numeric`, `binary` or `categorical`."""
        if self.subtype.answer_type == "binary" and read_yes_no(self.answer) is None:
            return "categorical"
        return self.subtype.answer_type


@dataclass(frozen=True)
class Settings:
    """What a run was given; only runs with equal ones are compared.

    Args:
        form: `mc` (letters) or `freeform`.
        mode: One of [`MODES`]; `None` where nobody said.
        input: One of [`INPUTS`]; `None` where nobody said.
        tolerance: By how much of the truth a number may be off.
    """

    form: Form = "mc"
    mode: str | None = None
    input: str | None = None
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        for name, value, valid in (
            ("form", self.form, FORMS),
            ("mode", self.mode, MODES),
            ("input", self.input, INPUTS),
        ):
            if value not in valid and (name == "form" or value is not None):
                raise OptionError(f"{name}={value!r} is none of {', '.join(valid)}.")
        if not 0 <= self.tolerance < 1:
            raise OptionError(f"tolerance={self.tolerance} is a share of the truth, 0 or more and below 1.")


def read_items(rows: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Rows of the config `benchmark` as items, sorted by id. No volume is opened.

    Raises:
        RecordError: A row has no known subtype, or an id stands twice.
    """
    return _sorted(
        Item(
            row.get("id", ""),
            row.get("scan_id", ""),
            _subtype(row.get("id"), row.get("subtype")),
            row.get("answer"),
            tuple((option["letter"], option["text"]) for option in row.get("options") or ()),
            row.get("correct_option"),
        )
        for row in rows
    )


def released_items(release: Release) -> list[Item]:
    """The same of a release, from its records: neither rows are made nor volumes looked for.

    Raises:
        RecordError: As above.
        AnnotationError: The file is not what its form should be.
    """

    def item(record: Mapping[str, Any]) -> Item:
        one = asked(record, scan_id := str(record.get("image_id")), [])
        subtype = one["subtype"] or _subtype(one["id"], record.get("question_subtype"))
        options = tuple((one["options"] or {}).items())
        return Item(one["id"], scan_id, subtype, one["answer"], options, one["correct_option"])

    path = release.annotation_path("test", "benchmark")
    return _sorted(item(record.value) for record in records_of(release, path))


def _subtype(item: object, named: object) -> Subtype:
    if (found := subtype_of(named)) is None:
        raise RecordError(f"{item}: its subtype {named!r} is none of the benchmark's")
    return found


def _sorted(found: Iterable[Item]) -> list[Item]:
    items: dict[str, Item] = {}
    for item in found:
        if item.id in items:
            raise RecordError(f"{item.id} stands twice among the references")
        items[item.id] = item
    return [items[name] for name in sorted(items)]


@dataclass(frozen=True)
class TumorReport:
    """What came of a run.

    Args:
        data: All figures as plain values.
        right: Whether each item is right, in the order of their ids.
        items: The items.
        reasons: Why an answer could not be read; `None` where it could.
    """

    data: dict[str, Any]
    right: np.ndarray[Any, np.dtype[np.bool_]]
    items: list[Item]
    reasons: list[str | None]

    def records(self) -> Iterator[dict[str, Any]]:
        """One entry an item: id, subtype, whether it is right, and why it could not be read."""
        for item, right, reason in zip(self.items, self.right.tolist(), self.reasons, strict=True):
            yield {"id": item.id, "subtype": item.subtype.name, "right": right, "reason": reason}

    def tables(self, board: Sequence[Mapping[str, str]] = ()) -> list[Table]:
        """Stages, subtypes, and what was not answered; beside rows of the published board that are comparable."""
        data = self.data
        head = ("", "micro", "macro", "questions")
        rows: list[Sequence[str]] = [
            (name, number(f["micro"], interval=True), number(f["macro"]), str(f["micro"]["n"]))
            for name, f in (*data["stages"].items(), ("overall", data["overall"]))
        ]
        notes = [f"{key}: {value}" for key, value in data["settings"].items()]
        if data["subset"]:
            notes.append(f"SUBSET of the benchmark: {data['subset']}. Not comparable with the board.")
        tables = [Table(f"{data['benchmark']}: {data['name']}", head, rows, notes)]
        kinds: list[Sequence[str]] = [
            (
                name + (" *" if f["few"] else ""),
                number(f["accuracy"], interval=True),
                number(f.get("relative")),
                str(f["n"]),
            )
            for name, f in data["subtypes"].items()
        ]
        tables.append(
            Table("Subtypes", ("", "right", "relative accuracy", "questions"), kinds, [f"* fewer than {FEW}"])
        )
        counts: list[Sequence[str]] = [(name, str(count)) for name, count in data["counts"].items()]
        tables.append(Table("Answers", ("", "count"), counts))
        if board:
            tables.append(self._board(board))
        return tables

    def text(self, board: Sequence[Mapping[str, str]] = ()) -> str:
        """The tables for a terminal."""
        return "\n\n".join(table.text() for table in self.tables(board)) + "\n"

    def _board(self, board: Sequence[Mapping[str, str]]) -> Table:
        own = self.data["stages"]
        figures = [
            f"{100 * (own[stage]['micro']['value'] or 0):.1f}" if stage in own else "-" for stage in STAGES
        ]
        overall = f"{100 * (self.data['overall']['micro']['value'] or 0):.1f}"
        rows: list[Sequence[str]] = [(self.data["name"], overall, *figures)]
        for row in board:
            mark = f" ({EXPERT_QUESTIONS} items)" if "radiologist" in row["model"].casefold() else ""
            rows.append(
                (row["model"] + mark, *(row[name] for name in ("overall", "recog", "meas", "visr", "medr")))
            )
        notes = [
            "The board's figures are its authors', by their scorer, whose faults these rules do not have."
        ]
        return Table("The published board, percent", ("", "overall", *STAGES), rows, notes)


def compare(reports: Mapping[str, TumorReport]) -> Table:
    """Runs side by side, by stage.

    Raises:
        OptionError: Their settings or questions differ; the message says in what.
    """
    first = next(iter(reports.values()))
    for name, report in reports.items():
        for key, value in first.data["settings"].items():
            if report.data["settings"][key] != value:
                raise OptionError(
                    f"{name} is no run to compare: {key} is {report.data['settings'][key]!r}, elsewhere {value!r}."
                )
        if report.items != first.items:
            raise OptionError(f"{name} was scored on other questions.")
    rows: list[Sequence[str]] = [
        (
            name,
            number(r.data["overall"]["micro"], interval=True),
            *(number(f["micro"]) for f in r.data["stages"].values()),
        )
        for name, r in reports.items()
    ]
    return Table("Runs", ("", "overall", *first.data["stages"]), rows, [json.dumps(first.data["settings"])])


def board(text: str, settings: Settings) -> list[dict[str, str]]:
    """Rows of the published board that a run with these settings may stand beside.

    Args:
        text: `metadata/leaderboard.csv`, or `leaderboard_freeform.csv`, of the release.
        settings: Those of the run; rows of another tool mode, or another kind of input, are left out.
    """
    kinds = {"3d_volume": ("3d vol",), "2d_image": ("2d", "2d+tools"), "2d_video": ("video",)}
    wanted = kinds.get(settings.input or "")
    return [
        row
        for row in csv.DictReader(text.splitlines())
        if (settings.mode is None or row.get("mode") == settings.mode)
        and (wanted is None or str(row.get("input")).casefold() in wanted)
    ]
