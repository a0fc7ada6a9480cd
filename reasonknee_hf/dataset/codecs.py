"""How one column's values are encoded and decoded, without walking through what already has the stored form.

`datasets` looks at every value of every streamed row twice, in Python, which costs 250 µs for a row of ours.
Nearly all of it finds nothing to do: rows are made with the types that the schema declares. Here a value of
the stored form is recognised and passed on; any other goes the way of `datasets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from datasets import ClassLabel, Features, Value

from reasonknee_hf.volumes.feature import VolumeFeature

_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "bool": bool,
}
_STORED_VOLUME = {"bytes", "path"}

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
    if isinstance(feature, VolumeFeature):
        return lambda value: value is None or (type(value) is dict and value.keys() == _STORED_VOLUME)
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
