"""DeepTumorVQA 2.0 as the general rooms see it, and how one of its releases is opened."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

from datasets import Image, Sequence, Value

from reasonknee_hf.dataset.contract import Config, Description, Records
from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.hub.disk import CacheLike
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.tumor import tumor_files as files
from reasonknee_hf.tumor.question_types import QUESTIONS, STAGES, subtype_number
from reasonknee_hf.tumor.tumor_release import TumorRelease, scan_named
from reasonknee_hf.tumor.tumor_rows import member_of, scan_columns, to_row, turns_row
from reasonknee_hf.volumes.feature import VolumeFeature


def open_release(
    source: str | None = None,
    revision: str | None = None,
    endpoint: str | Several[str] | None = None,
    token: str | bool | None = None,
    *,
    images: str | None = None,
    cache: CacheLike = None,
    cache_size: int | str | None = None,
) -> TumorRelease:
    """Opens one release of DeepTumorVQA 2.0.

    Args:
        source: Hub dataset id, local folder, any fsspec URL, or `"sample"` for the built-in synthetic release; default:
            `tumor-vqa/DeepTumorVQA_2.0`.
        revision: Branch, tag or commit of a Hub source; resolved to a commit once. Default: `main`.
        endpoint: Base URL of a Hub or of a mirror of it, or several in order of preference.
        token: As in `huggingface_hub`.
        images: Where the volumes of training lie, instead of `AbdomenAtlas/AbdomenAtlas3.0Mini`.
        cache, cache_size: What of a Hub source is used and kept on this disk.

    Raises:
        ReleaseError: What lies there is not a release, or one of another dataset.
        EndpointError: No endpoint gave the listing.
    """
    volumes = images or files.VOLUMES
    if source == "sample":
        from reasonknee_hf.tumor.tumor_sample import tumor_sample_folder

        folder = tumor_sample_folder()
        source, volumes = str(folder / "release"), images or str(folder / "volumes")
    kept: dict[str, Any] = {"endpoint": endpoint, "token": token, "cache": cache, "cache_size": cache_size}
    kept["skip_instance_cache"] = True
    fs = ReasonKneeFileSystem(source=source or files.SOURCE, revision=revision, **kept)
    return TumorRelease(TUMOR, fs, ReasonKneeFileSystem(source=volumes, **kept), images is not None)


def _records(path: str) -> Records:
    if path.startswith("agent_sft/"):
        return Records(image=None, prompt="conversations")
    return Records(image="image_id", prompt="question", question="question_subtype", member=member_of)


def _features(config: str, release: Any, masks: bool) -> RowFeatures:
    text = Value("string")
    if config == "agent_sft":
        turns = [{"from": text, "value": text}]
        tools = [{"name": text, "description": text, "parameters": text}]
        return RowFeatures(
            {"id": text, "scan_id": text, "conversations": turns, "tools": tools, "record": text}
        )
    picture = Image(decode=False)
    scan = {"scan_id": text, "image": VolumeFeature(across="S"), "picture": picture, "video": text}
    if config == "scans":
        return RowFeatures(scan)
    question = {
        "organ_picture": picture,
        "question_id": Value("int16"),
        **dict.fromkeys(("stage", "subtype", "answer_type", "question", "answer"), text),
        "options": [{"letter": text, "text": text}],
        **dict.fromkeys(("correct_option", "organ", "lesion"), text),
        "about_lesion": Value("bool"),
        "requires_tools": [text],
        "spacing": Sequence(Value("float64"), length=3),
        "shape": Sequence(Value("int32"), length=3),
        "sex": text,
        "age": Value("float32"),
        **dict.fromkeys(("scanner", "contrast", "record"), text),
    }
    return RowFeatures({"id": text, **scan, **question})


TUMOR = Description(
    name="deeptumorvqa",
    title="DeepTumorVQA 2.0",
    text="Questions of DeepTumorVQA 2.0 about abdominal CT, in four stages and 42 subtypes.",
    source=files.SOURCE,
    revision="main",
    licence="cc-by-4.0",
    configs={
        "benchmark": Config("The 10,000 questions of the benchmark.", splits=("test",), kind="benchmark"),
        "train": Config("Questions to train on, and the pool of the benchmark.", kind="train"),
        "agent_sft": Config("Trajectories of agents, as turns.", kind="agent_sft", row=turns_row),
        "scans": Config("One row a volume, no questions.", asks=False),
    },
    categories=STAGES,
    questions=QUESTIONS,
    open=open_release,
    features=_features,
    row=to_row,
    scan_row=scan_columns,
    unlisted=scan_named,
    question_of=subtype_number,
    records=_records,
    record_texts=("qid", "image_id", "question", "answer", "mc_question", "correct_option"),
    record_values=("question_type", "question_subtype", "organ", "lesion", "spacing", "shape", "sex", "age"),
    marks=files.MARKS,
    links=("picture", "organ_picture", "video"),
    builder="reasonknee_hf.tumor.tumor_builder:DeepTumorVqa",
    card="reasonknee_hf.tumor.tumor_card:TUMOR_CARD",
    scorer="reasonknee_hf.tumor.tumor_scorer:TUMOR_SCORER",
    lessons="reasonknee_hf.tumor.tumor_lessons:TUMOR_LESSONS",
    checks="reasonknee_hf.tumor.tumor_checks:check",
)
