"""Proxies by SOCKS, and networks that are reached without one."""

from __future__ import annotations

import builtins
import contextlib
import socket
import struct
import threading

import pytest

from reasonknee_hf.errors import ExtraMissingError, UnreachableError
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.wire.connections import proxy_for

REPO = "owner/name"


@pytest.fixture
def socks(monkeypatch):
    """A SOCKS5 proxy that leads any name to this machine, and what it was asked for."""
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "5")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    asked = []

    def pump(source, goal):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)

    def serve(client):
        with client:
            client.recv(2 + client.recv(2, socket.MSG_PEEK)[1])
            client.sendall(b"\x05\x00")
            kind = client.recv(4)[3]
            name = socket.inet_ntoa(client.recv(4)) if kind == 1 else client.recv(client.recv(1)[0]).decode()
            port = struct.unpack("!H", client.recv(2))[0]
            asked.append((name, port))
            with socket.create_connection(("127.0.0.1", port)) as goal:
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                threading.Thread(target=pump, args=(goal, client), daemon=True).start()
                pump(client, goal)

    def accept(server):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_through_socks(origin, socks, monkeypatch, variable):
    pytest.importorskip("socks")
    place, asked = socks
    sha = origin.put_tree(REPO, {"README.md": b"hello"})
    monkeypatch.setenv(variable, f"socks5h://{place}")
    tree = HubTree(REPO, "main", f"http://hub.invalid:{origin.port}", "hf_secret")
    assert (tree.sha, tree.read("README.md")) == (sha, b"hello")
    assert asked == [("hub.invalid", origin.port)]  # the name was looked up there, and the connection kept
    assert origin.log[0].path.startswith("/api/datasets/")
    assert {request.auth for request in origin.log} == {None}  # plain http beyond this machine
    assert HubTree(REPO, None, origin.url, "hf_secret").sha == sha
    assert origin.log[-1].auth == "Bearer hf_secret"


def test_a_proxy_that_is_away(origin, monkeypatch):
    pytest.importorskip("socks")
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
        HubTree(REPO, None, origin.url)
    assert origin.log == []


def test_without_its_package_it_says_what_to_install(origin, socks, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "socks":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setenv("http_proxy", f"socks5://user:hidden@{socks[0]}")
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ExtraMissingError, match=r"PySocks: pip install 'reasonknee_hf\[socks\]'") as caught:
        HubTree(REPO, None, origin.url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "spared", "direct"),
    [
        ("10.1.2.3", "10.0.0.0/8", True), ("11.1.2.3", "10.0.0.0/8", False), ("10.1.2.3", "a.b, 10.1.2.3/30 ,c", True),
        ("fd00::7", "fd00::/8", True), ("fd00::7", "10.0.0.0/8", False), ("hub.corp", "10.0.0.0/8", False),
        ("hub.corp", ".corp,10.0.0.0/8", True), ("10.1.2.3", "10.0.0.0/99", False), ("10.1.2.3", "", False),
    ],
)  # fmt: skip
def test_networks_without_a_proxy(monkeypatch, host, spared, direct):
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", spared)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    assert (proxy_for("https", host, 443) is None) is direct
