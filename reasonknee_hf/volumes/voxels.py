"""Voxels from a stream of plain bytes: one buffer, file order, native byte order; labels and their names."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import OptionError, VolumeDataError, VolumeFormatError
from reasonknee_hf.volumes.header import HEADER_BYTES, NiftiHeader, parse_header
from reasonknee_hf.volumes.orientation import Array as Array

_BLOCK = 1 << 18  # voxels worked on at a time, so that temporaries stay in the processor's cache


def read_header(pieces: Iterable[bytes | memoryview]) -> tuple[NiftiHeader, bytes]:
    """Parses the header at the start of a plain file; also gives back all bytes taken from `pieces`."""
    start = bytearray()
    for piece in pieces:
        start += piece
        if len(start) >= HEADER_BYTES:
            break
    return parse_header(bytes(start[:HEADER_BYTES])), bytes(start)


def read_stored(
    pieces: Iterator[bytes | memoryview], header: NiftiHeader, taken: bytes = b"", stop: int | None = None
) -> Array:
    """Reads voxels as stored into one new buffer.

    Args:
        pieces: the plain file that holds the voxels, in order.
        header: its header.
        taken: bytes of that file which were already taken from `pieces`.
        stop: how many slices along the slowest (third) axis are wanted; all by default. With fewer than all,
            the rest of the file is not read, so its checksum is not verified either.

    Returns:
        Array in file order (Fortran), native byte order, shape `header.shape` or `(x, y, stop)`.

    Raises:
        VolumeDataError: the file ends before the last voxel, or its checksum is wrong.
        VolumeFormatError: there is no memory for so many voxels.
    """
    shape = header.shape if stop is None else (*header.shape[:2], min(stop, header.shape[2]))
    flat = _buffer(shape, header)
    target = flat.view(np.uint8)
    skip, filled = header.offset, 0
    whole = shape == header.shape
    for piece in _after(taken, pieces):
        if skip >= len(piece):
            skip -= len(piece)
            continue
        part = memoryview(piece)[skip : skip + len(target) - filled]
        skip = 0
        target[filled : filled + len(part)] = part
        filled += len(part)
        if filled == len(target) and not whole:
            break  # else go on to the end, where checksums are verified
    if filled < len(target):
        raise VolumeDataError(
            f"the file ends after {filled} of {len(target)} bytes of voxels; it is cut, fetch it again"
        )
    if header.byte_order != ("<" if sys.byteorder == "little" else ">"):
        flat.byteswap(inplace=True)
    return flat.reshape(shape, order="F")


def _buffer(shape: tuple[int, ...], header: NiftiHeader) -> Array:
    """Room for voxels. Memory is taken only as it is filled, so that what is no file's size may succeed here."""
    try:
        return np.empty(shape[0] * shape[1] * shape[2], dtype=header.dtype)
    except (MemoryError, ValueError, OverflowError) as error:
        raise VolumeFormatError(
            f"the header says shape {header.shape}, {header.nbytes:,} bytes of voxels, for which there is no memory;"
            " it may be damaged, fetch the file again"
        ) from error


def _after(taken: bytes, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    if taken:
        yield taken
    yield from pieces


def scaled(stored: Array, header: NiftiHeader) -> Array:
    """Applies slope and intercept: in float64, rounded once to float32. Unscaled voxels stay as they are.

    Raises:
        VolumeFormatError: a voxel would be beyond float32.
    """
    if not header.scaled:
        return stored
    out = np.empty(stored.size, dtype=np.float32)
    flat = stored.reshape(-1, order="F")
    try:
        with np.errstate(over="raise"):
            for start in range(0, flat.size, _BLOCK):
                block = flat[start : start + _BLOCK].astype(np.float64)
                block *= header.slope
                block += header.intercept
                out[start : start + _BLOCK] = block
    except FloatingPointError as error:
        raise VolumeFormatError(
            f"slope {header.slope:g} and intercept {header.intercept:g} take voxels beyond float32;"
            " the header is damaged"
        ) from error
    return out.reshape(stored.shape, order="F")


def as_labels(stored: Array, header: NiftiHeader) -> Array:
    """Turns stored voxels of a mask into integer labels of the smallest unsigned type that holds them.

    Scaled or floating voxels are rounded to the nearest integer. They may be off by half a quantisation step
    of the stored type (`slope / 2`, at most 0.25) plus 0.001: a mask saved through a slope passes, one that
    was interpolated between labels does not.

    Raises:
        VolumeFormatError: voxels that are no labels: negative, NaN, infinite or between integers.
    """
    if stored.dtype.kind == "f" or header.scaled:
        stored = _rounded(stored, header)
    low, high = int(stored.min()), int(stored.max())
    if low < 0:
        raise VolumeFormatError(f"a mask holds the label {low}; labels are 0 or more")
    smallest = np.min_scalar_type(high)
    return stored if stored.dtype == smallest else stored.astype(smallest, order="F")


def _rounded(stored: Array, header: NiftiHeader) -> Array:
    step = abs(header.slope) if stored.dtype.kind != "f" and header.scaled else 0.0
    tolerance = 0.001 + min(step / 2, 0.25)
    out = np.empty(stored.size, dtype=np.int64)
    flat = stored.reshape(-1, order="F")
    for start in range(0, flat.size, _BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is found to be no label below
            value = flat[start : start + _BLOCK].astype(np.float64) * header.slope + header.intercept
            nearest = np.rint(value)
            right = (np.abs(value - nearest) <= tolerance) & (np.abs(value) < 2**31)
        wrong = ~right  # NaN and infinity compare false
        if wrong.any():
            raise VolumeFormatError(
                f"a mask holds the value {value[wrong][0]:g}, which is no label (tolerance {tolerance:g});"
                " it may have been interpolated"
            )
        out[start : start + _BLOCK] = nearest
    return out.reshape(stored.shape, order="F")


def label_counts(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    """The labels in a mask, rising, and how many voxels each has."""
    flat = array.ravel(order="K")
    if array.dtype.itemsize > 2:  # one stray label may be in the billions: no table goes up to it
        return np.unique(flat, return_counts=True)
    counts = np.bincount(flat)
    found = np.flatnonzero(counts)
    return found, counts[found]


def structure_id(name: str | int, names: Mapping[str, int] | None) -> int:
    """The id of a structure in a mask.

    Args:
        name: its name, in any case, with blanks or underscores; or the id itself.
        names: names and ids from the release's label table.

    Raises:
        OptionError: no such name; the message lists the names there are. Or neither a name nor an id.
    """
    if not isinstance(name, str):
        try:
            return operator.index(name)
        except TypeError:
            raise OptionError(f"a structure is a name or a whole number, not {name!r}") from None
    wanted = _plain(name)
    for known, number in (names or {}).items():
        if _plain(known) == wanted:
            return number
    listed = ", ".join(sorted(names)) if names else "none, so give the id"
    raise OptionError(f"unknown structure {name!r}; the label table names: {listed}")


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()
