"""Scores a run: answers are read, boxes compared, and everything is counted against all references.

    report = score("answers.jsonl", rows)

The result depends on the set of answers and references alone, not on their order, on how they are spread
over files, or on identical repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.bench.box_geometry import (
    BoxConvention,
    centre_distance,
    check_sizes,
    iou,
    problems,
    suspicions,
)
from reasonknee_hf.bench.inputs import CONFLICTING, Conflicts, Entry, Merged, Predictions, merge, read_entries
from reasonknee_hf.bench.metrics import Bootstrap
from reasonknee_hf.bench.outcome import Outcome
from reasonknee_hf.bench.priors import Priors
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.references import References
from reasonknee_hf.bench.runner_rows import Columns
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.scorer import Scorer, scorer_of
from reasonknee_hf.bench.summary import summarise
from reasonknee_hf.errors import OptionError

Floats = npt.NDArray[np.float64]


def score(
    predictions: Predictions,
    references: References | Iterable[Mapping[str, Any]],
    *,
    scorer: Scorer | None = None,
    convention: BoxConvention | None = None,
    strict: bool = False,
    free_digits: bool = False,
    conflicts: Conflicts = "raise",
    only_answered: bool = False,
    priors: Priors | None = None,
    iou_threshold: float = 0.25,
    spacing: tuple[float, float, float] | None = None,
    rounds: int = 1000,
    seed: int = 0,
    subset: str | None = None,
    name: str = "this run",
    source: Mapping[str, Any] | None = None,
    id_column: str | None = None,
    answer_column: str | None = None,
) -> Report:
    """Scores the answers of one run.

    Args:
        predictions: Path or paths of prediction files, a mapping of id to answer, or rows `{"id",
            "prediction"}`; see `inputs`.
        references: Rows of the `bench` config or any rows with its columns, or what `read_references` made
            of them. No volume is opened.
        scorer: The benchmark: how its rows and answers are read. Default: ReasonKnee-Bench.
        convention: What the six numbers of an answered box mean; by default that of the data.
        strict: Turns all repairs of answers off.
        free_digits: Lets `grade N` in free text answer a question with one attribute. A guess, hence off.
        conflicts: Where an item has different answers: `raise` an error, or count it as `invalid`.
        only_answered: Scores only the items that were answered. All outputs then say that this is a subset.
        priors: Grade counts of the training split, for the prior beside each accuracy.
        iou_threshold: The least IoU that counts as the right place in the stages.
        spacing: Voxel size in mm along slice, x, y, for rows without a `spacing` of their own. Default: that
            of the benchmark.
        rounds: Rounds of the bootstrap over patients; 0 for no intervals.
        seed: Its seed.
        subset: What part of the benchmark `references` are, if they are not all of it.
        name: What to call the run in tables.
        source: Where `references` come from: `id` and, of a Hub release, `revision`.
        id_column, answer_column: Names of those columns of the files, where they are not to be found.

    Raises:
        PredictionError: A prediction file cannot be read, or answers conflict and `conflicts` is `raise`.
        RecordError: The references are no rows of the benchmark.
        OptionError: An option has no such value.

    Examples:
        >>> rows = list(rk.load_dataset("bench", split="test", streaming=True, source="sample", masks=False))
        >>> report = rk.bench.score({rows[0]["id"]: "{}"}, rows, rounds=0)
        >>> report.figure("item_accuracy")
        0.0
    """
    if not 0 < iou_threshold <= 1:
        raise OptionError(f"iou_threshold= is above 0 and at most 1, not {iou_threshold!r}.")
    scorer = scorer or scorer_of()
    spacing = scorer.spacing if spacing is None else spacing
    check_sizes("spacing=", spacing)
    for option, value in (("rounds", rounds), ("seed", seed)):
        if not isinstance(value, int | np.integer) or value < 0:
            raise OptionError(f"{option}= is a whole number, 0 or more, not {value!r}.")
    rows = references if isinstance(references, References) else scorer.references(references)
    merged = merge(
        read_entries(predictions, scorer.entry, Columns(id_column, answer_column)), _resolver(rows), conflicts
    )
    if only_answered:
        rows = rows.take([index for index, item in enumerate(rows.ids) if item in merged.answers])
        subset = "; ".join(filter(None, (subset, "answered items only")))
    convention = convention or BoxConvention()
    outcome = judge(scorer, rows, merged, convention, strict, free_digits, iou_threshold, spacing)
    bootstrap = Bootstrap(len(rows.patient_ids), rounds, seed)
    rules = {
        "version": scorer.rules_version,
        "strict": strict,
        "free_digits": free_digits,
        "conflicts": conflicts,
        "boxes": convention.describe(),
        "box_ends": convention.ends,
        "iou_threshold": iou_threshold,
        "spacing_mm": list(spacing),
        "bootstrap": {"over": "patients", "rounds": len(bootstrap.weights), "seed": int(seed), "level": 0.95},
    }
    about = {
        "benchmark": scorer.title,
        "name": name,
        "subset": subset,
        "source": dict(source or {}),
        "rules": rules,
    }
    return Report(summarise(outcome, priors, bootstrap) | about, outcome, bootstrap, scorer)


def _resolver(references: References) -> Any:
    """How an entry finds its reference: by id; by id without what is lost or added on the way (leading zeros,
    blanks, the ending of a file), if that is unique; by scan and prompt."""
    known = set(references.ids)
    bare: dict[str, str | None] = {}

    def respell(item: str) -> str | None:
        if not bare:  # built when it is first needed: most runs have all ids right
            for reference in references.ids:
                key = _bare_id(reference)
                bare[key] = None if key in bare else reference
        return bare.get(_bare_id(item))

    def resolve(entry: Entry) -> tuple[str | None, bool]:
        if entry.id is not None:
            if entry.id in known:
                return entry.id, False
            respelled = respell(entry.id)
            if respelled is not None:
                return respelled, True
        if entry.prompt is not None:
            row = references.prompts.get((str(entry.scan_id), entry.prompt))
            if row is not None:
                return references.ids[row], False
        return None, False

    return resolve


def _bare_id(item: str) -> str:
    parts = "_".join(item.replace(".nii.gz", "").replace(".nii", "").split()).split("_")
    return "_".join(part.lstrip("0") or "0" if part.isdigit() else part for part in parts)


def judge(
    scorer: Scorer,
    references: References,
    merged: Merged,
    convention: BoxConvention,
    strict: bool,
    free_digits: bool,
    iou_threshold: float,
    spacing: tuple[float, float, float],
) -> Outcome:
    """Reads all answers and holds them against the references."""
    readings, reasons, answered = _read_all(scorer, references, merged, strict, free_digits)
    predicted = np.array(
        [
            -1 if (reading := readings[item]) is None else reading.grades.get(name, -1)
            for item, name in zip(references.grade_item.tolist(), references.grade_name, strict=True)
        ],
        np.int64,
    )
    size = len(references)
    wanted = np.bincount(references.grade_item, minlength=size)
    hits = np.bincount(references.grade_item[predicted == references.truth], minlength=size)
    valid = np.bincount(references.grade_item[predicted >= 0], minlength=size)
    graded = wanted > 0
    for item in np.flatnonzero(graded & (valid == wanted)):
        reasons[item] = None  # an attribute that has no reference grade cannot make an answer invalid
    has_box = np.isfinite(references.boxes).all(axis=1)
    boxes, box_problems, places_judged = _read_boxes(answered, readings, convention)
    usable = has_box & (box_problems == "")
    overlap = np.where(has_box, 0.0, np.nan)
    overlap[usable] = iou(boxes[usable], references.boxes[usable], convention.ends)
    distance = np.full(size, np.nan)
    voxel = np.where(np.isfinite(references.spacing), references.spacing, np.asarray(spacing, np.float64))
    distance[usable] = centre_distance(boxes[usable], references.boxes[usable], voxel[usable])
    stage = np.where(hits == wanted, 3, 2)
    if places_judged:
        stage[has_box & (np.nan_to_num(overlap) < iou_threshold)] = 1
    stage[valid < wanted] = 0
    stage[~graded] = -1
    given = has_box & np.isfinite(answered).all(axis=1)  # reversed ones too: another order looks like that
    warnings = suspicions(answered[given], references.boxes[given], convention)
    unfit = int((problems(references.boxes[has_box], convention.ends) != "").sum())
    if unfit:
        warnings.append(
            f"{unfit} reference boxes are empty or reversed with {convention.ends} ends; they score 0."
        )
    return Outcome(
        references=references,
        merged=merged,
        readings=readings,
        reasons=reasons,
        predicted=predicted,
        graded=graded,
        right=graded & (hits == wanted),
        boxes=boxes,
        box_problems=np.where(has_box, box_problems, ""),
        iou=overlap,
        distance=distance,
        stage=stage,
        places_judged=places_judged,
        warnings=warnings,
    )


def _read_all(
    scorer: Scorer, references: References, merged: Merged, strict: bool, free_digits: bool
) -> tuple[list[Reading | None], list[str | None], Floats]:
    readings: list[Reading | None] = []
    reasons: list[str | None] = []
    boxes = np.full((len(references), 6), np.nan)
    for index, (item, question) in enumerate(zip(references.ids, references.questions, strict=True)):
        reading = None
        reason: str | None = "missing"
        if question is None:
            reason = "unknown_question"
        elif item in merged.answers:
            answer = merged.answers[item]
            if answer is CONFLICTING:
                reason = "conflicting"
            else:
                reading = scorer.read(answer, question, strict=strict, free_digits=free_digits)
                reason = reading.reason
                if reading.box is not None:
                    boxes[index] = reading.box
        readings.append(reading)
        reasons.append(reason)
    return readings, reasons, boxes


def _read_boxes(
    answered: Floats, readings: list[Reading | None], convention: BoxConvention
) -> tuple[Floats, npt.NDArray[np.str_], bool]:
    """Boxes in voxels (NaN: invalid), why they are invalid, and whether the run answers with boxes at all."""
    given = [
        reading.box_problem or ("" if reading.box else "no_box") if reading else "no_box"
        for reading in readings
    ]
    found = np.array(given, dtype="U12")
    boxes = convention.to_voxels(answered)
    readable = found == ""
    found[readable] = problems(boxes[readable], convention.ends)
    boxes[found != ""] = np.nan
    return boxes, found, bool((np.array(given, dtype="U12") != "no_box").any())
