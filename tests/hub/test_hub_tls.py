"""The way to a real Hub: TLS, certificates, tunnels through a proxy, kept connections."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import threading

import pytest

from hub import faults as f
from hub.server import Origin
from reasonknee_hf.errors import EndpointError, OptionError, UnreachableError
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.wire import mirrors, retries

REPO = "owner/name"
PART = "data/masks_aa"
BIG = random.Random(5).randbytes(1_000_000)
SECRET = "hf_s3cretvalue"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file,
         "-out", file.with_suffix(".crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


@pytest.fixture
def secure(certificate, monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "3")
    monkeypatch.setattr(mirrors, "_health", {})
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    with Origin(certificate=certificate) as server:
        server.sha = server.put_tree(REPO, {PART: BIG, "README.md": b"hello"})
        yield server


class Tunnel:
    """A proxy that only knows CONNECT."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:p%40ss@127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=self.tunnel, args=(client,), daemon=True).start()

    def tunnel(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        self.asked.append(head)
        host, port = head.split()[1].decode().split(":")
        with socket.create_connection((host, int(port))) as goal:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=self.pump, args=(goal, client), daemon=True)
            back.start()
            self.pump(client, goal)
            back.join()

    @staticmethod
    def pump(source: socket.socket, goal: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)


def test_a_certificate_must_be_trusted(secure, certificate, monkeypatch):
    with pytest.raises(UnreachableError, match="REQUESTS_CA_BUNDLE"):
        HubTree(REPO, None, secure.url)
    assert secure.log == []
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate) + ".gone")
    with pytest.raises(OptionError, match="REQUESTS_CA_BUNDLE"):
        HubTree(REPO, None, secure.url)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    tree = HubTree(REPO, None, secure.url)
    assert tree.sha == secure.sha
    assert tree.read(PART) == BIG


def test_connections_are_kept_and_tokens_do_not_follow(secure, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    accepted = []
    for server in secure._servers:
        get = server.get_request
        server.get_request = lambda get=get: (accepted.append(1), get())[1]
    secure.cdn = True
    tree = HubTree(REPO, None, secure.url, SECRET)
    for start in range(20):
        assert tree.ranges(PART, [(start, start + 99)], checked_later=True) == [BIG[start : start + 99]]
    assert len(secure.log) == 22
    assert len(accepted) == 2  # one connection to each side
    assert {(r.side, r.auth) for r in secure.log} == {("hub", f"Bearer {SECRET}"), ("cdn", None)}


def test_no_step_down_to_plain_http(secure, certificate, origin, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    sha = origin.put_tree(REPO, {PART: BIG, "README.md": b"hello"})
    tree = HubTree(REPO, sha, secure.url, SECRET)
    tree.entries()
    secure.faults(f.redirect(f"{origin.url}/datasets/{REPO}/resolve/{sha}/{PART}"))
    with pytest.raises(EndpointError, match="plain http"):
        tree.read(PART)
    assert origin.log == []


def test_through_a_tunnel(secure, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    tunnel = Tunnel()
    monkeypatch.setenv("https_proxy", tunnel.url)
    tree = HubTree(REPO, None, secure.url, SECRET)
    assert tree.ranges(PART, [(7, 999)], checked_later=True) == [BIG[7:999]]
    assert len(tunnel.asked) == 1
    assert tunnel.asked[0].startswith(f"CONNECT 127.0.0.1:{secure.port}".encode())
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in tunnel.asked[0]
    assert SECRET.encode() not in b"".join(tunnel.asked)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert HubTree(REPO, None, secure.url).sha == secure.sha
    assert len(tunnel.asked) == 1


@pytest.mark.parametrize("proxy", ["https://127.0.0.1:1080", "ftp://127.0.0.1:1080"])
def test_other_proxies_are_refused_by_name(secure, monkeypatch, proxy):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(ValueError, match="not supported"):
        HubTree(REPO, None, secure.url)
