"""The planner is pure and the executor keeps its bounds."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.hub.zips.ranges import Plan, Request, execute, plan_requests

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=5)


@st.composite
def cases(draw):
    part_sizes = draw(sizes)
    total = sum(part_sizes)
    span = st.tuples(st.integers(0, total), st.integers(0, total)).map(lambda pair: tuple(sorted(pair)))
    return part_sizes, draw(st.lists(span, max_size=12)), draw(st.integers(0, 40)), draw(st.integers(1, 80))


def split(data: bytes, part_sizes) -> list[bytes]:
    parts, position = [], 0
    for size in part_sizes:
        parts.append(data[position : position + size])
        position += size
    return parts


@given(cases())
def test_the_answers_make_up_what_was_wanted(case):
    part_sizes, wanted, max_gap, max_request = case
    data = bytes(index % 251 for index in range(sum(part_sizes)))
    parts = split(data, part_sizes)
    plan = plan_requests(wanted, part_sizes, max_gap=max_gap, max_request=max_request)

    def fetch(request: Request) -> bytes:
        return parts[request.part][request.start : request.stop]

    for connections in (1, 3):
        got = list(execute(plan, fetch, connections=connections, max_buffered=50))
        assert sorted(index for index, _ in got) == list(range(len(wanted)))  # each exactly once
        assert all(answer == data[slice(*wanted[index])] for index, answer in got)


@given(cases())
def test_requests_keep_the_limits(case):
    part_sizes, wanted, max_gap, max_request = case
    plan = plan_requests(wanted, part_sizes, max_gap=max_gap, max_request=max_request)
    longest = max((stop - start for start, stop in wanted), default=0)
    for request in plan.requests:
        assert 0 <= request.start < request.stop <= part_sizes[request.part]
        assert request.length <= max(max_request, longest)
    starts = [0]
    for size in part_sizes:
        starts.append(starts[-1] + size)
    covered = {byte for start, stop in wanted for byte in range(start, stop)}
    for request in plan.requests:  # begins and ends with wanted bytes, and never bridges more than the gap
        fetched = range(starts[request.part] + request.start, starts[request.part] + request.stop)
        assert fetched[0] in covered
        assert fetched[-1] in covered
        unwanted = "".join("." if byte in covered else "x" for byte in fetched)
        assert "x" * (max_gap + 1) not in unwanted


@given(cases())
def test_the_order_of_what_is_wanted_does_not_matter(case):
    part_sizes, wanted, max_gap, max_request = case
    plan = plan_requests(wanted, part_sizes, max_gap=max_gap, max_request=max_request)
    again = plan_requests(wanted[::-1], part_sizes, max_gap=max_gap, max_request=max_request)
    assert again.requests == plan.requests
    last = len(wanted) - 1
    mirrored = {(one.request, one.start, one.stop, last - one.wanted) for one in again.pieces}
    assert mirrored == {(one.request, one.start, one.stop, one.wanted) for one in plan.pieces}


def test_neighbours_travel_together_up_to_the_limit():
    wanted = [(0, 10), (10, 20), (25, 30), (100, 110)]
    assert plan_requests(wanted, [200], max_gap=5).requests == (Request(0, 0, 30), Request(0, 100, 110))
    assert plan_requests(wanted, [200], max_gap=5, max_request=20).requests == (
        Request(0, 0, 20),
        Request(0, 25, 30),
        Request(0, 100, 110),
    )


def test_one_range_is_one_request_however_large_and_two_across_a_cut():
    assert plan_requests([(3, 900)], [1000], max_request=10).requests == (Request(0, 3, 900),)
    assert plan_requests([(3, 900)], [500, 500]).requests == (Request(0, 3, 500), Request(1, 0, 400))


def test_a_gap_is_not_bridged_over_a_cut():
    assert plan_requests([(80, 90), (110, 120)], [100, 100], max_gap=50).requests == (
        Request(0, 80, 90),
        Request(1, 10, 20),
    )


@pytest.mark.parametrize("span", [(-1, 2), (5, 3), (0, 11)])
def test_ranges_outside_are_refused(span):
    with pytest.raises(ValueError, match="does not lie inside 10 bytes"):
        plan_requests([span], [4, 6])


def many(count: int, size: int = 10) -> Plan:
    return plan_requests(
        [(2 * size * i, 2 * size * i + size) for i in range(count)], [2 * size * count], max_gap=0
    )


def test_connections_and_buffered_bytes_are_bounded():
    plan = many(40)
    lock, running, most, started = threading.Lock(), 0, 0, 0

    def fetch(request: Request) -> bytes:
        nonlocal running, most, started
        with lock:
            running, started = running + 1, started + 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return bytes(request.length)

    handed_out = 0
    for _ in execute(plan, fetch, connections=4, max_buffered=60):
        handed_out += 1
        assert started - handed_out < 6  # six answers of ten bytes are sixty bytes
    assert handed_out == 40
    assert 2 <= most <= 4


def test_one_request_runs_without_a_thread():
    threads = []

    def fetch(request: Request) -> bytes:
        threads.append(threading.current_thread())
        return bytes(request.length)

    assert list(execute(many(1), fetch)) == [(0, bytes(10))]
    assert threads == [threading.current_thread()]


def test_two_halves_are_fetched_at_the_same_time():
    both = threading.Barrier(2, timeout=5)

    def fetch(request: Request) -> bytes:
        both.wait()  # would break if one ran after the other
        return bytes([request.part]) * request.length

    assert list(execute(plan_requests([(5, 15)], [10, 10]), fetch)) == [(0, bytes(5) + b"\x01" * 5)]


def test_an_error_comes_after_what_was_before_it_and_stops_the_rest():
    asked = []

    def fetch(request: Request) -> bytes:
        asked.append(request.start)
        if request.start == 60:
            raise OSError("broken")
        return bytes(request.length)

    got = []
    with pytest.raises(OSError, match="broken"):
        got.extend(index for index, _ in execute(many(100), fetch, connections=2))
    assert got == [0, 1, 2]
    assert max(asked) < 20 * 10


def test_closing_early_leaves_no_thread_behind():
    before = threading.active_count()
    answers = execute(many(50), lambda request: bytes(request.length), connections=4)
    next(answers)
    answers.close()
    assert threading.active_count() == before
