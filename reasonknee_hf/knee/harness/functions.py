"""What `reasonknee_bench.yaml` names: the documents, their frames, and their scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reasonknee_hf.bench.box_geometry import BoxConvention
from reasonknee_hf.bench.inputs import Merged
from reasonknee_hf.bench.scorer import scorer_of
from reasonknee_hf.bench.scoring import judge

IMAGE = "<image>"
"""The harness's placeholder for one picture."""


class Frames(Sequence[Any]):
    """The frames of one document as PIL pictures, decoded when they are iterated and not before."""

    def __init__(self, path: str, options: Mapping[str, Any], mask: str | None = None) -> None:
        self.path = path
        self.options = dict(options)
        self.mask = mask

    def __len__(self) -> int:
        return int(self.options["n"])

    def __getitem__(self, index: Any) -> Any:
        return self._pictures()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pictures())

    def __repr__(self) -> str:
        return f"Frames({self.path!r}, {self.options!r})"

    def _pictures(self) -> list[Any]:
        from PIL import Image

        from reasonknee_hf.knee.description import row_features

        row = row_features("scans").decode_example({"image": self.path, "mask": self.mask})
        row["image"].check_box_grid()
        return [Image.fromarray(frame) for frame in row["image"].frames(**self.options)]


def dataset(
    source: str | None = None,
    setting: Any = "zero_shot",
    split: str = "test",
    scans: int | None = None,
    frames: int = 16,
    window: str = "upstream",
    size: int | None = None,
    ask_box: bool = False,
    questions: str | None = None,
    revision: str | None = None,
    endpoint: Any = None,
    images: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """The documents of the task: one per item, with what scoring it needs.

    Args:
        source, revision, endpoint, images: Where the release lies, as in `open_release`.
        setting: One of the benchmark's settings.
        split: `test` is the benchmark.
        scans: The first so many scans only.
        frames: Slices a document shows, evenly spread (in `gt_region`: over the region).
        window, size: As in `KneeVolume.frames`.
        ask_box: Ends prompts that do not ask for a box with a request for one.
        questions: A published question file, used instead of the rows' prompts.
        _: What the harness adds of its own.
    """
    import datasets

    from reasonknee_hf.knee.description import open_release
    from reasonknee_hf.knee.scoring.reference_reading import release_rows
    from reasonknee_hf.knee.scoring.settings import bench_items, read_questions

    release = open_release(source, revision, endpoint, images=images)
    rows = list(release_rows(release, split, scans=scans))
    # Regions live on their grids, those that are told and those that are answered.
    masks = {scan.scan_id: release.mask_url(scan) for scan in release.scans(split)}
    prompts = read_questions(questions) if questions else None
    documents = [
        {
            "id": row["id"],
            "scan_id": row["scan_id"],
            "patient_id": row["patient_id"],
            "question_id": row["question_id"],
            "bbox": row["bbox"],
            "grades": row["grades"],
            "text": item["prompt"],
            "image": item["image"],
            "mask": masks.get(row["scan_id"]),
            "frames": {"window": window, "n": frames, "size": size, "around": item["region"]},
        }
        for row, item in zip(
            rows, bench_items(rows, setting, questions=prompts, ask_box=ask_box), strict=True
        )
    ]
    return {"test": datasets.Dataset.from_list(documents)}


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """One placeholder per frame, then the prompt."""
    return f"{IMAGE * int(doc['frames']['n'])}\n{doc['text']}"


def doc_to_image(doc: Mapping[str, Any]) -> Frames:
    """The frames, not decoded yet."""
    return Frames(doc["image"], doc["frames"], doc["mask"])


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """The right answer in the shape that the prompt asks for."""
    from reasonknee_hf.knee.moaks import QUESTIONS

    if doc["question_id"] is None:
        return ""
    grades = {grade["attribute"]: grade["grade"] for grade in doc["grades"] or []}
    question = QUESTIONS[doc["question_id"]]
    complete = all(attribute.name in grades for attribute in question.attributes)
    return json.dumps(question.answer(grades)) if complete else ""


class Share(float):
    """The share of an item's grades that are right, which still knows of how many: items have one to three."""

    of: int

    def __new__(cls, right: int, of: int) -> Share:
        share = super().__new__(cls, right / of)
        share.of = of
        return share

    def __reduce__(self) -> tuple[type[Share], tuple[int, int]]:
        return Share, (round(self * self.of), self.of)


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """The scores of one document. What it has no reference for, and a box that nobody asked for, has none."""
    scorer = scorer_of()
    references = scorer.references([doc])
    merged = Merged({str(doc["id"]): results[0]})
    outcome = judge(scorer, references, merged, BoxConvention(), False, False, 0.25, scorer.spacing)
    scores: dict[str, Any] = {}
    if outcome.graded[0]:
        hits = int((outcome.predicted == references.truth).sum())
        scores["item_accuracy"] = float(outcome.right[0])
        scores["attribute_accuracy"] = Share(hits, len(references.truth))
        scores["coverage"] = float(outcome.reasons[0] is None)
    if np.isfinite(outcome.iou[0]) and "bounding_box" in doc["text"]:
        scores["iou"] = float(outcome.iou[0])
    return scores


def attribute_accuracy(shares: Sequence[Share]) -> float:
    """Share of grades that are right, each counted once."""
    return sum(share * share.of for share in shares) / sum(share.of for share in shares)
