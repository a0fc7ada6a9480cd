"""The declared schema of rows: the same in every mode of reading and on every version of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from datasets import ClassLabel, Features, Sequence, Value

from reasonknee_hf.dataset.codecs import codec_of
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.layout import BOX_AXES
from reasonknee_hf.knee.moaks import CATEGORIES
from reasonknee_hf.knee.scans import SIDES
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.volume import KneeVolume

CONFIGS = ("full", "high_fidelity", "bench", "scans")
VOLUME_COLUMNS = ("image", "mask")
ANSWER_COLUMNS = ("cot", "answer")
"""Columns whose text gives the grade away; rows of `bench` have none of them."""


class _Columns:
    """Names and types of the columns, and how values of those that need it are encoded and decoded."""

    def __init__(self, features: Features) -> None:
        self.names = list(features)
        self.types = list(features.values())
        codecs = [(name, codec_of(type_)) for name, type_ in features.items()]
        self.encoders = [(name, codec.stored_type, codec.encode) for name, codec in codecs]
        self.decoders = [(name, codec.decode) for name, codec in codecs if codec.decode is not None]


class RowFeatures(Features):
    """Features that pass rows on fast, and whose decoded volumes know the row they belong to.

    Values that already have the stored form are not walked through again (see [`codecs`]); errors of volumes
    name the row.
    """

    def encode_example(self, example: Mapping[str, Any]) -> dict[str, Any]:
        columns = self._columns()
        row = dict(example)
        if [*row] != columns.names:
            row = {name: row.get(name) for name in columns.names}
        for name, stored_type, encode in columns.encoders:
            value = row[name]
            if value is not None and type(value) is not stored_type:
                row[name] = encode(value)
        return row

    def decode_example(
        self, example: Mapping[str, Any], token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> dict[str, Any]:
        row = dict(example)
        label = row.get("id") or row.get("scan_id")
        for name, decode in self._columns().decoders:
            if name in row:
                row[name] = decode(row[name], token_per_repo_id)
        _introduce(label, *(row.get(column) for column in VOLUME_COLUMNS))
        return row

    def _columns(self) -> _Columns:
        """What is done with the values of each column. Made anew when columns have been replaced."""
        known: _Columns | None = self.__dict__.get("_known_columns")
        if known is None or known.names != [*self] or known.types != [*self.values()]:
            known = self.__dict__["_known_columns"] = _Columns(self)
        return known

    def decode_batch(
        self, batch: dict[str, list[Any]], token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = super().decode_batch(batch, token_per_repo_id=token_per_repo_id)
        # Formats give arrays, which have no truth value.
        labels = next((columns[name] for name in ("id", "scan_id") if name in columns), [])
        for of_row in zip_longest(labels, *(columns.get(column, ()) for column in VOLUME_COLUMNS)):
            _introduce(*of_row)
        return columns

    # The base class makes plain features of itself whenever it is copied, pickled or reordered.

    def __reduce__(self) -> tuple[type[RowFeatures], tuple[dict[str, Any]]]:
        return RowFeatures, (dict(self),)

    def reorder_fields_as(self, other: Features) -> RowFeatures:
        return RowFeatures(super().reorder_fields_as(other))


def row_features(
    config: str = "full", *, masks: bool = True, labels: Mapping[str, int] | None = None
) -> RowFeatures:
    """The columns of a config, in order.

    Args:
        config: `full`, `high_fidelity`, `bench` (without the columns that give the grade away) or `scans`
            (one row a scan, no questions).
        masks: Whether rows have a `mask`.
        labels: Names of the structures in the masks, from the release's `labels.json`.

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
        "image": VolumeFeature(axes=BOX_AXES),
        "mask": VolumeFeature(mask=True, labels=labels, axes=BOX_AXES),
    }
    if not masks:
        del scan["mask"]
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


def _introduce(label: str | None, image: Any, mask: Any) -> None:
    """Tells the volumes of a row its id, and the image the mask on whose grid the row's box lives."""
    for volume in (image, mask):
        if isinstance(volume, KneeVolume) and volume.label is None:
            volume.label = label
    if isinstance(image, KneeVolume) and isinstance(mask, KneeVolume):
        image.grid_mask = mask
