"""One HTTP exchange at a time, over kept connections, and where redirects lead. Retries and checks stand above.

The standard library's client is used on purpose. What `huggingface_hub` offers is a `requests` session before
version 1 and an httpx client since, which differ in streaming, redirects, errors and when proxies are read;
neither library is there on every supported version. Here an answer's head is seen before its body is
touched, a body can be left unread by closing the connection, and proxies and certificates are looked up
when a connection is made.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NoReturn

from reasonknee_hf import environment
from reasonknee_hf.errors import AnswerError, ReasonKneeError, UnreachableError
from reasonknee_hf.hub.tree import chunk_sizes
from reasonknee_hf.hub.wire import checks
from reasonknee_hf.hub.wire.connections import (
    GRACE,
    Key,
    Link,
    connect,
    is_socks,
    pool,
    proxy_for,
    proxy_headers,
)
from reasonknee_hf.hub.wire.endpoints import masked, origin_of
from reasonknee_hf.hub.wire.tokens import Credentials
from reasonknee_hf.version import __version__

# A body that drips would pass every single wait. After so many timeouts, fewer bytes a second are silence.
SLOWEST_PACE = 1024


class Answer:
    """The head of an answer; the body is still on the wire.

    Attributes:
        url: What was asked.
        status: Status code.
        headers: Looked up without regard to case.
        length: Announced length of the body, if any.
        delimited: Whether the end of the body can be told from a broken connection.
        stop: Of a range, the place in the file where the body ends; set by who has checked the head.
    """

    stop = 0

    def __init__(
        self, url: str, response: http.client.HTTPResponse, key: Key, link: Link, timeout: float
    ) -> None:
        self.url = url
        self.status = response.status
        self.headers = response.headers
        length = self.headers.get("Content-Length", "").strip()
        known = length.isascii() and length.isdigit() and not response.chunked
        self.length = int(length) if known else None
        self.delimited = known or bool(response.chunked)
        self._seen = 0
        self._waited = 0.0  # seconds spent in waiting for the body, not in using it
        self._timeout = timeout
        self._done = False
        self._pid = os.getpid()
        self._response, self._key, self._link = response, key, link

    def read(self, limit: int) -> bytes:
        """The next bytes of the body: `limit` of them, or fewer where it ends early."""
        if os.getpid() != self._pid:  # after a fork both processes would take bytes from one connection
            raise UnreachableError(f"{masked(self.url)} is being read by the parent process")
        parts: list[bytes] = []
        left = limit
        while left > 0 and (piece := self._read_some(left)):
            parts.append(piece)
            left -= len(piece)
        return b"".join(parts)

    def _read_some(self, limit: int) -> bytes:
        """What is there already, or the next to come."""
        started = time.monotonic()
        try:
            data = self._response.read1(limit)
            self._seen += len(data)
            if self._seen == self.length:
                self._response.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            _raise(self.url, error)
        self._waited += time.monotonic() - started
        if self._response.isclosed():
            self._finish()
        elif self._waited > GRACE * self._timeout and self._seen < self._waited * SLOWEST_PACE:
            self.close()
            raise UnreachableError(
                f"{masked(self.url)} sent {self._seen} bytes in {self._waited:.0f} s: too slow"
            )
        return data

    def chunks(self) -> Iterator[bytes]:
        """The rest of the body. Raises [`UnreachableError`] if it ends before its announced length."""
        for size in chunk_sizes():
            chunk = self.read(size)
            if chunk:
                yield chunk
            elif self.length is not None and self._seen < self.length:
                self.close()
                raise UnreachableError(
                    f"{masked(self.url)} broke off after {self._seen} of {self.length} bytes; try again"
                )
            else:
                return

    def everything(self, limit: int) -> bytes:
        """The rest of the body if it is no longer than `limit`, else what was read until then."""
        parts, total = [], 0
        for chunk in self.chunks():
            parts.append(chunk)
            total += len(chunk)
            if total > limit:
                break
        return b"".join(parts)

    def ended(self) -> bool:
        """Whether the body is read to its end. Reads one byte where only that can tell."""
        return self._response.isclosed() or not self.read(1)

    def close(self) -> None:
        """Gives up the body: what was not read is not fetched."""
        if not self._done:  # else another thread may be using the connection by now
            self._done = True
            self._link.connection.close()
            self._response.close()

    def _finish(self) -> None:
        if self._done:
            return
        self._done = True
        complete = self.length is None or self._seen == self.length
        if complete and self._link.connection.sock is not None and not self._response.will_close:
            pool.give_back(self._key, self._link)
        else:
            self._link.connection.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    body: bytes | None = None,
    timeout: float | None = None,
) -> Answer:
    """Sends one request and returns as soon as the head of its answer is there.

    Args:
        method: `GET` or `POST`.
        url: Quoted.
        headers: Besides the usual ones.
        token: Bearer token; the caller has decided that this URL may see it.
        body: Content of a POST.
        timeout: Seconds that each single wait may take. Default: the setting of the environment.

    Raises:
        UnreachableError: No connection, no answer in time, or what came is not HTTP.
    """
    timeout = environment.timeout() if timeout is None else timeout
    parts = urllib.parse.urlsplit(url)
    secure = parts.scheme.lower() == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    proxy = proxy_for(parts.scheme.lower(), host, port)
    key = (parts.scheme.lower(), host, port, proxy or "")
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    sent = {"User-Agent": f"reasonknee_hf/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
    forwarded = proxy is not None and not secure and not is_socks(proxy)
    if proxy and forwarded:
        target = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))
        sent |= proxy_headers(proxy)
    if token is not None and not forwarded:  # a plain proxy would see it
        sent["Authorization"] = f"Bearer {token}"
    link = pool.take(key)
    if link is not None:
        try:
            return Answer(url, link.exchange(method, target, body, sent, timeout), key, link, timeout)
        except TimeoutError as error:
            _raise(url, error)
        except (OSError, http.client.HTTPException):
            pass  # the other side had closed the idle connection; that costs no try
    try:
        link = Link(connect(secure, host, port, proxy, timeout))
        return Answer(url, link.exchange(method, target, body, sent, timeout), key, link, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        _raise(url, error)


def _raise(url: str, error: Exception) -> NoReturn:
    shown = masked(url)
    if isinstance(error, ReasonKneeError):
        raise error
    if isinstance(error, ssl.SSLCertVerificationError):
        raise UnreachableError(
            f"{shown}: its certificate is not trusted ({error.verify_message}). Behind a proxy that opens "
            f"connections, name its certificates in REQUESTS_CA_BUNDLE"
        ) from error
    if isinstance(error, TimeoutError):
        raise UnreachableError(
            f"{shown}: no answer in time. A longer wait is set by REASONKNEE_TIMEOUT"
        ) from error
    if isinstance(error, http.client.InvalidURL):  # its text repeats the URL, signature included
        raise UnreachableError(f"{shown}: is not a URL that can be asked") from None
    kind = "is not HTTP" if isinstance(error, http.client.HTTPException) else "no connection"
    if isinstance(error, (http.client.RemoteDisconnected, http.client.IncompleteRead)):
        kind = "closed the connection"
    raise UnreachableError(f"{shown}: {kind} ({error or type(error).__name__})") from error


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
