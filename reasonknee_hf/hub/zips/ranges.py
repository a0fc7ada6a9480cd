"""Byte ranges over the parts of an archive: which requests to send for them, and sending them, some at a time."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from fsspec.utils import merge_offset_ranges

from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.zips.archive_names import PartSet

T = TypeVar("T")

# The one owner of the defaults. A gap of 64 KiB takes about as long to transfer as a round trip costs on a
# fast line; a request of 16 MiB is far beyond the size where its latency matters, and bounds what is held.
MAX_GAP = 64 * 1024
MAX_REQUEST = 16 * 1024 * 1024
# Fifty members at 50 ms a request took 0.58 s with 8 connections, 0.41 with 12 and 0.40 with 16.
CONNECTIONS = 12
MAX_BUFFERED = 64 * 1024 * 1024


class Request(NamedTuple):
    """One half-open range of one part."""

    part: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class RangePiece(NamedTuple):
    """A stretch of the answer to `Plan.requests[request]`, as a piece of a range that was wanted."""

    request: int
    start: int
    stop: int
    wanted: int


@dataclass(frozen=True)
class Plan:
    """What to ask for, and how the answers make up what was wanted.

    Args:
        requests: In the order of their position; none is empty.
        pieces: In the order of their position. An empty range has none; a range that lies across a cut has one for
            each part it touches.
        count: How many ranges were wanted.
    """

    requests: tuple[Request, ...]
    pieces: tuple[RangePiece, ...]
    count: int


def plan_requests(
    wanted: Sequence[tuple[int, int]],
    part_sizes: Sequence[int],
    *,
    max_gap: int = MAX_GAP,
    max_request: int = MAX_REQUEST,
) -> Plan:
    """Turns byte ranges over joined parts into requests to single parts. Pure.

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
    segments: list[tuple[int, int, int, int]] = []  # part, start, -stop, which wanted range
    for index, (start, stop) in enumerate(wanted):
        if not 0 <= start <= stop <= bounds[-1]:
            raise ValueError(f"range {start}-{stop} does not lie inside {bounds[-1]} bytes")
        part = bisect.bisect_right(bounds, start) - 1
        while start < stop:
            end = min(stop, bounds[part + 1])
            if end > start:  # a part may be empty
                segments.append((part, start - bounds[part], bounds[part] - end, index))
            start, part = end, part + 1
    segments.sort()  # of those with the same start the longest comes first
    outer: list[tuple[int, int, int, int]] = []  # those that do not lie inside another one
    for segment in segments:
        if not outer or segment[0] != outer[-1][0] or segment[2] < outer[-1][2]:
            outer.append(segment)
    merged = merge_offset_ranges(
        [part for part, _, _, _ in outer],
        [start for _, start, _, _ in outer],
        [-end for _, _, end, _ in outer],
        max_gap,
        max_request,
        sort=False,
    )
    requests = tuple(map(Request, *merged))
    starts = [(request.part, request.start) for request in requests]
    pieces = []
    for part, start, end, index in segments:
        number = bisect.bisect_right(starts, (part, start)) - 1
        offset = starts[number][1]
        pieces.append(RangePiece(number, start - offset, -end - offset, index))
    return Plan(requests, tuple(pieces), len(wanted))


def execute(
    plan: Plan,
    fetch: Callable[[Request], bytes],
    *,
    connections: int = CONNECTIONS,
    max_buffered: int = MAX_BUFFERED,
) -> Iterator[tuple[int, bytes]]:
    """Yields `(index of the wanted range, its bytes)`, each exactly once, in the order of position.

    Empty ranges come first, and a range that lies across a cut when its last piece is there.

    Answers that were asked for and not yet handed out never exceed `max_buffered` bytes, except that one
    request always runs, and that the head of a range is kept until its tail has come from the next part.

    A failing request ends the iteration with its error, after everything before it was yielded; requests that
    have not started are dropped and the running ones are waited for. Closing the iterator does the same.

    Args:
        plan: Made by [`plan_requests`].
        fetch: Returns exactly the bytes of a request, or raises. Called from several threads.
        connections: How many requests run at the same time.
        max_buffered: Bound on the bytes held, see above.
    """
    left = Counter(piece.wanted for piece in plan.pieces)
    for index in range(plan.count):
        if not left[index]:
            yield index, b""
    # Among what is kept here are the heads of ranges whose tails are still to come.
    found: dict[int, list[bytes]] = defaultdict(list)
    by_request = groupby(plan.pieces, attrgetter("request"))
    for answer, (_, pieces) in zip(_answers(plan, fetch, connections, max_buffered), by_request, strict=True):
        for piece in pieces:
            found[piece.wanted].append(answer[piece.start : piece.stop])
            left[piece.wanted] -= 1
            if not left[piece.wanted]:
                yield piece.wanted, b"".join(found.pop(piece.wanted))


def _answers(
    plan: Plan, fetch: Callable[[Request], bytes], connections: int, max_buffered: int
) -> Iterator[bytes]:
    """The answers in the order of the requests."""
    if len(plan.requests) <= 1 or connections <= 1:  # no threads for the most common case, a single member
        yield from map(fetch, plan.requests)
        return
    # The pool lives as long as the call: nothing is left over for a fork to inherit.
    pool = ThreadPoolExecutor(min(connections, len(plan.requests)), thread_name_prefix="reasonknee-range")
    running: deque[tuple[int, Future[bytes]]] = deque()
    buffered = 0
    try:
        for request in plan.requests:
            while running and (len(running) >= 2 * connections or buffered + request.length > max_buffered):
                length, future = running.popleft()
                yield future.result()
                del future  # or its bytes would outlive their turn
                buffered -= length
            running.append((request.length, pool.submit(fetch, request)))
            buffered += request.length
        while running:
            yield running.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Parts:
    """The parts of one archive in their tree, read by ranges.

    Args:
        tree: Where the parts lie.
        parts: Found by [`find_part_sets`].
    """

    def __init__(self, tree: Tree, parts: PartSet) -> None:
        self.tree = tree
        self.set = parts
        self.paths = parts.paths

    @property
    def name(self) -> str:
        """How messages name the archive."""
        return f"{' + '.join(self.paths)} of {self.tree.name}"

    def fetch(self, request: Request, *, checked_later: bool = False) -> bytes:
        """The bytes of one request."""
        span = (request.start, request.stop)
        return self.tree.ranges(self.paths[request.part], [span], checked_later=checked_later)[0]

    def spans(
        self, sizes: Sequence[int], spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        """The bytes of `spans`, counted over all parts of these `sizes`, in their order."""
        plan = plan_requests(spans, sizes)
        found = dict(execute(plan, partial(self.fetch, checked_later=checked_later)))
        return [found[index] for index in range(len(spans))]

    def checked(self, requests: Sequence[Request], check: Callable[[bytes], T]) -> T:
        """What `check` makes of the joined answers. If it raises [`IntegrityError`], the next endpoint is asked."""
        pieces = [(self.paths[one.part], one.start, one.stop) for one in requests]
        return self.tree.checked_ranges(pieces, lambda answers: check(b"".join(answers)))
