"""Which requests to send for a set of wanted byte ranges. Pure: nothing here reads, waits or keeps state."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

# The one owner of the defaults. A gap of 64 KiB takes about as long to transfer as a round trip costs on a
# fast line; a request of 16 MiB is far beyond the size where its latency matters, and bounds what is held.
MAX_GAP = 64 * 1024
MAX_REQUEST = 16 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One half-open range of one part."""

    part: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Piece:
    """A stretch of the answer to `Plan.requests[request]`."""

    request: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """What to ask for, and how the answers make up what was wanted.

    Args:
        requests: In the order of their position; none is empty.
        pieces: For every wanted range, in the order they were given, the pieces that join to it. An empty
            range has none; a range that lies across a cut has one for each part it touches.
    """

    requests: tuple[Request, ...]
    pieces: tuple[tuple[Piece, ...], ...]


def plan_requests(
    wanted: Sequence[tuple[int, int]],
    part_sizes: Sequence[int],
    *,
    max_gap: int = MAX_GAP,
    max_request: int = MAX_REQUEST,
) -> Plan:
    """Turns byte ranges over joined parts into requests to single parts.

    Ranges that overlap, touch, or lie at most `max_gap` bytes apart in the same part travel in one request,
    as long as that request stays within `max_request` bytes. A wanted range is cut only where a part ends, so
    one range inside one part is always one request, however large.

    Args:
        wanted: Half-open `(start, stop)` pairs, counted from the first byte of the first part. Any order;
            duplicates and overlaps are allowed.
        part_sizes: Bytes of each part, in order.
        max_gap: Largest number of unwanted bytes to fetch in order to save a request.
        max_request: Size above which ranges are not merged any more.

    Raises:
        ValueError: A range is reversed or does not lie inside the parts.
    """
    bounds = [0, *accumulate(part_sizes)]
    segments: list[tuple[int, int, int, int]] = []  # part, start, stop, which wanted range
    for index, (start, stop) in enumerate(wanted):
        if not 0 <= start <= stop <= bounds[-1]:
            raise ValueError(f"range {start}-{stop} does not lie inside {bounds[-1]} bytes")
        part = bisect.bisect_right(bounds, start) - 1
        while start < stop:
            end = min(stop, bounds[part + 1])
            if end > start:  # a part may be empty
                segments.append((part, start - bounds[part], end - bounds[part], index))
            start, part = end, part + 1

    requests: list[Request] = []
    pieces: list[list[Piece]] = [[] for _ in wanted]
    for part, start, stop, index in sorted(segments):
        last = requests[-1] if requests else None
        if last is not None and last.part == part and start - last.stop <= max_gap:
            merged = Request(part, last.start, max(last.stop, stop))
            if stop <= last.stop or merged.length <= max_request:
                requests[-1] = last = merged
            else:
                last = None
        else:
            last = None
        if last is None:
            last = Request(part, start, stop)
            requests.append(last)
        pieces[index].append(Piece(len(requests) - 1, start - last.start, stop - last.start))
    return Plan(tuple(requests), tuple(tuple(found) for found in pieces))
