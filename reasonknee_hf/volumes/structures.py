"""Labels in masks, and the names of structures that they stand for."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import OptionError


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
