"""How a connection is made and kept: to which address, through which proxy, with which certificates, by when.

Proxies and certificates are those of the environment at the time.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import os
import select
import socket
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from reasonknee_hf import environment
from reasonknee_hf.errors import ExtraMissingError, OptionError
from reasonknee_hf.hub.disk import ForkSafeLock
from reasonknee_hf.hub.wire.endpoints import masked

# A host that drops packets must not eat the whole timeout before the next endpoint is tried.
CONNECT_SHARE = 0.25
# A head that drips would pass every single wait: after so many timeouts it is given up.
GRACE = 3.0
IDLE_SECONDS = 30.0
IDLE_CONNECTIONS = 16

Key = tuple[str, str, int, str]
"""Scheme, host, port and proxy: what tells connections apart."""


def connect(
    secure: bool, host: str, port: int, proxy: str | None, timeout: float
) -> http.client.HTTPConnection:
    """A connection to `host`, through `proxy` if there is one. Raises [`OptionError`] for a proxy of another kind."""
    first_hop, first_port = host, port
    # The stock function gives every address of a name the whole timeout; a blocked name may have a dozen.
    dial: Callable[..., socket.socket] = _dial
    if proxy and is_socks(proxy):
        dial = partial(_dial_by_socks, proxy)
    elif proxy:
        parts = urllib.parse.urlsplit(proxy)
        if parts.scheme != "http":
            raise OptionError(
                f"proxy {masked(proxy)} is of a kind that is not supported; use an http:// or socks5h:// proxy"
            )
        first_hop, first_port = parts.hostname or "", parts.port or 80
    connection: http.client.HTTPConnection
    if secure:
        context = _tls_context(environment.ca_bundle())
        connection = http.client.HTTPSConnection(first_hop, first_port, context=context)
        if proxy and dial is _dial:
            connection.set_tunnel(host, port, headers=proxy_headers(proxy))
    else:
        connection = http.client.HTTPConnection(first_hop, first_port)
    connection.timeout = timeout * CONNECT_SHARE
    connection._create_connection = dial  # type: ignore[attr-defined]
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def _dial(address: tuple[str, int], timeout: float, *_unused: object) -> socket.socket:
    """A connection to the first address that answers, all of them together within `timeout`."""
    found = socket.getaddrinfo(address[0], address[1], 0, socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout
    error: OSError = OSError("no address")
    for number, (family, kind, protocol, _, place) in enumerate(found):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(left / (len(found) - number), 0.05))
            sock.connect(place)
            sock.settimeout(timeout)
        except OSError as failure:
            sock.close()
            error = failure
        else:
            return sock
    raise ConnectionError(
        f"no connection within {timeout:.1f} s ({error})" if str(error) else "no connection"
    )


@lru_cache(maxsize=4)
def _tls_context(bundle: str | None) -> ssl.SSLContext:
    if bundle is not None:
        folder = os.path.isdir(bundle)
        if not os.path.exists(bundle):
            raise OptionError(
                f"the certificates {bundle!r} named by REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE "
                f"are not there"
            )
        return ssl.create_default_context(
            cafile=None if folder else bundle, capath=bundle if folder else None
        )
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError):  # comes with every client of huggingface_hub
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _dial_by_socks(proxy: str, address: tuple[str, int], timeout: float, *_unused: object) -> socket.socket:
    """A connection through a SOCKS proxy; the kinds that end in `h` and `a` look names up there."""
    try:
        import socks
    except ImportError as error:
        raise ExtraMissingError(
            f"proxy {masked(proxy)} needs the package PySocks: pip install 'reasonknee_hf[socks]'"
        ) from error
    parts = urllib.parse.urlsplit(proxy)
    user, password = (
        urllib.parse.unquote(text) if text else None for text in (parts.username, parts.password)
    )
    kind = socks.SOCKS4 if parts.scheme.startswith("socks4") else socks.SOCKS5
    there = parts.scheme.endswith(("h", "a"))
    made: socket.socket = socks.create_connection(
        address, timeout, None, kind, parts.hostname, parts.port or 1080, there, user, password
    )
    return made


def is_socks(proxy: str) -> bool:
    """Whether a proxy is of the kind that connects to anything, and is not asked by http."""
    return proxy.lower().startswith("socks")


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """The proxy for an address, `None` where there is none, or where `no_proxy` spares it."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}") or _is_near(host, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_near(host: str, spared: str) -> bool:
    """Whether `no_proxy` names a network, as in 10.0.0.0/8, that an address lies in."""
    for part in spared.split(","):
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(part.strip(), strict=False):
                return True
    return False


def proxy_headers(proxy: str) -> dict[str, str]:
    """Headers by which an http proxy knows its user."""
    parts = urllib.parse.urlsplit(proxy)
    if not parts.username:
        return {}
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


class PunctualResponse(http.client.HTTPResponse):
    """An answer whose head must be there at a time, however often a little of it comes."""

    def __init__(self, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = deadline

    def begin(self) -> None:
        body = self.fp
        self.fp = _Lines(body, self._deadline)  # type: ignore[assignment]  # the head is read line by line
        try:
            super().begin()
        finally:
            self.fp = body


class _Lines:
    def __init__(self, file: io.BufferedReader, deadline: float) -> None:
        self._file, self._deadline = file, deadline
        self.close = file.close

    def readline(self, limit: int) -> bytes:
        line = b""
        while not line.endswith(b"\n") and len(line) < limit and (there := self._file.peek(1)):
            if time.monotonic() > self._deadline:
                raise TimeoutError("the head of the answer drips")
            end = there.find(b"\n") + 1 or len(there)
            line += self._file.read(min(end, limit - len(line)))
        return line


class Link:
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
        self._idle: dict[Key, list[Link]] = {}

    def take(self, key: Key) -> Link | None:
        while True:
            with self._lock:
                links = self._idle.get(key)
                link = links.pop() if links else None
            if link is None or link.alive():
                return link
            link.connection.close()

    def give_back(self, key: Key, link: Link) -> None:
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


pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.forget)
