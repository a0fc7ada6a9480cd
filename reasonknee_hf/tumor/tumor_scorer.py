"""The benchmark of DeepTumorVQA 2.0: four stages, 42 subtypes, multiple choice or free answers.

    report = score("results.json", rk.load_dataset("deeptumorvqa/benchmark", split="test", streaming=True))
    print(report.text())

Denominators are those of the references: what is missing, empty, an error or unreadable is wrong, and counted by name.
Multiple choice and free answers are two benchmarks and never in one mean. Of free answers a number is right within a
relative tolerance; the mean relative accuracy of numbers (1 - |said - true| / |true|, at least 0) stands beside it.
*Micro* is over questions, *macro* the plain mean over the subtypes that occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from reasonknee_hf.bench.inputs import CONFLICTING, Conflicts, Entry, Predictions, merge, read_entries
from reasonknee_hf.bench.metrics import Bootstrap, estimate, grouped, mean_of_known, ratio
from reasonknee_hf.bench.runner_rows import Columns
from reasonknee_hf.dataset.contract import described
from reasonknee_hf.errors import PredictionError
from reasonknee_hf.tumor.question_types import STAGES
from reasonknee_hf.tumor.tumor_answers import (
    RULES_VERSION,
    phrase,
    read_letter,
    read_number,
    read_yes_no,
    said,
)
from reasonknee_hf.tumor.tumor_files import SOURCE
from reasonknee_hf.tumor.tumor_report import (
    FEW,
    TOLERANCES,
    Item,
    Settings,
    TumorReport,
    board,
    read_items,
    released_items,
)

_ERROR = "[ERROR]"


class TumorScorer:
    """How result files name their items; what else the general room of scoring asks of a benchmark."""

    title = "DeepTumorVQA 2.0"
    dataset_id = SOURCE
    task_id = "deeptumorvqa"
    tasks: tuple[str, ...] = ()
    references_of = ("benchmark", "test")
    rules_version = RULES_VERSION

    def entry(self, row: Mapping[str, Any]) -> Entry | None:
        """A row of the published form. The truth that stands beside an answer there is never read."""
        if "qid" not in row:
            return None
        told = row.get("raw_output") or row.get("final_answer")
        for step in row.get("trajectory") or ():
            if isinstance(step, Mapping) and "final_answer" in step:
                told = told or step["final_answer"]
        told = told or row.get("pred_answer")
        if isinstance(told, str) and told.lstrip().startswith(_ERROR):
            told = {"error": told}
        return Entry(str(row["qid"]), told, form="results")


TUMOR_SCORER = TumorScorer()


def score(
    predictions: Predictions,
    references: Iterable[Mapping[str, Any]] | Sequence[Item],
    *,
    settings: Settings | None = None,
    conflicts: Conflicts = "raise",
    rounds: int = 1000,
    seed: int = 0,
    subset: str | None = None,
    name: str = "this run",
    columns: Columns = Columns(),  # noqa: B008
) -> TumorReport:
    """Scores the answers of one run.

    Args:
        predictions: Result files as the benchmark's own programs write them, or any that `bench.score` reads.
        references: Rows of the config `benchmark`, or items that [`read_items`] or [`released_items`] made.
        settings: What the run was given; by default letters, and nothing said about tools and input.
        conflicts: Where an item has different answers: `raise` an error, or count it as `conflicting`.
        rounds, seed: Of the bootstrap over volumes, whose questions are drawn together; 0 for no intervals.
        subset: What part of the benchmark `references` are, if they are not all of it.
        name: What to call the run.
        columns: Names of the columns of ids and answers, where they are not to be found.

    Raises:
        PredictionError: A file cannot be read, no answer is for one of the references, or answers conflict and
            `conflicts` is `raise`.
        RecordError: The references are no rows of the benchmark.
    """
    settings = settings or Settings()
    rows: list[Any] = list(references)
    items: list[Item] = rows if rows and isinstance(rows[0], Item) else read_items(rows)
    known = {item.id for item in items}
    merged = merge(
        read_entries(predictions, TUMOR_SCORER.entry, columns),
        lambda entry: (entry.id if entry.id in known else None, False),
        conflicts,
    )
    if merged.unknown and not merged.answers:
        raise PredictionError(
            f"none of {merged.entries:,} predictions is for a question of this benchmark. Ids there:"
            f" {', '.join(merged.unknown[:2])}; ids wanted: {items[0].id}, … Check --dataset and --source."
        )
    judge: Callable[[Item, Any], tuple[bool | None, float, str | None]] = (
        _judge_letter
        if settings.form == "mc"
        else lambda item, answer: _judge_free(item, answer, settings.tolerance)
    )
    right, relative, reasons = np.zeros(len(items), bool), np.full(len(items), np.nan), []
    scored = np.ones(len(items), bool)
    for place, item in enumerate(items):
        verdict, relative[place], reason = judge(item, merged.answers.get(item.id))
        scored[place], right[place] = verdict is not None, bool(verdict)
        reasons.append(reason)
    report = _figures(items, right, relative, scored, settings, rounds, seed)
    counts = Counter(reason for reason in reasons if reason is not None)
    report["counts"] = {
        "questions": len(items),
        "answered": sum(item.id in merged.answers for item in items),
        **{reason: counts[reason] for reason in _REASONS if counts[reason]},
        "identical repeats": merged.repeats,
        "unknown ids": len(merged.unknown),
    }
    report["unknown_ids"] = merged.unknown[:20]
    about = {"benchmark": TumorScorer.title, "name": name, "subset": subset, "rules": RULES_VERSION}
    return TumorReport(about | {"settings": asdict(settings)} | report, right, items, reasons)


_REASONS = ("missing", "error", "empty", "unreadable", "conflicting", "reasoning only", "no truth")


def _told(answer: Any) -> tuple[str, str | None]:
    """What an answer says, and why nothing if that is so."""
    if answer is None:
        return "", "missing"
    if answer is CONFLICTING:
        return "", "conflicting"
    if isinstance(answer, Mapping) and list(answer) == ["error"]:
        return "", "error"
    if text := said(answer):
        return text, None
    return "", "reasoning only" if str(answer).strip() else "empty"


def _judge_letter(item: Item, answer: Any) -> tuple[bool | None, float, str | None]:
    if item.correct is None or not item.options:
        return None, np.nan, "no truth"
    text, reason = _told(answer)
    if reason is not None:
        return False, np.nan, reason
    letter = read_letter(text, item.options)
    return letter == item.correct, np.nan, "unreadable" if letter is None else None


def _judge_free(item: Item, answer: Any, tolerance: float) -> tuple[bool | None, float, str | None]:
    numeric = item.kind == "numeric"
    truth = read_number(item.answer) if numeric else None
    if item.answer is None or (numeric and truth is None):
        return None, np.nan, "no truth"
    text, reason = _told(answer)
    if reason is not None:
        return False, 0.0 if numeric else np.nan, reason
    if truth is not None:
        value = read_number(text)
        if value is None:
            return False, 0.0, "unreadable"
        off = abs(value - truth) / abs(truth) if truth else float(value != 0)
        return off <= tolerance, max(0.0, 1 - off), None
    if item.kind == "binary":
        told = read_yes_no(text)
        return (
            told is not None and told == read_yes_no(item.answer),
            np.nan,
            "unreadable" if told is None else None,
        )
    return phrase(text) == phrase(item.answer), np.nan, None


def _figures(
    items: list[Item],
    right: np.ndarray[Any, Any],
    relative: np.ndarray[Any, Any],
    scored: np.ndarray[Any, Any],
    settings: Settings,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    volumes = {scan: code for code, scan in enumerate(sorted({item.scan_id for item in items}))}
    codes = np.array([volumes[item.scan_id] for item in items], np.int64)
    bootstrap = Bootstrap(len(volumes), rounds, seed)
    names = list(dict.fromkeys(item.subtype.name for item in sorted(items, key=lambda item: item.subtype.id)))
    kinds = np.array([names.index(item.subtype.name) for item in items], np.int64)
    kinds = np.where(scored, kinds, -1)
    table, over, under = grouped(codes, kinds, names, right, bootstrap)
    stage_of = {item.subtype.name: item.subtype.stage for item in items}
    answer_types = {item.subtype.name: item.subtype.answer_type for item in items}
    subtypes = {
        name: {"accuracy": found, "n": found["n"], "few": found["n"] < FEW, "answer_type": answer_types[name]}
        for name, found in table.items()
    }

    def pooled(chosen: list[int]) -> dict[str, Any]:
        count = under[0, chosen].sum()
        micro = estimate(ratio(over[:, chosen].sum(axis=1), under[:, chosen].sum(axis=1)), count)
        macro = estimate(mean_of_known(ratio(over[:, chosen], under[:, chosen])), count)
        return {"micro": micro, "macro": macro}

    stages = {
        stage: pooled([place for place, name in enumerate(names) if stage_of[name] == stage])
        for stage in STAGES
        if stage in stage_of.values()
    }
    found = {"overall": pooled(list(range(len(names)))), "stages": stages, "subtypes": subtypes}
    if settings.form == "freeform":
        far = np.where(np.isfinite(relative), kinds, -1)
        near, near_over, near_under = grouped(codes, far, names, np.nan_to_num(relative), bootstrap)
        for name, value in near.items():
            subtypes[name]["relative"] = value
        total = near_under.sum(axis=1)
        found["numbers"] = {"relative_accuracy": estimate(ratio(near_over.sum(axis=1), total), total[0])}
        for limit in TOLERANCES:
            within = np.where(far >= 0, relative >= 1 - limit - 1e-12, False)
            hits = grouped(codes, np.where(far >= 0, 0, -1), ["numbers"], within, bootstrap)[0]
            found["numbers"][f"within {limit:.0%}"] = hits.get("numbers")
    return found


def score_files(
    paths: list[str], *, opening: Mapping[str, Any], settings: Mapping[str, Any], paper: bool, **options: Any
) -> tuple[str, TumorReport]:
    """Scores result files against a release: the tables as text, and the report.

    Args:
        paths: The files.
        opening: What opens the release: `source`, `revision`, …
        settings: Those of [`Settings`] that are given.
        paper: Whether rows of the published board stand beside the run's.
        options: Those of [`score`].
    """
    given, release = Settings(**settings), described("deeptumorvqa").open(**opening)
    subset = "synthetic sample" if opening.get("source") == "sample" else None
    report = score(paths, released_items(release), settings=given, subset=subset, **options)
    published: list[dict[str, str]] = []
    if paper:
        form = "_freeform" if given.form == "freeform" else ""
        published = board(release.tree.read(f"metadata/leaderboard{form}.csv").decode(), given)
    return report.text(published), report
