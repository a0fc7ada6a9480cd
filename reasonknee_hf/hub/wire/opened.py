"""Token options of opened sources, kept under a name that may be written down.

URLs of files end up in rows, and rows in Arrow files and other processes. What a URL says of the token options of its
source is a name without a meaning of its own. What the name stands for is looked up, in this order:

1. in a table in the memory of the process; forked processes have it too;
2. in the environment, sealed, for processes that were spawned. The key is the secret that Python's `multiprocessing`
   makes for a process and hands to its children alone; it is never written to disk, and programs that are started in
   another way cannot open what is sealed. Pickles carry the same sealed text beside the name;
3. nowhere, in any other process. There a name that tells of a token that was switched off means that no token is sent
   at all, and any other name the rules for a call that says nothing: the stored token, to the origin it is stored for.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import multiprocessing
import os
import sys
from typing import Any, NamedTuple

from reasonknee_hf import environment

ANONYMOUS = "anonymous"
_BARRED = "barred"
_NONCE, _MARK = 16, 32


class TokenOptions(NamedTuple):
    """What was said about tokens when a source was opened.

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
