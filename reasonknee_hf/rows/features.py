"""The declared schema of rows: the same in every mode of reading and on every version of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

from datasets import ClassLabel, Features, Sequence, Value

from reasonknee_hf.errors import OptionError
from reasonknee_hf.rows.codecs import Codec, codec_of
from reasonknee_hf.rows.moaks import CATEGORIES
from reasonknee_hf.rows.scan import SIDES
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.volume import KneeVolume

CONFIGS = ("full", "high_fidelity", "bench", "scans")
VOLUME_COLUMNS = ("image", "mask")
ANSWER_COLUMNS = ("cot", "answer")
"""Columns whose text gives the grade away; rows of `bench` have none of them."""


class RowFeatures(Features):
    """Features that pass rows on fast, and whose decoded volumes know the row they belong to.

    Values that already have the stored form are not walked through again (see [`codecs`]); errors of volumes
    name the row.
    """

    def encode_example(self, example: Mapping[str, Any]) -> dict[str, Any]:
        names, codecs = self._codecs()
        row = dict(zip(names, map(example.get, names), strict=True))
        for name, codec in codecs:
            value = row[name]
            if value is not None and type(value) is not codec.stored_type:
                row[name] = codec.encode(value)
        return row

    def decode_example(
        self, example: Mapping[str, Any], token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> dict[str, Any]:
        row = dict(example)
        label = row.get("id") or row.get("scan_id")
        for name, codec in self._codecs()[1]:
            if codec.decode is not None and name in row:
                value = row[name] = codec.decode(row[name], token_per_repo_id)
                _name_volume(value, label)
        return row

    def _codecs(self) -> tuple[list[str], list[tuple[str, Codec]]]:
        """Names of the columns, and each with its codec. Made anew when a column's type has been replaced."""
        known = self.__dict__.get("_known_codecs")
        if known is None or len(known[0]) != len(self) or not all(map(is_, known[0], self.values())):
            names = list(self)
            known = list(self.values()), (names, [(name, codec_of(self[name])) for name in names])
            self.__dict__["_known_codecs"] = known
        return known[1]

    def decode_batch(
        self, batch: dict[str, list[Any]], token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = super().decode_batch(batch, token_per_repo_id=token_per_repo_id)
        labels = columns.get("id") or columns.get("scan_id") or []
        for column in VOLUME_COLUMNS:
            for volume, label in zip(columns.get(column, ()), labels, strict=False):
                _name_volume(volume, label)
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
        "image": VolumeFeature(),
        "mask": VolumeFeature(mask=True, labels=labels),
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


def _name_volume(volume: Any, label: str | None) -> None:
    if isinstance(volume, KneeVolume) and volume.label is None:
        volume.label = label
