"""Origin server: the Hub's protocol for reads and uploads over loopback, request log and fault rules."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from . import routes
from .faults import Reply, Rule
from .repos import Store

BLOCK = 256 * 1024


@dataclass(frozen=True)
class Request:
    """One line of the request log. `sent` counts bytes of body; `side` is "hub" or "cdn"."""

    method: str
    path: str
    range: str | None
    auth: str | None
    status: int
    sent: int
    fault: str | None
    side: str
    headers: dict[str, str]


class Origin:
    """One origin on a free port of 127.0.0.1, and a "CDN" on another; over TLS if given a `certificate`.

    Attributes:
        url: Endpoint for clients, with `prefix` if one was given.
        log: Requests in order of their end.
        rules: Fault rules, first match wins.
        cdn: Whether LFS files answer 302 to a signed URL on the second port (`cdn_ttl` seconds valid).
        page_size: Entries of a page of a tree listing.
        token: Bearer token that every request must carry, if set.
        latency: Seconds that every answer is late.
        bare: The info of a revision leaves out sizes and hashes, as some mirrors do.
    """

    def __init__(self, prefix: str = "", certificate: Path | None = None) -> None:
        self.store = Store()
        self.prefix = prefix
        self.log: list[Request] = []
        self.rules: list[Rule] = []
        self.cdn, self.cdn_ttl = False, 3600.0
        self.page_size = 1000
        self.token: str | None = None
        self.latency = 0.0
        self.bare = False
        self.lock = threading.Lock()
        self._servers = [_serve(self, "hub", certificate), _serve(self, "cdn", certificate)]
        self.port, self.cdn_port = (server.server_address[1] for server in self._servers)
        scheme = "http" if certificate is None else "https"
        self.base = f"{scheme}://127.0.0.1:{self.port}"
        self.url = self.base + prefix
        self.cdn_url = f"{scheme}://127.0.0.1:{self.cdn_port}"

    def put_tree(self, repo_id: str, files: dict, message: str = "put", ref: str = "main") -> str:
        """Replaces the tree of `ref` and returns the new sha."""
        return self.store.put_tree(repo_id, files, message, ref)

    def faults(self, *faults, **options) -> None:
        """Replaces the fault rules: each of `faults` is a `Rule`, or a fault that gets `options`."""
        self.rules = [one if isinstance(one, Rule) else Rule(one, **options) for one in faults]

    def clear(self) -> None:
        """Empties the log and the rules and puts the switches back."""
        with self.lock:
            self.log = []
            self.rules = []
        self.cdn, self.cdn_ttl, self.page_size, self.token = False, 3600.0, 1000, None
        self.latency, self.bare = 0.0, False

    def requests(self, text: str = "", method: str | None = None) -> list[Request]:
        """The logged requests whose path contains `text`."""
        with self.lock:
            return [r for r in self.log if text in r.path and method in (None, r.method)]

    def sent(self, text: str = "") -> int:
        """Bytes of body sent for paths that contain `text`."""
        return sum(request.sent for request in self.requests(text))

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Origin:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    origin: Origin
    side: str

    def handle_error(self, request, client_address) -> None:
        """Clients that hang up are part of the tests."""


def _serve(origin: Origin, side: str, certificate: Path | None) -> _Server:
    server = _Server(("127.0.0.1", 0), Handler)
    if certificate is not None:  # a PEM file with key and certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.origin, server.side = origin, side
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A small buffer, so that "bytes sent" is close to what a client that hangs up has taken.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BLOCK)
        super().setup()

    def log_message(self, *_) -> None:
        pass

    def handle_any(self) -> None:
        origin = self.server.origin
        body = self._body()
        path = self.path
        if origin.prefix and self.server.side == "hub":
            path = path[len(origin.prefix) :] if path.startswith(origin.prefix + "/") else "/outside-prefix"
        if origin.latency:
            time.sleep(origin.latency)
        reply = routes.answer(origin, self.server.side, self.command, path, self.headers, body)
        ranged = self.headers.get("Range")
        with origin.lock:
            rule = next((r for r in origin.rules if r.takes(self.command, self.path, bool(ranged))), None)
        if rule is not None:
            rule.fault(reply)
        sent = 0
        index = self._log(reply, ranged, rule)
        try:
            for count in self._send(reply):
                sent += count
                self._update(index, sent)
        except OSError:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _log(self, reply: Reply, ranged: str | None, rule: Rule | None) -> int:
        fault = (rule.name or getattr(rule.fault, "__qualname__", "fault")) if rule else None
        request = Request(
            self.command, self.path, ranged, self.headers.get("Authorization"), reply.status, 0, fault,
            self.server.side, dict(self.headers.items()),
        )  # fmt: skip
        with self.server.origin.lock:
            self.server.origin.log.append(request)
            self._list = self.server.origin.log
            return len(self._list) - 1

    def _update(self, index: int, sent: int) -> None:
        # Before the last byte leaves: a test that has its answer finds the log complete.
        self._list[index] = Request(**{**self._list[index].__dict__, "sent": sent})

    def _send(self, reply: Reply):
        """Yields byte counts just before they are sent. Head and body leave in one write where they fit."""
        if reply.stall_first:
            time.sleep(reply.stall_first)
        body = memoryview(reply.body)
        headers = dict(reply.headers)
        if reply.framing == "length":
            headers.setdefault("Content-Length", str(len(body) if reply.length is None else reply.length))
        elif reply.framing == "chunked":
            headers.pop("Content-Length", None)
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers.pop("Content-Length", None)
            headers["Connection"] = "close"
        head = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('?',))[0]}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        pending = "\r\n".join([*head, "", ""]).encode("latin-1")
        if self.command == "HEAD":
            self.wfile.write(pending)
            return
        end = len(body) if reply.cut_at is None else min(reply.cut_at, len(body))
        block = 1 if reply.drip else BLOCK
        for start in range(0, end, block):
            time.sleep(reply.drip)
            piece = bytes(body[start : min(start + block, end)])
            yield len(piece)
            if reply.framing == "chunked":
                piece = b"%x\r\n%s\r\n" % (len(piece), piece)
            self.wfile.write(pending + piece)
            pending = b""
        if reply.framing == "chunked" and reply.cut_at is None:
            pending += b"0\r\n\r\n"
        if pending:
            self.wfile.write(pending)
        if reply.cut_at is not None or reply.framing == "close":
            self._hang_up(reply)

    def _hang_up(self, reply: Reply) -> None:
        self.close_connection = True
        if reply.cut_how == "stall":
            time.sleep(reply.stall)
        elif reply.cut_how == "rst":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
