"""Volume, mask and box of a row changed together by a transform of MONAI or TorchIO, and its words with them.

One adapter for each library turns three arrays into three: the image, the mask, and a marker that knows of every voxel
where it was. From the marker alone follows what the transform did: where the box went, whether it was cut, and which
way the axes run now. So any transform will do, random or not, and none has to know of boxes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.prompting.chats import row_volume
from reasonknee_hf.prompting.lessons import name_of
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.orientation import Affine, Array

KEYS = ("image", "mask", "box")
TEXTS = ("prompt", "cot", "answer", "final_diagnosis")
_BLOCKS = 32  # along each axis, whose numbers stand in the marker
_INSIDE = 1 << 16
_ENDS = _INSIDE << 1  # the first of six bits, for the outermost layers of the box; all fit into a float32
# Words that are spelled like sides and may be none.
_NO_SIDE = re.compile(
    r"\b(is|are|was|were|been?|remains?)\s+left\b|\bleft\s+(over|out|behind)\b|\ball right\b"
    r"|\bright\s+(at|above|after|away|before|behind|below|beneath|beside|in|next|now|on|over|under)\b",
    re.IGNORECASE,
)
_OTHER = {"right": "left", "left": "right"}


class Augment:
    """Changes rows for training: a function from row to row, as the argument `augment` of [`Collator`] takes it.

        from monai.transforms import RandAffined
        turn = RandAffined(["image", "mask", "box"], prob=1, rotate_range=0.1, mode=["bilinear", "nearest", "nearest"])
        Collator(processor, view="region", augment=Augment(turn))

    A mirror image from left to right is another possible body: columns that name a side (`side`, `..._side`) and the
    words "left" and "right" of all texts change with it, and the six numbers of the box wherever a text tells them.
    Medial and lateral stay true.

    Args:
        transform: One of MONAI that takes dictionaries, spatial ones with the keys `image`, `mask` and `box`; or one of
            TorchIO. Arrays are in the order of boxes: slices, x, y.
        tries: How often a random transform is drawn again that cuts a part of the box off, or mirrors a row whose words
            cannot follow.

    Raises:
        OptionError: The transform is of neither library or leaves a key out; when rows are made: it turns the body
            upside down or back to front, or interpolates labels.
        RecordError: What it did could not be done to the whole row in any try; the message says why.
        GridMismatchError: The box lives on another grid than the volume.

    Examples:
        >>> from monai.transforms import RandScaleIntensityd
        >>> from reasonknee_hf.train import Augment
        >>> brighter = Augment(RandScaleIntensityd(["image"], factors=0.2, prob=1))
        >>> brighter(row)["bbox"] == row["bbox"]
        True
    """

    def __init__(self, transform: Any, *, tries: int = 10) -> None:
        self.transform = transform
        self.tries = tries
        library = type(transform).__module__.partition(".")[0]
        if library not in _ADAPTERS:
            raise OptionError(f"a {type(transform).__name__} is no transform of {' or '.join(_ADAPTERS)}")
        self._apply = _ADAPTERS[library]
        if library == "monai":
            _check_keys(transform)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The changed row; `id` and the other names stay those of the row it was made of."""
        image, mask, box = row_volume(row), row.get("mask"), row.get("bbox")
        image.check_box_grid()
        ends = None if box is None else boxes.check_box(box, image.shape)
        arrays = [image.array(), None if mask is None else mask.array(), _marker(image.shape, ends)]
        for left in reversed(range(self.tries)):
            drawn, labels, moved = self._apply(self.transform, arrays, image.affine)
            if not (_whole(moved) and (labels is None or _whole(labels))):
                raise OptionError(
                    "the transform interpolates labels: give the mode 'nearest' for mask and box"
                )
            where = moved.astype(np.int64)
            try:
                new = None if ends is None else _box_inside(where)
                changed = copy(row)  # knows the epoch
                changed |= {"bbox": new} | _texts(row, ends, new, mirrored=_is_mirrored(where))
                break
            except RecordError as error:
                if not left:
                    raise RecordError(f"{name_of(row)}: after {self.tries} tries, {error}") from None
        changed["image"] = image.with_voxels(_as_stored(drawn, arrays[0]))
        if labels is not None and mask is not None:
            changed["mask"] = changed["image"].grid_mask = mask.with_voxels(_as_stored(labels, arrays[1]))
        return changed


# --- the two libraries --------------------------------------------------------------------------------------


def _monai(transform: Any, arrays: list[Array | None], affine: Affine) -> list[Array | None]:
    import torch
    from monai.data import MetaTensor

    whole = [arrays[2] if array is None else array for array in arrays]  # transforms want all their keys
    given = {
        key: MetaTensor(torch.from_numpy(array.astype(np.float32, order="C"))[None], affine=affine)
        for key, array in zip(KEYS, whole, strict=True)
        if array is not None
    }
    made = transform(given)
    return [
        None if array is None else np.asarray(made[key])[0] for key, array in zip(KEYS, arrays, strict=True)
    ]


def _torchio(transform: Any, arrays: list[Array | None], affine: Affine) -> list[Array | None]:
    import torch
    import torchio

    kinds = (torchio.ScalarImage, torchio.LabelMap, torchio.LabelMap)
    given = {
        key: kind(tensor=torch.from_numpy(array.astype(np.float32, order="C"))[None], affine=affine)
        for key, kind, array in zip(KEYS, kinds, arrays, strict=True)
        if array is not None
    }
    made = transform(torchio.Subject(**given))
    return [made[key].numpy()[0] if key in made else None for key in KEYS]


_ADAPTERS: dict[str, Callable[..., Any]] = {"monai": _monai, "torchio": _torchio}


def _check_keys(transform: Any) -> None:
    """Refuses spatial transforms that would leave the mask or the box where they were."""
    for part in transform.flatten().transforms if hasattr(transform, "flatten") else (transform,):
        spatial = type(part).__module__.startswith(("monai.transforms.spatial", "monai.transforms.croppad"))
        if spatial and not set(KEYS) <= set(getattr(part, "keys", ())):
            raise OptionError(f"{type(part).__name__} needs keys={list(KEYS)}, so that all move together")


# --- what a transform did -----------------------------------------------------------------------------------


def _marker(shape: tuple[int, int, int], box: list[int] | None) -> Array:
    """Every voxel's block, counted from 1, whether it lies in the box, and in which outermost layers of it."""
    block = [np.arange(length) * min(_BLOCKS, length) // length for length in shape]
    i, j, k = np.ix_(*block)
    marker = np.asarray(1 + i + _BLOCKS * (j + _BLOCKS * k), np.float32)
    if box is not None:
        inside = marker[boxes.box_slices(box)]
        inside += _INSIDE
        for number in range(6):
            layer: list[Any] = [slice(None)] * 3
            layer[number // 2] = -(number % 2)
            inside[tuple(layer)] += _ENDS << number
    return marker


def _whole(array: Array) -> bool:
    return bool((array == np.rint(array)).all())


def _box_inside(where: Array) -> list[int]:
    """The box around what was in the box.

    Raises:
        RecordError: a part of that was cut off.
    """
    inside = where >= _INSIDE
    box = boxes.box_of(inside)
    kept = int(np.bitwise_or.reduce(where[inside])) if box else 0
    at_an_edge = not box or any(box[2 * a] == 0 or box[2 * a + 1] == where.shape[a] - 1 for a in range(3))
    if box is None or (at_an_edge and any(not kept & (_ENDS << number) for number in range(6))):
        raise RecordError("the transform cuts the box; take a milder one")
    return box


def _is_mirrored(where: Array) -> bool:
    """Whether left and right were exchanged.

    Raises:
        OptionError: other axes were turned round or exchanged.
    """
    step = tuple(slice(None, None, max(length // 40, 1)) for length in where.shape)
    sample = where[step]
    places = np.argwhere(sample > 0)
    code = sample[sample > 0] % _INSIDE - 1
    was = np.stack([code % _BLOCKS, code // _BLOCKS % _BLOCKS, code // _BLOCKS**2], axis=1)
    if not len(places):
        raise RecordError("the transform leaves nothing of the volume")
    known = np.ptp(was, axis=0) > 0  # along an axis of which one block is left, nothing tells the way
    centred = places - places.mean(axis=0)
    way = np.linalg.lstsq(centred, was - was.mean(axis=0), rcond=None)[0].T * np.ptp(places, axis=0)
    sideways, *others = np.diag(way / np.maximum(np.abs(way).max(axis=1, keepdims=True), 1e-9))
    if any(known & (np.array([abs(sideways), *others]) < 0.5)):
        raise OptionError(
            "the transform turns the body upside down or back to front, or exchanges axes, which makes no possible one;"
            " only left and right may be exchanged"
        )
    return bool(known[0] and sideways < 0)


# --- the row ------------------------------------------------------------------------------------------------


def _as_stored(array: Array, like: Array | None) -> Array:
    """The voxels in the type that the volume had."""
    assert like is not None
    if like.dtype.kind not in "iu":
        return array.astype(like.dtype)
    limits = np.iinfo(like.dtype)
    return np.clip(np.rint(array), limits.min, limits.max).astype(like.dtype)


def _texts(
    row: Mapping[str, Any], old: list[int] | None, new: list[int] | None, *, mirrored: bool
) -> dict[str, Any]:
    """Texts and side that hold for the changed row."""
    changed: dict[str, Any] = {}
    if old == new and not mirrored:
        return changed
    numbers = None if old is None else r"\[\s*" + r"\s*,\s*".join(map(str, old)) + r"\s*\]"
    for name in TEXTS:
        text = row.get(name)
        if not text:
            continue
        if re.search(r"\bslices?\s+\d", text, re.IGNORECASE):
            raise RecordError(f"its {name} names slices by number, which the transform makes untrue")
        if mirrored and (found := _NO_SIDE.search(text)):
            raise RecordError(
                f"its {name} says {found[0]!r}, so not every 'left' and 'right' of it is a side"
            )
        if numbers is not None:
            text, count = re.subn(numbers, str(new), text)
            if not count and re.search(r'bounding_box"?\s*:\s*\[\s*\d', text):
                raise RecordError(f"its {name} tells another box than {old}, which cannot be moved")
        changed[name] = re.sub(r"\b(left|right)\b", _swapped, text, flags=re.IGNORECASE) if mirrored else text
    for name, side in row.items():
        if mirrored and side is not None and (name == "side" or name.endswith("_side")):
            changed[name] = _OTHER[side] if isinstance(side, str) else 1 - side
    return changed


def _swapped(found: re.Match[str]) -> str:
    word = found[0]
    other = _OTHER[word.lower()]
    return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other
