"""Who is asked next: failover, retries and waiting over the endpoints of one tree."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reasonknee_hf import environment
from reasonknee_hf.errors import (
    AnswerError,
    EndpointError,
    ForbiddenError,
    IntegrityError,
    OfflineError,
    RemoteMissingError,
    ThrottledError,
    UnreachableError,
)
from reasonknee_hf.hub.disk import ForkSafeLock
from reasonknee_hf.hub.wire.checks import AbsentError, NoRangesError, RetryLaterError, StaleError
from reasonknee_hf.hub.wire.endpoints import Endpoint
from reasonknee_hf.hub.wire.retries import Patience

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What passes is asked for again while there is patience. How often the rest is, by the first kind that fits.
_TRIES: tuple[tuple[type[EndpointError], int], ...] = (
    (NoRangesError, 1),
    (StaleError, 1),
    (AbsentError, 2),
    (IntegrityError, 2),
    (RemoteMissingError, 1),
    (ForbiddenError, 1),
)
# The kinds of a failure of several endpoints: where one of them gave such an answer, that is what a caller must know.
_TELLING = (NoRangesError, ForbiddenError, AnswerError)
_KINDS = (*_TELLING, IntegrityError, RemoteMissingError, ThrottledError, UnreachableError)


@dataclass
class Health:
    """What this process has seen of one endpoint."""

    throttled_until: float = 0.0  # monotonic clock
    no_ranges: bool = False
    honest_ranges: frozenset[str] = frozenset()  # kinds of files on which its ranges were found right
    requests: int = 0
    failures: int = 0
    failovers: int = 0

    def wait_left(self) -> float:
        return max(0.0, self.throttled_until - time.monotonic())

    @property
    def state(self) -> str:
        return "throttled" if self.wait_left() > 0 else "no ranges" if self.no_ranges else "healthy"


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
        self.answered = False  # one of them has, in this process or in the one that this was pickled in
        self._order = list(endpoints)
        self._stale: frozenset[str] = frozenset()
        self._lock = ForkSafeLock()

    def ask(self, attempt: Callable[[Endpoint], T], what: str, *, ranged: bool = False) -> T:
        """The result of the first `attempt` that succeeds, over all endpoints and while there is patience.

        Endpoints that are throttled, or that do not honour ranges where a range is wanted, come last. After each
        round of all endpoints there is a pause, see [`Patience`]. Where none has ever answered, patience is short: a
        name with a slip in it should not cost minutes.

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
        limit = environment.retry_time()
        patience = Patience(what, limit if self.answered else min(limit, environment.timeout()))
        while candidates := [e for e in self._ordered(ranged) if tries[e] < _allowed(failures.get(e))]:
            for endpoint in candidates:
                health = health_of(endpoint)
                if health.wait_left() > 0:
                    failures[endpoint] = _still_throttled(endpoint, what)
                    continue
                tries[endpoint] += 1
                health.requests += 1
                try:
                    result = attempt(endpoint)
                except EndpointError as error:
                    failures[endpoint] = error
                    self.demote(endpoint, error)
                else:
                    self.answered = True
                    return result
            again = [e for e in candidates if tries[e] < _allowed(failures[e])]
            asked = min((health_of(endpoint).wait_left() for endpoint in again), default=0.0)
            if not again or not patience.wait(failures[again[0]], asked):
                break
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
                level = logging.INFO if health.failovers else logging.WARNING
                health.failovers += 1
                logger.log(level, "failing over from %s to %s: %s", endpoint.url, self._order[0].url, error)

    def _ordered(self, ranged: bool) -> list[Endpoint]:
        def rank(endpoint: Endpoint) -> tuple[bool, bool, bool]:
            health = health_of(endpoint)
            unfit = ranged and health.no_ranges
            return endpoint.url in self._stale, unfit, health.wait_left() > 0

        return sorted(self._order, key=rank)


def endpoint_counts() -> list[dict[str, Any]]:
    """For each endpoint that this process has asked: `url`, `state` (`"healthy"`, `"throttled"` or `"no ranges"`),
    `requests`, `failures`, and `failovers`, which is how often another one took over.
    """
    counts = ("state", "requests", "failures", "failovers")
    return [
        {"url": url} | {name: getattr(health, name) for name in counts} for url, health in _health.items()
    ]


def _allowed(error: EndpointError | None) -> float:
    return next((tries for kind, tries in _TRIES if isinstance(error, kind)), math.inf)


def _still_throttled(endpoint: Endpoint, what: str) -> RetryLaterError:
    left = health_of(endpoint).wait_left()
    return RetryLaterError(
        f"{endpoint.url} limits the rate of requests: {what} not before {left:.0f} s", left
    )


def combined(
    failures: Mapping[Endpoint, EndpointError], endpoints: Sequence[Endpoint], what: str
) -> EndpointError:
    """One error for what all endpoints answered.

    Its kind is that of the first endpoint, in order of preference, that lied, refused or knows no ranges. Only where
    all agree it is that of their answers: one that is out of reach may have what the others say is missing.
    """
    ordered = [failures[endpoint] for endpoint in endpoints if endpoint in failures]
    if len(ordered) == 1:
        return ordered[0]
    kinds = [next((kind for kind in _KINDS if isinstance(error, kind)), EndpointError) for error in ordered]
    telling = [kind for kind in kinds if kind in _TELLING]
    kind = telling[0] if telling else kinds[0] if len(set(kinds)) == 1 else EndpointError
    told = "; ".join(str(error) for error in ordered)
    error = kind(f"{what}: none of {len(endpoints)} endpoints gave it. {told}")
    error.__cause__ = ordered[0]
    return error
