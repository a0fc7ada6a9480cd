"""Who is asked next: failover, retries and waiting over the endpoints of one tree."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reasonknee_hf import environment
from reasonknee_hf.errors import (
    EndpointError,
    ForbiddenError,
    IntegrityError,
    OfflineError,
    RemoteMissingError,
    ThrottledError,
    UnreachableError,
)
from reasonknee_hf.hub.locks import ForkSafeLock
from reasonknee_hf.hub.wire.checks import NoRangesError, RetryLaterError, StaleError
from reasonknee_hf.hub.wire.client import SlowError
from reasonknee_hf.hub.wire.endpoints import Endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUNDS = 5
# How often one endpoint is asked for the same thing, by what it answered. The rest is definite: once.
_TRIES: tuple[tuple[type[EndpointError], int], ...] = (
    (ThrottledError, ROUNDS),
    (UnreachableError, ROUNDS),
    (NoRangesError, 1),
    (IntegrityError, 2),
)
_FIRST_PAUSE = 0.25
# The rate windows of the public Hub are five minutes long; who asks for more has another reason.
MAX_THROTTLE_WAIT = 300.0

# The kinds a caller can tell apart; the definite ones first.
_DEFINITE = (NoRangesError, RemoteMissingError, ForbiddenError, IntegrityError)
_KINDS: tuple[type[EndpointError], ...] = (*_DEFINITE, ThrottledError, UnreachableError)


@dataclass
class Health:
    """What this process has seen of one endpoint."""

    throttled_until: float = 0.0  # monotonic clock
    no_ranges: bool = False
    honest_ranges: bool = False  # a range was compared with the same bytes of a verified file
    requests: int = 0
    failures: int = 0

    def wait_left(self) -> float:
        return max(0.0, self.throttled_until - time.monotonic())


_health: dict[str, Health] = {}  # by endpoint URL, for the life of the process


def health_of(endpoint: Endpoint) -> Health:
    """What this process has seen of `endpoint`, over all trees."""
    return _health.setdefault(endpoint.url, Health())


class Mirrors:
    """The endpoints of one tree in their present order: who fails goes to the end, and stays there.

    Args:
        endpoints: In order of preference.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self.failovers = 0
        self._order = list(endpoints)
        self._stale: frozenset[str] = frozenset()
        self._lock = ForkSafeLock()

    def ask(self, attempt: Callable[[Endpoint], T], what: str, *, ranged: bool = False) -> T:
        """The result of the first `attempt` that succeeds, over all endpoints and within bounded retries.

        Endpoints that are throttled, or that do not honour ranges where a range is wanted, come last. After
        each round of all endpoints there is a pause. There is no further round if it is likely to end after
        the timeout setting; only an endpoint that did not answer in time gets a second chance.

        Args:
            attempt: Asks one endpoint; raises an [`EndpointError`] if it does not get what it wants.
            what: What is asked for, with the revision, for messages.
            ranged: Whether the attempt needs ranges to be honoured.

        Raises:
            EndpointError: Of the most telling kind; the message names what each endpoint answered.
        """
        if environment.offline():
            raise OfflineError(f"{what}: offline mode is on (HF_HUB_OFFLINE) and it is not in a cache")
        failures: dict[Endpoint, EndpointError] = {}
        tries = dict.fromkeys(self.endpoints, 0)
        budget = environment.timeout()
        started = round_started = time.monotonic()
        for number in range(ROUNDS):
            candidates = [e for e in self._ordered(ranged) if tries[e] < _allowed(failures.get(e))]
            if not candidates:
                break
            waited = self._wait_for_throttled(candidates, what)
            if waited is None:
                break
            started += waited  # waiting because we were told to is not failing
            if number and not waited:
                pause = _FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.5)
                now = time.monotonic()
                likely_end = now - started + pause + (now - round_started)
                second_chance = number == 1 and any(isinstance(e, SlowError) for e in failures.values())
                if likely_end > budget and not second_chance:
                    break
                time.sleep(pause)
            round_started = time.monotonic()
            for endpoint in candidates:
                if health_of(endpoint).wait_left() > 0:
                    failures.setdefault(endpoint, _still_throttled(endpoint, what))
                    continue
                tries[endpoint] += 1
                health_of(endpoint).requests += 1
                try:
                    result = attempt(endpoint)
                except EndpointError as error:
                    failures[endpoint] = error
                    self.demote(endpoint, error)
                else:
                    return result
        raise combined(failures, self.endpoints, what)

    def demote(self, endpoint: Endpoint, error: EndpointError) -> None:
        """Notes a failure: the others are asked first from now on."""
        health = health_of(endpoint)
        health.failures += 1
        if isinstance(error, RetryLaterError) and error.wait is not None:
            health.throttled_until = time.monotonic() + error.wait * random.uniform(1.0, 1.1)
        elif isinstance(error, NoRangesError):
            health.no_ranges = True
        with self._lock:
            if isinstance(error, StaleError):
                self._stale |= {endpoint.url}
            if endpoint in self._order[:-1]:
                self._order = [*(e for e in self._order if e != endpoint), endpoint]
                self.failovers += 1
                level = logging.WARNING if self.failovers == 1 else logging.INFO
                logger.log(level, "failing over from %s to %s: %s", endpoint.url, self._order[0].url, error)

    def _ordered(self, ranged: bool) -> list[Endpoint]:
        def rank(endpoint: Endpoint) -> tuple[bool, bool, bool]:
            health = health_of(endpoint)
            unfit = ranged and health.no_ranges
            return endpoint.url in self._stale, unfit, health.wait_left() > 0

        return sorted(self._order, key=rank)

    def _wait_for_throttled(self, candidates: Sequence[Endpoint], what: str) -> float | None:
        """Waits if every candidate asked for patience. Returns the seconds, `None` if that is too long."""
        left = min(health_of(endpoint).wait_left() for endpoint in candidates)
        if left > MAX_THROTTLE_WAIT:
            return None
        if left > 0:
            logger.warning("%s: waiting %.0f s, every endpoint limits the rate of requests", what, left)
            time.sleep(left)
        return left

    def report(self) -> list[dict[str, Any]]:
        """For each endpoint in order of preference: `url`, `state`, `requests`, `failures`."""
        rows = []
        for endpoint in self.endpoints:
            health = health_of(endpoint)
            state = "healthy"
            if endpoint.url in self._stale:
                state = "stale"
            elif health.wait_left() > 0:
                state = "throttled"
            elif health.no_ranges:
                state = "no ranges"
            counts = {"requests": health.requests, "failures": health.failures}
            rows.append({"url": endpoint.url, "state": state, **counts})
        return rows


def _allowed(error: EndpointError | None) -> int:
    if error is None:
        return ROUNDS
    if isinstance(error, StaleError):
        return 1
    return next((tries for kind, tries in _TRIES if isinstance(error, kind)), 1)


def _still_throttled(endpoint: Endpoint, what: str) -> RetryLaterError:
    left = health_of(endpoint).wait_left()
    return RetryLaterError(
        f"{endpoint.url} limits the rate of requests: {what} not before {left:.0f} s", left
    )


def combined(
    failures: Mapping[Endpoint, EndpointError], endpoints: Sequence[Endpoint], what: str
) -> EndpointError:
    """One error for what all endpoints answered.

    Its kind is that of the first endpoint, in order of preference, that gave a definite answer (absent,
    forbidden, wrong), else the one kind they share, else [`EndpointError`] itself.
    """
    ordered = [failures[endpoint] for endpoint in endpoints if endpoint in failures]
    if not ordered:
        waits = ", ".join(f"{e.url} {health_of(e).wait_left():.0f} s" for e in endpoints)
        return ThrottledError(f"{what}: every endpoint asks for more patience than is useful ({waits})")
    if len(ordered) == 1:
        return ordered[0]
    kinds = [_kind(error) for error in ordered]
    definite = [kind for kind in kinds if kind in _DEFINITE]
    kind = definite[0] if definite else kinds[0] if len(set(kinds)) == 1 else EndpointError
    told = "; ".join(str(error) for error in ordered)
    error = kind(f"{what}: none of {len(endpoints)} endpoints gave it. {told}")
    error.__cause__ = ordered[0]
    return error


def _kind(error: EndpointError) -> type[EndpointError]:
    return next((kind for kind in _KINDS if isinstance(error, kind)), EndpointError)
