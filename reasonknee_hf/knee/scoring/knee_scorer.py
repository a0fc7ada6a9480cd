"""ReasonKnee-Bench, as the general room of scoring sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from reasonknee_hf.bench.inputs import Entry
from reasonknee_hf.bench.priors import Priors
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.bench.references import References
from reasonknee_hf.knee.grade_counts import count_grades as counted
from reasonknee_hf.knee.layout import DEFAULT_SOURCE
from reasonknee_hf.knee.moaks import question_for_prompt
from reasonknee_hf.knee.scoring.answer_reading import RULES_VERSION, read_answer
from reasonknee_hf.knee.scoring.box_reading import OAI_DESS_SPACING
from reasonknee_hf.knee.scoring.paper_figures import NOTES, PUBLISHED
from reasonknee_hf.knee.scoring.reference_reading import needed_columns, read_references


class KneeScorer:
    """The rules of `BENCHMARK.md`; see [`Scorer`][reasonknee_hf.bench.scorer.Scorer]."""

    title = "ReasonKnee-Bench"
    dataset_id = DEFAULT_SOURCE
    task_id = "reasonknee_bench"
    rules_version = RULES_VERSION
    spacing = OAI_DESS_SPACING
    published: tuple[tuple[str, tuple[float, ...], float], ...] = tuple(
        (f"{row.setting}, {row.model}", row.accuracy[:-1], row.accuracy[-1]) for row in PUBLISHED
    )
    published_notes: tuple[str, ...] = NOTES

    def references(self, rows: Iterable[Mapping[str, Any]]) -> References:
        """Rows of the `bench` config as columns."""
        return read_references(rows)

    def read(self, answer: Any, question: Any, *, strict: bool = False, free_digits: bool = False) -> Reading:
        """What an answer says."""
        return read_answer(answer, question, strict=strict, free_digits=free_digits)

    def entry(self, row: Mapping[str, Any]) -> Entry | None:
        """A row as the published SFT script writes it: the item shows from the volume and the prompt."""
        if not {"generated_text", "image", "prompt"} <= row.keys():
            return None
        scan_id, prompt = _scan_of(str(row["image"])), str(row["prompt"])
        question = question_for_prompt(prompt)
        item = None if question is None else f"{scan_id}_{question.id}"
        return Entry(item, row["generated_text"], scan_id, prompt)


KNEE_SCORER = KneeScorer()


def _scan_of(image: str) -> str:
    """`.../9000001/00M/20041222_10300001_2.nii.gz` as `9000001_00M_20041222_10300001_2`."""
    path = PurePosixPath(image.replace("\\", "/"))
    return "_".join([*path.parts[-3:-1], path.name.split(".")[0]])


def count_grades(rows: Iterable[Mapping[str, Any]], origin: str = "training rows") -> Priors:
    """Counts the grades of training rows, block by block, so that a stream of any length will do."""
    totals: dict[tuple[int | None, str, int | None], int] = {}
    block: list[Mapping[str, Any]] = []

    def flush() -> None:
        references = read_references(block)
        for item, name, grade in zip(
            references.grade_item, references.grade_name, references.truth, strict=True
        ):
            key = references.questions[item].id, name, int(grade)
            totals[key] = totals.get(key, 0) + 1
        block.clear()

    for row in needed_columns(rows):
        block.append(row)
        if len(block) == 10_000:
            flush()
    flush()
    return Priors(counted((*key, times) for key, times in totals.items()), origin)
