"""Declared features that pass rows on fast: the same in every mode of reading and on every version of `datasets`.

`datasets` looks at every value of every streamed row twice, in Python, which costs 250 µs for a row of ours. Nearly all
of it finds nothing to do: rows are made with the types that the schema declares. Here a value of the stored form is
recognised and passed on; any other goes the way of `datasets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from datasets import ClassLabel, Features, Image, Value

from reasonknee_hf.volumes.feature import VolumeFeature
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

    Values that already have the stored form are not walked through again (see [`Codec`]); errors of volumes
    name the row.

    Examples:
        >>> from datasets import Value
        >>> from reasonknee_hf.dataset.row_features import RowFeatures
        >>> features = RowFeatures({"id": Value("string"), "image": rk.VolumeFeature(axes="PIR")})
        >>> features.decode_example({"id": "a", "image": {"path": "a.nii.gz", "bytes": None}})["image"]
        KneeVolume('a.nii.gz')
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
        if "shape" in row and isinstance(row.get("image"), KneeVolume):
            row["image"].stated = row["shape"], row.get("spacing")
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


_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "bool": bool,
}
_STORED_FILE = {"bytes", "path"}

Decode: TypeAlias = Callable[[Any, "dict[str, str | bool | None] | None"], Any]


@dataclass(frozen=True)
class Codec:
    """How values of one feature type are encoded, and decoded where they need it.

    Args:
        encode: Gives the stored form of a value.
        decode: Gives what rows show for a stored value; `None` where that is the value itself.
        stored_type: Every value of this Python type, and only such, is of the stored form; `None` if that takes a
            closer look.
    """

    encode: Callable[[Any], Any]
    decode: Decode | None
    stored_type: type | None = None


def codec_of(feature: Any) -> Codec:
    """The codec of a feature type; it gives what `datasets.Features` gives."""
    alone = Features({"": feature})

    def slowly(value: Any) -> Any:
        return alone.encode_example({"": value})[""]

    def decode_slowly(value: Any, tokens: dict[str, str | bool | None] | None) -> Any:
        return alone.decode_example({"": value}, token_per_repo_id=tokens)[""]

    decode: Decode | None = None if _is_plain(feature) else decode_slowly
    if isinstance(feature, VolumeFeature):
        decode = feature.decode_example if feature.decode else None
    is_stored = _check(feature)
    numbers = {name: n for n, name in enumerate(feature.names)} if isinstance(feature, ClassLabel) else {}

    def encode(value: Any) -> Any:
        if type(value) is str and (number := numbers.get(value)) is not None:
            return number
        return value if is_stored(value) else slowly(value)

    return Codec(encode, decode, _python_type(feature))


def _is_plain(feature: Any) -> bool:
    """Whether stored values of `feature` need no decoding."""
    if isinstance(feature, dict):
        return all(_is_plain(part) for part in feature.values())
    inner = item_type(feature)
    return _is_plain(inner) if inner is not None else isinstance(feature, (Value, ClassLabel))


def _check(feature: Any) -> Callable[[Any], bool]:
    """A function that says whether a value is of the stored form for sure."""
    if isinstance(feature, ClassLabel):
        count = feature.num_classes
        return lambda value: value is None or (type(value) is int and 0 <= value < count)
    if isinstance(feature, Value):
        wanted = _python_type(feature)
        return lambda value: value is None or type(value) is wanted
    if isinstance(feature, (VolumeFeature, Image)):
        # Stock pictures take their stored form only where Pillow is installed; it is no core dependency.
        return lambda value: value is None or (type(value) is dict and value.keys() == _STORED_FILE)
    if isinstance(feature, dict):
        members = {name: _check(part) for name, part in feature.items()}
        names = [*feature]
        types = [_python_type(part) for part in feature.values()]
        return lambda value: (
            type(value) is dict
            and (
                ([*value] == names and [*map(type, value.values())] == types)  # nearly always
                or (
                    value.keys() == members.keys()
                    and all(is_stored(value[name]) for name, is_stored in members.items())
                )
            )
        )
    inner = item_type(feature)
    if (python_type := _python_type(inner)) is not None:
        only = {python_type}
        return lambda value: value is None or (type(value) is list and only.issuperset(map(type, value)))
    if inner is not None:
        is_stored_item = _check(inner)
        return lambda value: value is None or (type(value) is list and all(map(is_stored_item, value)))
    return lambda value: False


def _python_type(feature: Any) -> type | None:
    """The type that stored values of a plain feature have; `None` if that does not settle it."""
    return _PYTHON_TYPES.get(feature.dtype) if isinstance(feature, Value) else None


def item_type(feature: Any) -> Any:
    """Type of the items of a list; `None` for what is no list."""
    if isinstance(feature, list):
        return feature[0]
    inner = getattr(feature, "feature", None)
    # `Sequence` of a dict is a dict of lists: not a form that is looked at here.
    return None if isinstance(inner, dict) and type(feature).__name__ == "Sequence" else inner
