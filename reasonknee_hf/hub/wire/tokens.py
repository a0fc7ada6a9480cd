"""Who gets a token: one origin, over a safe connection, and nobody else unless the user says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire.endpoints import HUB, PUBLIC_MIRRORS, Endpoint, is_loopback, origin_of
from reasonknee_hf.hub.wire.opened import TokenOptions, recall, remember, seal


class Credentials:
    """Decides which token a request may carry.

    The token of a call belongs to one endpoint, its *home*: the public Hub where that is among the endpoints, else the
    first that is not a public mirror. Other endpoints get one only by their own option. The stored token (`HF_TOKEN`,
    `hf auth login`) is for the public Hub, or the one that `REASONKNEE_LOGIN_ENDPOINT` names; it goes to another home
    only where the call says `token=True`, or the endpoint's own option does. No token ever travels over plain http,
    except to this machine.

    Pickles hold no token in clear; see `reasonknee_hf.hub.wire.opened` for what they hold.

    Args:
        endpoints: In order of preference.
        token: As in `huggingface_hub`: text, `True` (the stored one), `False` (none), `None` (the stored one, if there
            is one, for the public Hub).
    """

    def __init__(self, endpoints: Sequence[Endpoint], token: str | bool | None = None) -> None:
        home = home_endpoint(endpoints)
        self._home = origin_of(home.url) if home else None
        rules = {origin_of(e.url): _clean(e.token) for e in reversed(endpoints) if e.token is not None}
        given = token if token in (None, False) else _clean(token)
        if given and self._home is not None:
            rules.setdefault(self._home, given)
        self.options = TokenOptions(token is False, tuple(sorted(rules.items())))

    def require_stored(self) -> None:
        """Raises [`OptionError`] if the stored token was asked for by name and there is none."""
        if any(rule is True for _, rule in self.options.rules) and _stored_token() is None:
            raise OptionError("token=True, but no token is stored. Run `hf auth login` or set HF_TOKEN")

    @property
    def name(self) -> str:
        """What URLs say of the options, so that they can be found again; empty where nothing was said."""
        return remember(self.options)

    def for_url(self, url: str) -> str | None:
        """The token for a request to `url`, or `None`."""
        if self.reason_against(url) is not None:
            return None
        rule = dict(self.options.rules).get(origin_of(url))
        if isinstance(rule, str):
            return rule
        return _stored_token() if rule or not _implicit_disabled() else None

    def reason_against(self, url: str) -> str | None:
        """Why no token may travel to `url`; `None` if one may."""
        origin = origin_of(url)
        rule = dict(self.options.rules).get(origin)
        if rule is False:
            return "switched off for this endpoint"
        if rule is None and self.options.anonymous:
            return "switched off by token=False"
        if rule is None and origin != self._home:
            return "a mirror gets no token unless its own option says so"
        login = environment.login_endpoint() or HUB
        if rule is None and origin != origin_of(login):
            return f"the stored one is for {login}; token=True or REASONKNEE_LOGIN_ENDPOINT sends it here"
        if not url.lower().startswith("https:") and not is_loopback(url):
            return "plain http"
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credentials) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._home, self.options

    def __repr__(self) -> str:
        return f"Credentials(home={self._home!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._home, self.name, seal(self.options) if self.name else None)


def _restore(home: str | None, name: str, sealed: str | None) -> Credentials:
    restored = Credentials(())
    restored._home, restored.options = home, recall(name, sealed)
    return restored


def with_options(endpoints: Sequence[Endpoint], name: str) -> tuple[tuple[Endpoint, ...], bool | None]:
    """Endpoints and token that make credentials with the options of that name again."""
    options = recall(name)
    rules = dict(options.rules)
    told = tuple(Endpoint(one.url, rules.get(origin_of(one.url))) for one in endpoints)
    return told, False if options.anonymous else None


def home_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint | None:
    """The one endpoint that the user's token belongs to."""
    for endpoint in endpoints:
        if endpoint.url == HUB:
            return endpoint
    return next((endpoint for endpoint in endpoints if endpoint.url not in PUBLIC_MIRRORS), None)


def _clean(token: str | bool) -> str | bool:
    if isinstance(token, bool):
        return token
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
