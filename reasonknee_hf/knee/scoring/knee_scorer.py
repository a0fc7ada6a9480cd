"""ReasonKnee-Bench, as the general room of scoring sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from reasonknee_hf.knee.scoring.reference_reading import needed_columns, read_references


@dataclass(frozen=True)
class Published:
    """One row that the paper published (arXiv 2510.20967): accuracy for BML, Cartilage, Osteophyte, Meniscus, Others,
    Overall.

    The figures are the authors' own. Their scoring code is not public: nothing was recomputed, what exactly their
    accuracy counts is not known, and their `Overall` is no weighting of the five columns that could be found.
    """

    setting: str
    model: str
    accuracy: tuple[float, float, float, float, float, float]


_REGION = "instruction with true region"
PUBLISHED: tuple[Published, ...] = (
    Published("zero-shot", "Qwen2.5-VL-3B", (0.081, 0.253, 0.251, 0.093, 0.159, 0.158)),
    Published("zero-shot", "Qwen2.5-VL-7B", (0.642, 0.309, 0.348, 0.347, 0.469, 0.470)),
    Published("zero-shot", "o1", (0.479, 0.553, 0.353, 0.332, 0.476, 0.477)),
    Published("instruction", "Qwen2.5-VL-3B", (0.092, 0.149, 0.253, 0.205, 0.146, 0.146)),
    Published(_REGION, "Qwen2.5-VL-7B", (0.697, 0.549, 0.338, 0.166, 0.563, 0.556)),
    Published("SFT without reasoning", "Qwen2.5-VL-3B", (0.706, 0.602, 0.345, 0.387, 0.616, 0.613)),
    Published("SFT without reasoning", "Med3DVLM", (0.670, 0.578, 0.330, 0.346, 0.600, 0.596)),
    Published("SFT with reasoning", "Qwen2.5-VL-3B", (0.667, 0.600, 0.342, 0.340, 0.590, 0.588)),
    Published("SFT with reasoning", "Med3DVLM", (0.671, 0.579, 0.333, 0.343, 0.605, 0.581)),
)

NOTES = (
    "Rows marked PAPER are the authors' figures, not recomputed. Their scoring code is not public:",
    "which accuracy and overall they print, and what their column Others holds, is not known.",
)


class KneeScorer:
    """The rules of `BENCHMARK.md`; see [`Scorer`][reasonknee_hf.bench.scorer.Scorer]."""

    title = "ReasonKnee-Bench"
    dataset_id = DEFAULT_SOURCE
    task_id = "reasonknee_bench"
    tasks = ("reasonknee_bench", "reasonknee_bench_iou")
    references_of = ("bench", "test")
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
        return Entry(item, row["generated_text"], scan_id, prompt, form="sft script")


KNEE_SCORER = KneeScorer()


def _scan_of(image: str) -> str:
    """`.../9000001/00M/20041222_10300001_2.nii.gz` as `9000001_00M_20041222_10300001_2`."""
    path = PurePosixPath(image.replace("\\", "/"))
    return "_".join([*path.parts[-3:-1], path.name.split(".")[0]])


def count_grades(rows: Iterable[Mapping[str, Any]], origin: str = "training rows") -> Priors:
    """Counts the grades of training rows, block by block, so that a stream of any length will do.

    Examples:
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> counts = rk.bench.count_grades(rows)
        >>> counts.origin
        'training rows'
    """
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
