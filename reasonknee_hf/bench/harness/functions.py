"""What `reasonknee_bench.yaml` names: the documents, their frames, and their scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reasonknee_hf.bench.scoring import score

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
    from reasonknee_hf.knee.scoring.reference_rows import release_rows
    from reasonknee_hf.knee.scoring.settings import bench_items, read_questions

    release = open_release(source, revision, endpoint, images=images)
    rows = list(release_rows(release, split, scans=scans))
    masks = {}  # regions live on their grids
    if setting == "gt_region":
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


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """The document and its answer, under each metric: they are scored together, at the end."""
    pair = dict(doc), results[0]
    return dict.fromkeys(("item_accuracy", "attribute_accuracy", "coverage", "iou"), pair)


def _figure(pairs: Sequence[tuple[Mapping[str, Any], str]], name: str) -> float:
    entries = [{"id": doc["id"], "prediction": answer} for doc, answer in pairs]
    value = score(entries, [doc for doc, _ in pairs], rounds=0).figure(name)
    return float("nan") if value is None else value


def item_accuracy(pairs: Sequence[tuple[Mapping[str, Any], str]]) -> float:
    """Share of items whose grades are all right."""
    return _figure(pairs, "item_accuracy")


def attribute_accuracy(pairs: Sequence[tuple[Mapping[str, Any], str]]) -> float:
    """Share of grades that are right."""
    return _figure(pairs, "attribute_accuracy")


def coverage(pairs: Sequence[tuple[Mapping[str, Any], str]]) -> float:
    """Share of items with a valid answer."""
    return _figure(pairs, "coverage")


def iou(pairs: Sequence[tuple[Mapping[str, Any], str]]) -> float:
    """Mean 3D IoU over the items with a reference box."""
    return _figure(pairs, "iou")
