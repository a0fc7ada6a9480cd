"""Which proxy stands before an address, by the environment as it is when a connection is made, and how it is asked."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import socket
import urllib.parse
import urllib.request

from reasonknee_hf.errors import ExtraMissingError
from reasonknee_hf.hub.wire.endpoints import masked


def dial_by_socks(proxy: str, address: tuple[str, int], timeout: float, *_unused: object) -> socket.socket:
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
