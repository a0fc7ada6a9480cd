"""Declared features that pass rows on fast: the same in every mode of reading and on every version of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Features

from reasonknee_hf.dataset.codecs import codec_of
from reasonknee_hf.volumes.volume import KneeVolume

VOLUME_COLUMNS = ("image", "mask")


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
        _introduce(label, {name: row[name] for name, _ in self._columns().decoders if name in row})
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
        for number, label in enumerate(labels):
            values = {name: columns[name][number] for name, _ in self._columns().decoders if name in columns}
            _introduce(label, values)
        return columns

    # The base class makes plain features of itself whenever it is copied, pickled or reordered.

    def __reduce__(self) -> tuple[type[RowFeatures], tuple[dict[str, Any]]]:
        return RowFeatures, (dict(self),)

    def reorder_fields_as(self, other: Features) -> RowFeatures:
        return RowFeatures(super().reorder_fields_as(other))


def _introduce(label: str | None, values: Mapping[str, Any]) -> None:
    """Tells the volumes of a row its id, and the image the mask on whose grid the row's box lives."""
    for value in values.values():
        _name_volume(value, label)
    image, mask = (values.get(column) for column in VOLUME_COLUMNS)
    if isinstance(image, KneeVolume) and isinstance(mask, KneeVolume):
        image.grid_mask = mask


def _name_volume(volume: Any, label: str | None) -> None:
    if isinstance(volume, list):
        for part in volume:
            for value in part.values() if isinstance(part, dict) else ():
                _name_volume(value, label)
    if isinstance(volume, KneeVolume) and volume.label is None:
        volume.label = label
