"""Asks one endpoint for one file and hands out the answer once its head has passed every check."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from reasonknee_hf.errors import AnswerError, UnreachableError
from reasonknee_hf.hub.wire import checks
from reasonknee_hf.hub.wire.client import Answer, send
from reasonknee_hf.hub.wire.endpoints import masked, origin_of
from reasonknee_hf.hub.wire.tokens import Credentials

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_HOPS = 6
# A signed URL is given up this long before it expires.
_MARGIN = 5.0


@dataclass(frozen=True)
class Route:
    """Where a redirect led to, with what the Hub said about the file on the way.

    Attributes:
        url: Final URL, as a rule signed: a secret.
        foreign: Whether it lies at another origin than the endpoint, so that no token may go there.
        heads: What the Hub's own answer said.
        expires: Time after which the URL is of no use, `None` if it does not say.
    """

    url: str = field(repr=False)
    foreign: bool
    heads: Mapping[str, str | None]
    expires: float | None

    def usable(self) -> bool:
        return self.expires is None or time.time() < self.expires - _MARGIN


def follow(
    method: str,
    url: str,
    *,
    what: str,
    credentials: Credentials,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    known: Route | None = None,
) -> tuple[Answer, Route]:
    """Sends a request and goes after redirects by hand: a token does not follow to another origin.

    Args:
        method: `GET` or `POST`.
        url: First URL, at an endpoint.
        what: File and revision, for messages.
        credentials: Decide whether the first origin sees a token.
        headers: Of every request.
        body: Of a POST.
        known: Where an earlier answer led to; it is asked in place of `url`.

    Raises:
        UnreachableError: A host does not answer; the message says who sent us there.
        AnswerError: Too many redirects, or one without a goal.
    """
    first, foreign = url, False
    heads: dict[str, str | None] = {}
    if known is not None:
        url, foreign, heads = known.url, known.foreign, dict(known.heads)
    for _ in range(_MAX_HOPS):
        token = None if foreign else credentials.for_url(url)
        try:
            answer = send(method, url, headers=headers, token=token, body=body)
        except UnreachableError as error:
            if url == first:
                raise
            raise UnreachableError(
                f"{what}: {masked(first)} sends us on to {origin_of(url)}, but {error}"
            ) from error
        for name in ("X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size"):
            if heads.get(name) is None:
                heads[name] = answer.headers.get(name)
        if answer.status not in _REDIRECTS:
            return answer, Route(url, foreign, heads, _expiry(url))
        with answer:
            answer.everything(1024)
        following = _goal(answer, what)
        foreign = foreign or origin_of(following) != origin_of(url)  # once dropped, a token stays dropped
        url = following
    raise AnswerError(f"{what}: {masked(first)} redirects more than {_MAX_HOPS} times")


def _goal(answer: Answer, what: str) -> str:
    """Where a redirect leads to."""
    goal = answer.headers.get("Location")
    if not goal:
        raise AnswerError(f"{what}: {masked(answer.url)} answered {answer.status} without saying where to go")
    try:
        joined = urllib.parse.urljoin(answer.url, goal.strip())
        following = urllib.parse.quote(joined, safe="!#$%&'()*+,/:;=?@[]~")
        parts = urllib.parse.urlsplit(following)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fit = False
    if not fit:
        raise AnswerError(f"{what}: {masked(answer.url)} redirects to what is not a web address")
    if answer.url.lower().startswith("https:") and parts.scheme == "http":
        raise AnswerError(f"{what}: {masked(answer.url)} redirects to plain http, which is not followed")
    return following


def identity_of(answer: Answer, route: Route, total: int | None) -> checks.Identity:
    """What the answers on a route say about the file."""
    heads = dict(route.heads)
    own = checks.bare_etag(answer.headers.get("ETag"))
    storage = None
    # The ETag of a storage host follows rules of its own. It must not change, but it proves nothing.
    if route.foreign and answer.headers.get("X-Repo-Commit") is None:
        storage = (origin_of(route.url), own)
    else:
        heads["ETag"] = own
    return checks.Identity.of(heads, total, storage)


def _expiry(url: str) -> float | None:
    """When a signed URL ends, by the ways in which the storage services write it."""
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    try:
        if "Expires" in query:
            return float(query["Expires"])
        if "X-Amz-Expires" in query and "X-Amz-Date" in query:
            signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            return signed.timestamp() + float(query["X-Amz-Expires"])
        if "se" in query:
            return datetime.fromisoformat(query["se"].replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        pass
    return None
