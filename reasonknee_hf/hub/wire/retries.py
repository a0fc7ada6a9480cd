"""The one policy for trying again, for reading and for pushing: what passes, how long is waited, when it is over.

patience = Patience("listing owner/name")
while True:
    try:
        return call()
    except UnreachableError as error:
        if not patience.wait(error):
            raise
"""

from __future__ import annotations

import email.utils
import logging
import random
import re
import time
from typing import Any, Protocol

from reasonknee_hf import environment

logger = logging.getLogger(__name__)

# Statuses of a server that is busy, restarting, or behind a proxy that could not reach it.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 10.0
# The rate windows of the public Hub are five minutes long; who asks for more has another reason.
MAX_ASKED = 300.0
_TOLD_FROM = 2.0  # seconds; who waits longer wants to know why


class Headers(Protocol):
    """Headers of one answer, looked up without regard to case."""

    def get(self, name: str, failobj: Any = None) -> Any: ...


class Patience:
    """How long one call goes on trying. The second try always comes; later ones while there is time.

    Args:
        what: What is tried, for the log.
        seconds: For all tries together; `environment.retry_time` by default. What a server asks for itself comes on
            top, up to `MAX_ASKED`.
    """

    def __init__(self, what: str, seconds: float | None = None) -> None:
        self.what = what
        self.seconds = environment.retry_time() if seconds is None else seconds
        self._started = time.monotonic()
        self._pauses = 0

    def wait(self, reason: object, asked: float | None = None) -> bool:
        """Sleeps before the next try. `False`, at once, if there should be none.

        Args:
            reason: Why the last try failed, for the log.
            asked: Seconds that the server asks for, see [`retry_after`].
        """
        used = time.monotonic() - self._started
        pause = min(FIRST_PAUSE * 2**self._pauses, LONGEST_PAUSE) * random.uniform(0.5, 1.5)
        allowed = self.seconds
        if asked:
            pause, allowed = asked * random.uniform(1.0, 1.1), self.seconds + MAX_ASKED
        if (asked or 0) > MAX_ASKED or (self._pauses and used + pause > allowed):
            return False
        self._pauses += 1
        level = logging.WARNING if used + pause > _TOLD_FROM else logging.INFO
        logger.log(
            level,
            "%s: trying again in %.1f s, %.0f of at most %.0f s are over (%s)",
            *(self.what, pause, used, allowed, reason),
        )
        time.sleep(pause)
        return True


def retry_after(headers: Headers) -> float | None:
    """Seconds until a request makes sense again, by `Retry-After` (seconds or a date) or the `RateLimit` headers."""
    text = (headers.get("Retry-After") or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError):
            pass
    for name in ("RateLimit", "RateLimit-Reset", "X-RateLimit-Reset"):
        text = (headers.get(name) or "").strip()
        found = re.search(r"(?:^|[;,\s])(?:t|reset)=(\d+)", text) or re.fullmatch(r"(\d+)", text)
        if found:
            seconds = float(found[1])
            return max(0.0, seconds - time.time()) if seconds > 1e9 else seconds
    return None
