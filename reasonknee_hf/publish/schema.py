"""The columns of published files, and how a schema is written down so that every version of `datasets` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from datasets import ClassLabel, Features, Image, Value

from reasonknee_hf.dataset.contract import Description, described
from reasonknee_hf.dataset.row_features import VOLUME_COLUMNS
from reasonknee_hf.errors import OptionError
from reasonknee_hf.volumes.feature import VolumeFeature

STORED = pa.struct({"bytes": pa.binary(), "path": pa.string()})
"""How volumes and pictures lie in a table."""

NAME = "_name"
"""What the column of the names of label numbers ends with."""

VolumeMode = Literal["embed", "files", "reference", "none"]


def question_features(
    config: str, dataset: Description | None = None, *, previews: bool = False, frames: bool = False
) -> Features:
    """Columns of the questions: those of the config without volumes, and derived pictures.

    A box is a plain list here: older readers cannot hold a null in a list of fixed length.
    """
    dataset = dataset or described()
    left_out = {*VOLUME_COLUMNS, *dataset.links}
    columns = dataset.features(config, None, False).items()
    features = {name: kind for name, kind in columns if name not in left_out}
    if "bbox" in features:
        features["bbox"] = [Value("int32")]
    if previews:  # among the first columns, where the viewer shows it without scrolling
        features = {"id": features.pop("id"), "preview": Image(), **features}
    if frames:
        features["frames"] = [Image()]
    return _with_names(features)


def scan_features(dataset: Description) -> dict[str, Any]:
    """Columns that tell about a scan, without its volumes."""
    config = next((name for name, config in dataset.configs.items() if not config.asks), None)
    if config is None:
        raise OptionError(f"{dataset.title} has no config with one row a scan: choose volumes='none'.")
    columns = dataset.features(config, None, False).items()
    left_out = {*VOLUME_COLUMNS, *dataset.links}
    return {name: kind for name, kind in columns if name not in left_out}


def record_features(dataset: Description) -> Features:
    """Columns of the records as they are published; what is not text is JSON."""
    columns = ("scan_id", *dataset.record_texts, *dataset.record_values, "other")
    return Features({name: Value("string") for name in columns})


def crop_features() -> Features:
    """Columns of the region crops: one row a question that has a box."""
    box = [Value("int32")]
    text = Value("string")
    return Features({"id": text, "scan_id": text, "bbox": box, "crop_bbox": box, "crop": VolumeFeature()})


def volume_features(mode: str, dataset: Description | None = None, *, masks: bool = True) -> Features:
    """Columns of the volumes, one row a scan: embedded, as names of files beside the table, or as URLs."""
    text = Value("string")
    features = scan_features(dataset or described())
    columns = VOLUME_COLUMNS if masks else VOLUME_COLUMNS[:1]
    for column in columns:
        if mode == "embed":
            features[column] = VolumeFeature()
        else:
            features[f"{column}_file" if mode == "files" else f"{column}_url"] = text
    return _with_names(features)


def _with_names(features: Mapping[str, Any]) -> Features:
    """The columns, beside each of label numbers one of the names: not all that reads Parquet knows class labels."""
    found: dict[str, Any] = {}
    for name, kind in features.items():
        found[name] = kind
        if isinstance(kind, ClassLabel):
            found.setdefault(f"{name}{NAME}", Value("string"))
    return Features(found)


def labelled(features: Mapping[str, Any]) -> dict[str, ClassLabel]:
    """Columns of label numbers that have one of names beside them."""
    labels = {name: kind for name, kind in features.items() if isinstance(kind, ClassLabel)}
    return {name: kind for name, kind in labels.items() if f"{name}{NAME}" in features}


def plain_volumes(features: Features) -> Features:
    """The same columns with volumes as the struct that they are stored as."""
    struct = {"bytes": Value("binary"), "path": Value("string")}
    return Features({name: struct if is_volume(kind) else kind for name, kind in features.items()})


def has_volumes(features: Mapping[str, Any]) -> bool:
    """Whether a column has the type `Nifti`, which `datasets` knows from 4.4 on."""
    return any(is_volume(kind) for kind in features.values())


def file_columns(features: Mapping[str, Any]) -> list[str]:
    """Columns of volumes, pictures, or lists of pictures."""
    inner = {
        name: kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
        for name, kind in features.items()
    }
    return [name for name, kind in inner.items() if getattr(kind, "_type", None) in ("Nifti", "Image")]


def is_volume(feature: Any) -> bool:
    """Whether a feature is one of volumes."""
    return getattr(feature, "_type", None) == "Nifti"


def arrow_schema(features: Features, provenance: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema with the features in the metadata key that `datasets` reads, and where the data come from."""
    told = {"info": {"features": {name: _portable(kind) for name, kind in features.to_dict().items()}}}
    metadata = {"huggingface": json.dumps(told), "reasonknee": json.dumps(provenance, sort_keys=True)}
    return pa.schema([(name, features.arrow_schema.field(name).type) for name in features]).with_metadata(
        metadata
    )


def _portable(kind: Any) -> Any:
    """A serialised feature in the words that all versions know: a list is a JSON array of one type, not `List`."""
    if isinstance(kind, list):
        return [_portable(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    if kind.get("_type") in ("List", "Sequence") and kind.get("length", -1) == -1:
        return [_portable(kind["feature"])]
    return {name: _portable(value) for name, value in kind.items()}
