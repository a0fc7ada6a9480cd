"""The order of a shuffled epoch: a pure function of (seed, epoch), the same on every machine and numpy version.

Scans are permuted, and rows are mixed inside windows of a few scans, so that a cache of as many volumes decodes each
volume once. A plain buffer of shuffled rows decodes 0.9 volumes a row instead of 0.016.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014), which spreads every input bit over all output bits."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permutation(count: int, *key: int) -> npt.NDArray[np.int64]:
    """A permutation of `range(count)` that depends on `key` alone.

    Args:
        count: How many items.
        key: Any integers, e.g. seed, epoch and window.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        state = _mix(state + np.uint64((part * 2 + 1) * _GOLDEN & _MASK))
    ranks = _mix(state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return np.argsort(ranks, kind="stable")
