"""3DReasonKnee as the general rooms see it, and how one of its releases is opened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Several
from typing import Any

from datasets import ClassLabel, Sequence, Value

from reasonknee_hf import environment
from reasonknee_hf.dataset.contract import Config, Description
from reasonknee_hf.dataset.published import is_published
from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.disk import CacheLike
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.knee.grade_weights import row_weights
from reasonknee_hf.knee.layout import BOX_AXES, DEFAULT_REVISION, DEFAULT_SOURCE, SPLITS, split_table
from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS, question_number
from reasonknee_hf.knee.published_release import open_published
from reasonknee_hf.knee.records import scan_columns, to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import SIDES, Scan, unlisted_scan
from reasonknee_hf.volumes.feature import VolumeFeature

ANSWER_COLUMNS = ("cot", "answer")
"""Columns whose text gives the grade away; rows of `bench` have none of them."""


def open_release(
    source: str | None = None,
    revision: str | None = None,
    endpoint: str | Several[str] | None = None,
    token: str | bool | None = None,
    *,
    images: str | None = None,
    high_fidelity: str | Several[str] | None = None,
    cache: CacheLike = None,
    cache_size: int | str | None = None,
) -> Release:
    """Opens one release of 3DReasonKnee.

    Args:
        source: Hub dataset id, local folder, any fsspec URL, or `"sample"` for the built-in synthetic release.
            Default: `$REASONKNEE_SOURCE`, else `rajpurkarlab/3DReasonKnee`.
        revision: Branch, tag or commit of a Hub source; resolved to a commit once. Default: the commit this version
            was written against for the default source, else `main`.
        endpoint: Base URL of a Hub or of a mirror of it, or several in order of preference.
        token: As in `huggingface_hub`. Sent to the first endpoint only.
        images: Another root for the volumes; see [`Release`].
        high_fidelity: The scans of the `high_fidelity` config; see [`Release`].
        cache, cache_size: What of a Hub source is used and kept on this disk: `"auto"`, `True`, `False` or a folder,
            and bytes; see [`chosen_cache`].

    Returns:
        [`Release`]: opened, with its listing read and nothing else.

    Raises:
        ReleaseError: What lies there is not a release.
        EndpointError: No endpoint gave the listing.

    Examples:
        >>> release = rk.open_release("sample")
        >>> release.splits
        ('train', 'validation', 'test')
    """
    source, revision = chosen_source(source, revision)
    # Not the cached instance: a folder may have changed and a branch moved since it was opened.
    fs = ReasonKneeFileSystem(
        source=source,
        revision=revision,
        endpoint=endpoint,
        token=token,
        cache=cache,
        cache_size=cache_size,
        skip_instance_cache=True,
    )
    if is_published(fs.tree, [split_table(split) for split in SPLITS]):
        return open_published(KNEE, fs.tree, images=images, high_fidelity=high_fidelity)
    return Release(KNEE, fs, images=images, high_fidelity=high_fidelity)


def chosen_source(source: str | None, revision: str | None) -> tuple[str, str | None]:
    """Source and revision that are meant where they are left out, and the folder of the sample."""
    source = source or environment.source() or DEFAULT_SOURCE
    if source == "sample":
        from reasonknee_hf.knee.sample import sample_folder

        source = str(sample_folder())
    return source, DEFAULT_REVISION if revision is None and source == DEFAULT_SOURCE else revision


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
    if config not in KNEE.configs:
        raise OptionError(f"Unknown config {config!r}. Valid: {', '.join(KNEE.configs)}.")
    text = Value("string")
    scan = {
        "scan_id": text,
        "patient_id": text,
        "visit": text,
        "study": text,
        "series": text,
        "knee_side": ClassLabel(names=list(SIDES)),
        "image": VolumeFeature(axes=BOX_AXES),
        "mask": VolumeFeature(mask=True, labels=labels, axes=BOX_AXES),
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


def _high_fidelity(release: Release) -> Collection[str]:
    return release.high_fidelity_ids


def _features(config: str, release: Release | None, masks: bool) -> RowFeatures:
    labels = release.labels if release and masks else None
    experts = config == "high_fidelity" and masks and bool(release and release.expert_files)
    return row_features(config, masks=masks, labels=labels, experts=experts)


def _expert_masks(release: Release, scan: Scan) -> dict[str, Any]:
    """The column of the expert segmentations, in releases that have any."""
    return {"expert_mask": release.expert_masks(scan)} if release.expert_files else {}


KNEE = Description(
    name="reasonknee",
    title="3DReasonKnee",
    text="Quintuples of 3DReasonKnee: volume, question, 3D box, reasoning, MOAKS grades.",
    source=DEFAULT_SOURCE,
    revision=DEFAULT_REVISION,
    licence="cc-by-4.0",
    configs={
        "full": Config("All quintuples: train, validation, test."),
        "high_fidelity": Config(
            "Scans with expert segmentations.",
            chosen=_high_fidelity,
            chosen_by="high_fidelity",
            mask_columns=_expert_masks,
        ),
        "bench": Config("Test scans without reasoning and answer.", splits=("test",), hidden=ANSWER_COLUMNS),
        "scans": Config("One row a scan, no questions.", asks=False),
    },
    categories=CATEGORIES,
    questions=QUESTIONS,
    open=open_release,
    features=_features,
    row=to_row,
    scan_row=scan_columns,
    unlisted=unlisted_scan,
    question_of=question_number,
    builder="reasonknee_hf.knee.knee_builder:ReasonKnee",
    card="reasonknee_hf.knee.knee_card:KNEE_CARD",
    scorer="reasonknee_hf.knee.scoring.knee_scorer:KNEE_SCORER",
    lessons="reasonknee_hf.knee.training.knee_lessons:KNEE_LESSONS",
    checks="reasonknee_hf.knee.checks:check",
    weights=row_weights,
    marks=("data/split_files/", "data/generate_data/"),
    annotations=("all", "balanced"),
    open_options=("source", "revision", "endpoint", "images", "high_fidelity"),
    record_texts=("image", "prompt", "cot", "answer"),
    record_values=("final_diagnosis",),
)
