"""What can go wrong with an answer. A fault changes a [`Reply`] before it is put on the wire."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .repos import HTML


@dataclass
class Reply:
    """One answer before it is sent, with what faults need to know of the file behind it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: object = b""
    whole: object = None  # content of the file that was asked for
    span: tuple[int, int] | None = None  # half-open, if a range was asked for and granted
    framing: str = "length"  # or "chunked", "close"
    length: int | None = None  # announced Content-Length, if not the true one
    cut_at: int | None = None  # stop sending the body here …
    cut_how: str = "fin"  # … and then: "fin", "rst" or "stall"
    stall_first: float = 0.0  # seconds before the first byte
    stall: float = 5.0  # seconds of a "stall" cut
    drip: float = 0.0  # seconds between any two bytes


@dataclass
class Rule:
    """Applies `fault` to the requests that match, after `skip` of them, `times` times (`None`: for ever)."""

    fault: Callable[[Reply], None]
    match: str = r"^GET .*/resolve/"
    ranged: bool | None = None
    skip: int = 0
    times: int | None = None
    name: str = ""

    def takes(self, method: str, path: str, ranged: bool) -> bool:
        if not re.search(self.match, f"{method} {path}") or self.ranged not in (None, ranged):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
            return self.times >= 0
        return True


def ignore_range(reply: Reply) -> None:
    if reply.span:
        reply.status, reply.body, reply.span = 200, reply.whole, None
        reply.headers.pop("Content-Range", None)


def _place(reply: Reply, start: int, stop: int) -> None:
    reply.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(reply.whole)}"


def shifted(by: int = 7, lie: bool = False):
    """A range answer that starts `by` bytes late; with `lie` its Content-Range says otherwise."""

    def fault(reply: Reply) -> None:
        if reply.span:
            start, stop = reply.span[0] + by, reply.span[1] + by
            moved = bytes(reply.whole[start:stop])
            reply.body = moved + b"\0" * (stop - start - len(moved))
            if not lie:
                _place(reply, start, min(stop, len(reply.whole)))

    return fault


def short_range(reply: Reply) -> None:
    if reply.span:
        start, stop = reply.span
        stop = start + max(1, (stop - start) // 2)
        reply.body = reply.whole[start:stop]
        _place(reply, start, stop)


def without(*names: str):
    """An answer that lacks some headers. Without Content-Length the body is chunked."""

    def fault(reply: Reply) -> None:
        for name in names:
            reply.headers.pop(name, None)
            if name == "Content-Length":
                reply.framing = "chunked"

    return fault


def status(code: int, **headers: str):
    """Another status, with headers given as `Retry_After="2"`."""

    def fault(reply: Reply) -> None:
        reply.status, reply.body, reply.span = code, b"fault", None
        reply.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return fault


def html(reply: Reply) -> None:
    reply.status, reply.body, reply.span = 200, HTML, None
    reply.headers = {"Content-Type": "text/html"}


def cut(at: int = 100, how: str = "fin", framing: str = "length", stall: float = 5.0):
    """The body ends after `at` bytes by FIN or RST, or nothing more comes for `stall` seconds."""

    def fault(reply: Reply) -> None:
        reply.cut_at, reply.cut_how, reply.framing, reply.stall = at, how, framing, stall

    return fault


def wrong_length(by: int, keep_open: bool = False):
    """Content-Length is off by `by` bytes; too long a promise ends in FIN, or in silence if `keep_open`."""

    def fault(reply: Reply) -> None:
        reply.length = max(0, len(reply.body) + by)
        if by > 0:
            reply.cut_at, reply.cut_how = len(reply.body), "stall" if keep_open else "fin"

    return fault


def stall(seconds: float = 5.0):
    def fault(reply: Reply) -> None:
        reply.stall_first = seconds

    return fault


def drip(seconds: float = 0.05):
    """Every byte comes in time, the body never."""

    def fault(reply: Reply) -> None:
        reply.drip = seconds

    return fault


def gzipped(reply: Reply) -> None:
    reply.body = gzip.compress(bytes(reply.body))
    reply.headers["Content-Encoding"] = "gzip"


def redirect(url: str, code: int = 302):
    def fault(reply: Reply) -> None:
        reply.status, reply.body, reply.span = code, b"", None
        reply.headers["Location"] = url

    return fault


def swapped(headers: bool = True):
    """Other content of the same size; with `headers` the ETag and the commit change too."""

    def fault(reply: Reply) -> None:
        if reply.status in (200, 206):
            reply.body = bytes(byte ^ 0x5A for byte in bytes(reply.body))
            if headers:
                reply.headers["ETag"] = '"' + "ab" * 20 + '"'
                reply.headers["X-Repo-Commit"] = "cd" * 20

    return fault


def both(*faults):
    def fault(reply: Reply) -> None:
        for one in faults:
            one(reply)

    return fault


def flipped(at: int):
    """One bit of the file is another one, and nothing in the head says so."""

    def fault(reply: Reply) -> None:
        start = reply.span[0] if reply.span else 0
        if reply.status in (200, 206) and start <= at < start + len(reply.body):
            body = bytearray(reply.body)
            body[at - start] ^= 0x10
            reply.body = bytes(body)

    return fault
