"""Who gets a token: one origin, over a safe connection, and nobody else unless the user says so."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire.endpoints import HUB, PUBLIC_MIRRORS, Endpoint, is_loopback, origin_of


class Credentials:
    """Decides which token a request may carry.

    The token of a call belongs to one endpoint, its *home*: the public Hub where that is among the endpoints, else the
    first that is not a public mirror. Other endpoints get one only by their own option. The stored token (`HF_TOKEN`,
    `hf auth login`) is for the public Hub, or the one that `REASONKNEE_LOGIN_ENDPOINT` names; it goes to another home
    only where the call says `token=True`, or the endpoint's own option does. No token ever travels over plain http,
    except to this machine.

    Pickles hold no token in clear; see [`TokenOptions`] for what they hold.

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


ANONYMOUS = "anonymous"
_BARRED = "barred"
_NONCE, _MARK = 16, 32


class TokenOptions(NamedTuple):
    """What was said about tokens when a source was opened, kept under a name that may be written down.

    URLs of files end up in rows, and rows in Arrow files and other processes. What a URL says of the token options
    of its source is a name without a meaning of its own. What the name stands for is looked up, in this order:

    1. in a table in the memory of the process; forked processes have it too;
    2. in the environment, sealed, for processes that were spawned. The key is the secret that Python's
       `multiprocessing` makes for a process and hands to its children alone; it is never written to disk, and
       programs that are started in another way cannot open what is sealed. Pickles carry the same sealed text
       beside the name;
    3. nowhere, in any other process. There a name that tells of a token that was switched off means that no token
       is sent at all, and any other name the rules for a call that says nothing: the stored token, to the origin it
       is stored for.

    Attributes:
        anonymous: Whether origins without a rule get none.
        rules: For an origin its token, `True` for the stored one, `False` for none; in the order of the origins.
    """

    anonymous: bool = False
    rules: tuple[tuple[str, str | bool], ...] = ()


_table: dict[str, TokenOptions] = {}


def remember(options: TokenOptions) -> str:
    """The name of the options, empty where nothing was said. It tells nothing of a token, not even a hash."""
    if options in (TokenOptions(), TokenOptions(True)):
        return ANONYMOUS if options.anonymous else ""
    shape = [
        options.anonymous,
        [(origin, rule if rule in (True, False) else "") for origin, rule in options.rules],
    ]
    barred = options.anonymous or any(rule is False for _, rule in options.rules)
    digest = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:8]
    stem = f"{_BARRED if barred else 'given'}-{digest}"
    name = _first_fitting(stem, options)  # the same in every run, as a rule
    if _known(name) is None:
        if any(library.parent_process() is not None for library in _libraries()):
            name = _first_fitting(f"{stem}-{os.getpid()}", options)  # other processes do not know of this one
        _table[name] = options
        environment.hand_down(name, seal(options))
    return name


def _first_fitting(stem: str, options: TokenOptions) -> str:
    names = (f"{stem}-{number}" for number in itertools.count())
    return next(name for name in names if _known(name) in (None, options))


def recall(name: str, sealed: str | None = None) -> TokenOptions:
    """What a name stands for here, or what was sealed beside it; see above for names that are not known."""
    options = _unseal(sealed) or _known(name)
    return TokenOptions(name.startswith((ANONYMOUS, _BARRED))) if options is None else options


def name_here(name: str, sealed: str) -> str:
    """The name by which this process finds what was sealed beside a name of another one."""
    options = _unseal(sealed)
    return name if options is None else remember(options)


def _known(name: str) -> TokenOptions | None:
    if name not in _table:
        options = _unseal(environment.handed_down(name))
        if options is None:
            return None
        _table[name] = options
    return _table[name]


def seal(options: TokenOptions) -> str:
    """The options as text that this process and its children alone can read."""
    key, *others = _keys()
    for family in others:
        family.authkey = key.authkey
    nonce, content = os.urandom(_NONCE), json.dumps(options).encode()
    hidden = _mixed(content, nonce, key.authkey)
    return (nonce + _mark(nonce + hidden, key.authkey) + hidden).hex()


def _unseal(sealed: str | None) -> TokenOptions | None:
    try:
        raw = bytes.fromhex(sealed or "")
    except ValueError:  # somebody else's variable
        return None
    nonce, mark, hidden = raw[:_NONCE], raw[_NONCE : _NONCE + _MARK], raw[_NONCE + _MARK :]
    for process in _keys() if hidden else ():
        if hmac.compare_digest(mark, _mark(nonce + hidden, process.authkey)):
            _keys()[0].authkey = process.authkey  # what this one seals, its children must open
            anonymous, rules = json.loads(_mixed(hidden, nonce, process.authkey))
            return TokenOptions(anonymous, tuple((origin, rule) for origin, rule in rules))
    return None


def _mixed(content: bytes, nonce: bytes, key: bytes) -> bytes:
    stream = hashlib.shake_256(b"stream" + key + nonce).digest(len(content))
    return bytes(one ^ other for one, other in zip(content, stream, strict=True))


def _mark(content: bytes, key: bytes) -> bytes:
    return hmac.digest(b"mark" + key, content, "sha256")


def _keys() -> list[Any]:
    """What holds the secret that children share."""
    return [library.current_process() for library in _libraries()]


def _libraries() -> list[Any]:
    """Those that may have started this process, or will start others; `datasets` has its own."""
    return [multiprocessing, *([sys.modules["multiprocess"]] if "multiprocess" in sys.modules else [])]
