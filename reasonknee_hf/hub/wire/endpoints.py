"""Which Hubs and mirrors are asked, in which order. Read when a call is made, never at import."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError

HUB = "https://huggingface.co"
# Mirrors that this package names by itself. None of them ever gets a token unless the user says so for it.
PUBLIC_MIRRORS = ("https://hf-mirror.com",)
# Datasets that everybody may know are asked for: what is out of reach at the Hub is asked for at those mirrors. They
# are entered by who knows them. Of any other dataset no mirror learns the name unless the user names the mirror.
published: set[str] = set()


@dataclass(frozen=True)
class Endpoint:
    """Base URL of a Hub or of a mirror of it.

    Args:
        url: Normalised: scheme and host in lower case, path prefix kept, no slash at the end.
        token: The option for this one endpoint: a token of its own, `True` for the user's token, `False` for
            none, `None` for the general rule. Takes no part in comparison, is not shown and not pickled.
    """

    url: str
    token: str | bool | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not `True` in place of a token of its own: that would send the user's token instead.
        return Endpoint, (self.url, None if isinstance(self.token, str) else self.token)


EndpointLike = Union[str, Mapping[str, Any], Endpoint]  # noqa: UP007 - evaluated at run time on Python 3.10


def resolve_endpoints(
    endpoint: EndpointLike | Sequence[EndpointLike] | None = None, source: str = ""
) -> tuple[Endpoint, ...]:
    """The endpoints of a call in order of preference, without repetitions.

    Args:
        endpoint: One endpoint or several: URLs (also comma-separated), or `{"url": …, "token": …}` for an
            endpoint with a token option of its own. Default: `HF_ENDPOINT` alone, else `REASONKNEE_MIRRORS`,
            else the public Hub, and for a published dataset its best-known mirror.
        source: The dataset that is asked for.

    Raises:
        OptionError: A value is not an `http(s)://` URL, or carries a user name, a query or an unknown key.
    """
    given = _flatten(endpoint)
    if not given:
        alone = environment.hf_endpoint()
        usual = (HUB, *PUBLIC_MIRRORS) if source in published else (HUB,)
        given = _flatten(alone) if alone else _flatten(environment.mirrors() or usual)
    unique: dict[str, Endpoint] = {}
    for one in given:
        unique.setdefault(one.url, one)
    return tuple(unique.values())


def _flatten(value: EndpointLike | Sequence[EndpointLike] | None) -> list[Endpoint]:
    if value is None:
        return []
    if isinstance(value, Endpoint):
        return [value]
    if isinstance(value, str):
        return [Endpoint(normalise(part)) for part in value.split(",") if part.strip()]
    if isinstance(value, Mapping):
        return [_from_mapping(value)]
    if isinstance(value, Sequence):
        return [one for item in value for one in _flatten(item)]
    raise OptionError(
        f"endpoint must be a URL, a mapping with 'url' or a list of them, not {type(value).__name__}"
    )


def _from_mapping(value: Mapping[str, Any]) -> Endpoint:
    unknown = set(value) - {"url", "token"}
    if unknown or not isinstance(value.get("url"), str):
        raise OptionError(
            f"an endpoint mapping has the keys 'url' and 'token', found {sorted(map(str, value))}"
        )
    token = value.get("token")
    if token is not None and not isinstance(token, (str, bool)):
        raise OptionError(f"the token of endpoint {value['url']} must be text, True or False")
    return Endpoint(normalise(value["url"]), token)


def normalise(url: str) -> str:
    """The one spelling of an endpoint's base URL. Raises [`OptionError`]."""
    text = url.strip()
    told = re.sub(r"[^/]*@", "…@", text)  # a password, and a query, stay out of messages
    told = re.sub(r"[?].*", "?…", told, flags=re.DOTALL)
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise OptionError(f"endpoint {told!r} is not a URL: its host or port cannot be read") from None
    if parts.scheme.lower() not in ("http", "https") or not host or "://" not in text:
        raise OptionError(f"endpoint {told!r} lacks its scheme or host; write it as in {HUB!r}")
    if parts.username or parts.password:
        shown = f"{parts.scheme}://…@{host}"
        raise OptionError(f"endpoint {shown} carries a user name; give a token by the token option instead")
    if parts.query or parts.fragment:
        raise OptionError(f"endpoint {parts.scheme}://{host} must have no query and no fragment")
    bracketed = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme.lower()]
    netloc = bracketed if port in (None, default) else f"{bracketed}:{port}"
    return f"{parts.scheme.lower()}://{netloc}{parts.path.rstrip('/')}"


def origin_of(url: str) -> str:
    """`scheme://host:port` of a URL, the unit that a token is bound to."""
    parts = urllib.parse.urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or {"http": 80, "https": 443}.get(scheme, 0)
    return f"{scheme}://{(parts.hostname or '').lower()}:{port}"


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine by name or address, without looking the name up."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def masked(url: str) -> str:
    """A URL as it may be shown: without query, which may be a signature, and without user name."""
    parts = urllib.parse.urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, netloc, parts.path, "…" if parts.query else "", ""))
