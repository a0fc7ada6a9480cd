"""Who gets a token: one origin, over a safe connection, and nobody else unless the user says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire.endpoints import HUB, PUBLIC_MIRRORS, Endpoint, is_loopback, origin_of

logger = logging.getLogger(__name__)

# Tokens that were given explicitly in this process, by origin. A tree that comes back from a pickle in the
# same process, or is opened again by its URL, finds its token here. It is never written anywhere.
_given: dict[str, str] = {}


class Credentials:
    """Decides which token a request may carry.

    The token of a call belongs to one endpoint, its *home*: the public Hub where that is among the
    endpoints, else the first that is not a public mirror. Other endpoints get one only by their own option.
    No token ever travels over plain http, except to this machine.

    Args:
        endpoints: In order of preference.
        token: As in `huggingface_hub`: text, `True` (the stored one, which must exist), `False` (none),
            `None` (the stored one, if there is one).
    """

    def __init__(self, endpoints: Sequence[Endpoint], token: str | bool | None = None) -> None:
        home = home_endpoint(endpoints)
        self._home = origin_of(home.url) if home else None
        self._stored = token is not False
        self._asked_for = token is True
        self._refused = {origin_of(e.url) for e in endpoints if e.token is False}
        self._opted = {origin_of(e.url) for e in endpoints if e.token is True}
        self._own = {origin_of(e.url): _clean(e.token) for e in endpoints if isinstance(e.token, str)}
        if isinstance(token, str) and self._home is not None:
            self._own.setdefault(self._home, _clean(token))
        elif token is True and _stored_token() is None:
            raise OptionError("token=True, but no token is stored. Run `hf auth login` or set HF_TOKEN")
        _given.update(self._own)

    def for_url(self, url: str) -> str | None:
        """The token for a request to `url`, or `None`."""
        origin = origin_of(url)
        if self.reason_against(url) is not None:
            return None
        own = self._own.get(origin) or _given.get(origin)
        if own is not None:
            return own
        explicit = self._asked_for or origin in self._opted
        return _stored_token() if explicit or not _implicit_disabled() else None

    def reason_against(self, url: str) -> str | None:
        """Why no token may travel to `url`; `None` if one may."""
        origin = origin_of(url)
        if origin in self._refused:
            return "switched off for this endpoint"
        named = origin in self._opted or origin in self._own
        if not named and not self._stored:
            return "switched off by token=False"
        if not named and origin != self._home and origin not in _given:
            return "a mirror gets no token unless its own option says so"
        if not url.lower().startswith("https:") and not is_loopback(url):
            return "plain http"
        return None

    def __repr__(self) -> str:
        return f"Credentials(home={self._home!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": {}}


def home_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint | None:
    """The one endpoint that the user's token belongs to."""
    for endpoint in endpoints:
        if endpoint.url == HUB:
            return endpoint
    return next((endpoint for endpoint in endpoints if endpoint.url not in PUBLIC_MIRRORS), None)


def _clean(token: str) -> str:
    text = token.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise OptionError("token is not a token: it must be printable ASCII without blanks")
    return text


def _stored_token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _implicit_disabled() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_DISABLE_IMPLICIT_TOKEN)
