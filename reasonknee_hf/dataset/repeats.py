"""How often each row of a scan comes in an epoch, where some weigh more than others. Pure functions.

The rows of a scan are repeated in proportion to their weights, at least once each: weights are scaled up so that their
sum is whole, and the running sum is cut at whole numbers. So a scan has the same number of rows in every epoch, a row
of weight 2.3 comes two or three times, and which it is changes from epoch to epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise


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
