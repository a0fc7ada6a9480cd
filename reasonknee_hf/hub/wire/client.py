"""One HTTP exchange at a time, over kept connections. No redirects, no retries, no checks: those stand above.

The standard library's client is used on purpose. What `huggingface_hub` offers is a `requests` session before
version 1 and an httpx client since, which differ in streaming, redirects, errors and when proxies are read;
neither library is there on every supported version. Here an answer's head is seen before its body is
touched, a body can be left unread by closing the connection, and proxies and certificates are looked up
when a connection is made.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NoReturn

from reasonknee_hf import environment
from reasonknee_hf.errors import ReasonKneeError, UnreachableError
from reasonknee_hf.hub.disk import ForkSafeLock
from reasonknee_hf.hub.tree import chunk_sizes
from reasonknee_hf.hub.wire.connections import (
    PunctualResponse,
    connect,
    is_socks,
    proxy_for,
    proxy_headers,
)
from reasonknee_hf.hub.wire.endpoints import masked
from reasonknee_hf.version import __version__

# A body that drips would pass every single wait. After so many timeouts, fewer bytes a second are silence.
GRACE = 3.0
SLOWEST_PACE = 1024
IDLE_SECONDS = 30.0
IDLE_CONNECTIONS = 16

_Key = tuple[str, str, int, str]


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
        self, url: str, response: http.client.HTTPResponse, key: _Key, link: _Link, timeout: float
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
            _pool.give_back(self._key, self._link)
        else:
            self._link.connection.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Link:
    """A kept connection."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.used = time.monotonic()

    def exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> http.client.HTTPResponse:
        """Sends a request and reads the head of its answer. Closes the connection if that fails."""
        try:
            if self.connection.sock is not None:
                self.connection.sock.settimeout(timeout)
            deadline = time.monotonic() + GRACE * timeout
            self.connection.response_class = partial(PunctualResponse, deadline=deadline)  # type: ignore[assignment]
            self.connection.request(method, target, body=body, headers=dict(headers))
            return self.connection.getresponse()
        except BaseException:
            self.connection.close()
            raise

    def alive(self) -> bool:
        sock = self.connection.sock
        if sock is None or time.monotonic() - self.used > IDLE_SECONDS:
            return False
        try:  # an idle connection that has something to say was closed by the other side
            return not select.select([sock], [], [], 0)[0]
        except (OSError, ValueError):
            return False


class _Pool:
    """Idle connections of this process, newest first."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._idle: dict[_Key, list[_Link]] = {}

    def take(self, key: _Key) -> _Link | None:
        while True:
            with self._lock:
                links = self._idle.get(key)
                link = links.pop() if links else None
            if link is None or link.alive():
                return link
            link.connection.close()

    def give_back(self, key: _Key, link: _Link) -> None:
        link.used = time.monotonic()
        with self._lock:
            links = self._idle.setdefault(key, [])
            if len(links) < IDLE_CONNECTIONS:
                links.append(link)
                return
        link.connection.close()

    def forget(self) -> None:
        """After a fork: the connections belong to the parent."""
        self._idle = {}


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


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
    link = _pool.take(key)
    if link is not None:
        try:
            return Answer(url, link.exchange(method, target, body, sent, timeout), key, link, timeout)
        except TimeoutError as error:
            _raise(url, error)
        except (OSError, http.client.HTTPException):
            pass  # the other side had closed the idle connection; that costs no try
    try:
        link = _Link(connect(secure, host, port, proxy, timeout))
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
