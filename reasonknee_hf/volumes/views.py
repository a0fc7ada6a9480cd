"""Pictures out of voxels: which slices, and which grey values. Arrays here have slices on axis 0.

All windows have the form `grey = (clip(voxel, low, high) - base) / range * 255`, cut (not rounded) to uint8:

| window | low, high | base, range |
|---|---|---|
| `"upstream"` | 0, 400 | minimum and range of the clipped slice: what the published preprocessing does |
| `"o1"` | 0, 400 | minimum and range of the whole unclipped volume: what the published `o1.py` does |
| `"percentile"` | 1st and 99th percentile of the whole volume | the same two |
| `"header"` | `cal_min`, `cal_max` of the file | the same two |
| `(low, high)` | as given | the same two |

Where a range is 0 (a constant slice), all its pixels are 0. NaN is drawn as the lowest value of the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import ExtraMissingError, OptionError
from reasonknee_hf.volumes.header import NiftiHeader
from reasonknee_hf.volumes.orientation import Array

Frames = npt.NDArray[np.uint8]
Window = str | Sequence[float] | npt.NDArray[Any]
WINDOWS = ("upstream", "o1", "percentile", "header")
_PART = 1 << 18  # voxels counted at a time, which takes sixteen bytes for each
_TILE = 1 << 16  # voxels worked on at a time, so that temporaries stay in the processor's cache


# --- which slices -------------------------------------------------------------------------------------------


def slice_indices(
    count: int,
    n: int | None = None,
    *,
    around: Sequence[int] | None = None,
    consecutive: bool = False,
) -> list[int]:
    """Chooses slices. Indices rise and are distinct: frame `i` shows slice `result[i]`, slice `s` is frame
    `result.index(s)`.

    Args:
        count: how many slices the volume has.
        n: how many to choose; all (of the box) by default.
        around: a box; choose inside its slice range. A range shorter than `n` is widened evenly, within the
            volume.
        consecutive: neighbouring slices around the middle instead of slices spread evenly from end to end.

    Raises:
        OptionError: `n` is below one or above `count`.
    """
    low, high = (0, count - 1) if around is None else (int(around[0]), int(around[1]))
    if not 0 <= low <= high < count:
        raise OptionError(f"slices {low}..{high} are not all in a volume of {count} slices")
    if n is None:
        return list(range(low, high + 1))
    if not 1 <= n <= count:
        raise OptionError(f"{n} slices were asked for and the volume has {count}")
    if consecutive or high - low + 1 < n:
        start = min(max((low + high + 1 - n) // 2, 0), count - n)
        return list(range(start, start + n))
    return [int(index) for index in np.linspace(low, high, n).round()]


def o1_indices(count: int) -> list[int]:
    """The 32 slices of the published `o1` script, which takes slices 32 to 128 of 160.

    For other counts the same fractions of the volume are used. In volumes of less than 53 slices, slices
    repeat.
    """
    return [int(index) for index in np.linspace(count * 0.2, min(count * 0.8, count - 1), 32)]


def select(array: Array, indices: Sequence[int]) -> Array:
    """Copies slices, walking through memory in its own order (ten times faster than plain indexing)."""
    order = np.argsort(np.abs(array.strides))[::-1]
    chosen = np.take(array.transpose(order), indices, axis=int(np.flatnonzero(order == 0)[0]))
    return chosen.transpose(np.argsort(order))


# --- which grey values --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Levels:
    """A window in numbers; `base` and `range` hold one value a slice, or one for all.

    `inside` says that every voxel of the slices, once clipped, lies in `base`..`base + range`.
    """

    low: float
    high: float
    base: npt.NDArray[np.float64]
    range: npt.NDArray[np.float64]
    inside: bool

    def of(self, slices: slice) -> Levels:
        """The window of some of the slices."""
        return replace(self, base=self.base[slices], range=self.range[slices])

    def grey(self, voxels: Array) -> Frames:
        """Grey values by the formula, in float64; slices on axis 0."""
        value = voxels.astype(np.float64)
        if voxels.dtype.kind == "f":
            np.copyto(value, self.low, where=np.isnan(value))
        value = np.clip(value, self.low, self.high) - self.base.reshape(-1, 1, 1)
        value /= self.range.reshape(-1, 1, 1)
        value *= 255
        return np.clip(value, 0, 255, out=value).astype(np.uint8)


def levels(window: Window, volume: Array, chosen: Array, header: NiftiHeader) -> Levels:
    """Turns a window's name into numbers.

    Args:
        window: one of `WINDOWS`, or the lowest and highest voxel value to tell apart, in any sequence.
        volume: the whole volume.
        chosen: the slices that are shown.
        header: header of the file.

    Raises:
        OptionError: an unknown window, an empty one, or `"header"` for a file that proposes none.
    """
    name = window if isinstance(window, str) else ""
    edges = _given_edges(window)
    if edges is not None:
        least, most = edges
    elif name == "upstream":
        low, high = (np.clip(edge, 0, 400).astype(np.float64) for edge in _slice_edges(chosen))
        return _levels(0.0, 400.0, low, high)
    elif name == "o1":
        low, high = (edge.astype(np.float64) for edge in _slice_edges(volume))
        low, high = low.min(keepdims=True), high.max(keepdims=True)
        return _levels(0.0, 400.0, low, high, inside=bool(low[0] <= 400 and high[0] >= 0))
    elif name == "percentile":
        least, most = _percentiles(volume, 1, 99)
    elif name == "header":
        least, most = header.cal_min, header.cal_max
        if not least < most:
            raise OptionError("the header of this file proposes no window; use another one")
    else:
        raise OptionError(
            f"unknown window {window!r}: use {', '.join(WINDOWS)} or (low, high) with low < high"
        )
    return _levels(least, most, np.array([least]), np.array([most]))


def clipped_share(window: Window, volume: Array) -> float:
    """How much of a volume lies above a window with fixed ends, of what is not dark in it (a tenth of the window)."""
    edges = (0.0, 400.0) if isinstance(window, str) and window in ("upstream", "o1") else _given_edges(window)
    if edges is None:
        return 0.0
    sample = volume[::4, ::4, ::4]
    shown = int(np.count_nonzero(sample > edges[0] + (edges[1] - edges[0]) / 10))
    return int(np.count_nonzero(sample > edges[1])) / max(shown, 1)


def _given_edges(window: Window) -> tuple[float, float] | None:
    """The two edges of a window that is given by numbers; None for a name, and for what is no window."""
    if isinstance(window, str):
        return None
    try:
        low, high = (float(edge) for edge in window)
    except (TypeError, ValueError):
        return None
    return (low, high) if low < high else None


def _levels(low: float, high: float, base: Array, top: Array, inside: bool = True) -> Levels:
    range_ = np.where(top > base, np.maximum(top - base, 1e-8), np.inf)  # x / inf is 0: a constant is black
    return Levels(low, high, base, range_, inside)


def _slice_edges(array: Array) -> tuple[Array, Array]:
    """Lowest and highest voxel of every slice; NaN counts as 0."""
    source, _ = _fast_axis_last(array)
    low, high = np.full(len(array), np.inf), np.full(len(array), -np.inf)
    for part in _tiles(source):
        tile = source[part]
        if tile.dtype.kind == "f":
            tile = np.nan_to_num(tile, nan=0.0, posinf=np.inf, neginf=-np.inf)
        low[part[0]] = np.minimum(low[part[0]], tile.min(axis=(1, 2)))
        high[part[0]] = np.maximum(high[part[0]], tile.max(axis=(1, 2)))
    return low, high


def _percentiles(volume: Array, low: float, high: float) -> tuple[float, float]:
    """Percentiles over every voxel for small integers (from a histogram), over finite voxels else."""
    if volume.dtype.kind in "iu" and volume.dtype.itemsize <= 2:
        forward = volume[tuple(slice(None, None, -1 if step < 0 else 1) for step in volume.strides)]
        flat = forward.transpose(np.argsort(forward.strides)[::-1]).reshape(-1)  # a view of whole volumes
        least, most = int(flat.min()), int(flat.max())
        counts = np.zeros(most - least + 1, np.int64)
        for at in range(0, flat.size, _PART):
            part = flat[at : at + _PART].astype(np.int64) - least
            counts += np.bincount(part, minlength=len(counts))
        counts = counts.cumsum()
        wanted = np.array([low, high]) / 100 * (counts[-1] - 1)
        bottom, top = np.searchsorted(counts, np.floor(wanted), side="right") + least
        return float(bottom), float(top)
    finite = volume[np.isfinite(volume)]
    if finite.size == 0:
        return 0.0, 0.0
    bottom, top = np.percentile(finite, [low, high], method="lower", overwrite_input=True)
    return float(bottom), float(top)


# --- frames -------------------------------------------------------------------------------------------------


def frames(chosen: Array, window: Levels) -> Frames:
    """Grey values of all chosen slices.

    Integers of at most 16 bits do not go through the formula one by one, which is what makes this fast: its
    results for all values of the window stand in a table, and where one multiplication and shift reproduces
    that table exactly, as it does for the published windows, even the look-up is saved. The array is walked
    in tiles that follow its memory.

    Args:
        chosen: slices on axis 0, any memory order.
        window: from `levels` for the same slices.

    Returns:
        uint8 array of the shape of `chosen`; the two axes of a frame lie in memory as those of `chosen` do.
    """
    source, swapped = _fast_axis_last(chosen)
    out = np.empty(source.shape, dtype=np.uint8)
    small = chosen.dtype.kind in "iu" and chosen.dtype.itemsize <= 2
    table = _Table(chosen.dtype, window) if small else None
    for part in _tiles(source):
        rows = part[0] if window.base.size > 1 else slice(None)  # rows of the window that belong to the tile
        if table is None:
            out[part] = window.of(rows).grey(source[part])
        else:
            table.look_up(source[part], rows, out[part])
    return out.transpose(0, 2, 1) if swapped else out


class _Table:
    """The formula's results for every voxel value in a window: one row a slice, or one row for all."""

    _SHIFT = 20

    def __init__(self, dtype: np.dtype[Any], window: Levels) -> None:
        limits = np.iinfo(dtype)
        self.first = int(np.clip(np.floor(window.low), limits.min, limits.max))
        self.last = int(np.clip(np.ceil(window.high), limits.min, limits.max))
        self.grey = window.grey(np.arange(self.first, self.last + 1).reshape(1, 1, -1))[:, 0]
        self._factor = self._multiplier(window)
        self._base = window.base.astype(np.int64).astype(
            np.uint16
        )  # wraps around for negative ones, as `step` does
        self._scratch: Array = np.empty(0, dtype=np.uint32)

    def _multiplier(self, window: Levels) -> npt.NDArray[np.uint32] | None:
        """Factors by which `(voxel - base) * factor >> shift` is the table, or None where none is exact."""
        if window.low % 1 or window.high % 1 or (window.base % 1).any() or (window.base > self.last).any():
            return None
        factor = np.ceil(255 * 2.0**self._SHIFT / window.range)  # 0 for an infinite range
        step = np.arange(self.first, self.last + 1) - window.base[:, np.newaxis]
        product = step * factor[:, np.newaxis]
        occurs = (
            (step >= 0) & (step <= window.range[:, np.newaxis])
            if window.inside
            else np.full(step.shape, True)
        )
        if step.max() >= 1 << 16 or product[occurs].max() >= 1 << 32:
            return None
        exact = product.astype(np.int64) >> self._SHIFT == self.grey
        return factor.astype(np.uint32) if exact[occurs].all() else None

    def look_up(self, tile: Array, rows: slice, out: Frames) -> None:
        """Writes the grey values of a tile; `rows` are the rows of the table for its slices."""
        place = np.clip(tile, self.first, self.last)
        if self._factor is None:
            grey = self.grey[rows]
            index = place.astype(np.intp, order="C")
            index += (np.arange(len(grey)) * grey.shape[1] - self.first).reshape(-1, 1, 1)
            out[...] = grey.reshape(-1).take(index, mode="clip")
            return
        step = place.view(np.uint16) if place.itemsize == 2 else place.astype(np.int16).view(np.uint16)
        step -= self._base[rows].reshape(-1, 1, 1)
        if self._scratch.size < tile.size:  # fresh memory for every tile would cost as much as the work
            self._scratch = np.empty(tile.size, dtype=np.uint32)
        wide = self._scratch[: tile.size].reshape(tile.shape)
        wide[...] = step  # from the order of the file to that of the result
        wide *= self._factor[rows].reshape(-1, 1, 1)
        wide >>= self._SHIFT
        out[...] = wide


def _fast_axis_last(array: Array) -> tuple[Array, bool]:
    """A view whose last axis is the faster one of a frame in memory, and whether that swapped the two."""
    swap = abs(array.strides[1]) < abs(array.strides[2])
    return (array.transpose(0, 2, 1), True) if swap else (array, False)


def _tiles(array: Array) -> Iterator[tuple[slice, slice]]:
    """Parts of the first two axes that hold about `_TILE` voxels and lie close together in memory."""
    count, rows, columns = array.shape
    if abs(array.strides[0]) > abs(array.strides[1]):
        step, height = 1, max(_TILE // columns, 1)
    else:
        step, height = count, max(_TILE // (count * columns), 1)
    for at in range(0, count, step):
        for row in range(0, rows, height):
            yield slice(at, at + step), slice(row, row + height)


def resize(pictures: Frames, size: int | tuple[int, int]) -> Frames:
    """Resizes every frame, bilinear, to `(size, size)` or the shape given.

    Raises:
        ExtraMissingError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ExtraMissingError("resizing frames needs Pillow: pip install 'reasonknee_hf[viz]'") from error
    height, width = (size, size) if isinstance(size, int) else size
    out = np.empty((len(pictures), height, width), dtype=np.uint8)
    for i, picture in enumerate(pictures):
        out[i] = Image.fromarray(np.ascontiguousarray(picture)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
    return out
