"""The columns of 3DReasonKnee's configs."""

from __future__ import annotations

from collections.abc import Mapping

from datasets import ClassLabel, Sequence, Value

from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import CATEGORIES
from reasonknee_hf.knee.scans import SIDES
from reasonknee_hf.volumes.feature import VolumeFeature

CONFIGS = ("full", "high_fidelity", "bench", "scans")
ANSWER_COLUMNS = ("cot", "answer")
"""Columns whose text gives the grade away; rows of `bench` have none of them."""


def row_features(
    config: str = "full",
    *,
    masks: bool = True,
    labels: Mapping[str, int] | None = None,
    experts: bool = False,
) -> RowFeatures:
    """The columns of a config, in order.

    Args:
        config: `full`, `high_fidelity`, `bench` (without the columns that give the grade away) or `scans`
            (one row a scan, no questions).
        masks: Whether rows have a `mask`.
        labels: Names of the structures in the masks, from the release's `labels.json`.
        experts: Whether rows have an `expert_mask`: the expert segmentations of the scan, a structure and a mask each.
            They are separate files, which may overlap.

    Raises:
        OptionError: An unknown config.
    """
    if config not in CONFIGS:
        raise OptionError(f"Unknown config {config!r}. Valid: {', '.join(CONFIGS)}.")
    text = Value("string")
    scan = {
        "scan_id": text,
        "patient_id": text,
        "visit": text,
        "study": text,
        "series": text,
        "knee_side": ClassLabel(names=list(SIDES)),
        "image": VolumeFeature(),
        "mask": VolumeFeature(mask=True, labels=labels),
    }
    if not masks:
        del scan["mask"]
    if experts:
        scan["expert_mask"] = [{"structure": text, "mask": VolumeFeature(mask=True)}]
    if config == "scans":
        return RowFeatures(scan)
    question = {
        "question_id": Value("int16"),
        "category": ClassLabel(names=list(CATEGORIES)),
        "structure": text,
        "subregion": text,
        "prompt": text,
        "bbox": Sequence(Value("int32"), length=6),
        "cot": text,
        "answer": text,
        "grades": [{"lesion": text, "attribute": text, "grade": Value("int8")}],
        "final_diagnosis": text,
    }
    if config == "bench":
        question = {name: type_ for name, type_ in question.items() if name not in ANSWER_COLUMNS}
    return RowFeatures({"id": text, **scan, **question})
