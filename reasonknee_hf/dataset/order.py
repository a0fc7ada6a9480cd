"""In which order scans and rows come, and how often. Pure functions of a seed, an epoch and weights.

The rows of a scan are repeated in proportion to their weights, at least once each: weights are scaled up so that their
sum is whole, and the running sum is cut at whole numbers. So a scan has the same number of rows in every epoch, a row
of weight 2.3 comes two or three times, and which it is changes from epoch to epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

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


def total(weights: Sequence[float]) -> int:
    """How many rows a scan has whose rows have these weights; the same in every epoch."""
    return math.ceil(round(sum(max(weight, 1.0) for weight in weights), 6))


def repeats(weights: Sequence[float], *key: int) -> list[int]:
    """How often each row of a scan comes: at least once, and `total(weights)` in sum.

    Args:
        weights: The weights of the scan's rows, in an order that does not depend on the epoch.
        key: Integers that tell this scan and epoch from others: which rows get the odd repeat depends on them
            and on nothing else.
    """
    if not weights:
        return []
    digest = blake2b(
        b"".join(part.to_bytes(16, "little", signed=True) for part in key), digest_size=4
    ).digest()
    start = int.from_bytes(digest, "little") / 2**32
    whole = total(weights)
    sums = list(accumulate(max(weight, 1.0) for weight in weights))
    cuts = [0, *(math.floor(start + part * whole / sums[-1]) for part in sums[:-1]), whole]
    return [high - low for low, high in pairwise(cuts)]
