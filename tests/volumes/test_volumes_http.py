"""Volumes over HTTP: how many requests, which bytes, and what happens when the connection breaks."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import suppress

import numpy as np
import pytest
from volume_files import gzip_bytes, plain_bytes, voxels

from reasonknee_hf.errors import VolumeDataError, VolumeMissingError
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

pytest.importorskip("aiohttp")
ARRAY = voxels((64, 64, 64))


@pytest.fixture
def server():
    """A loopback server; `files`, `cut` and `plain` change what it answers, `asked` is what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(False)

        def do_GET(self):
            self.answer(True)

        def answer(self, body):
            span = self.headers.get("Range")
            made.asked.append((self.command, span))
            content = made.files.get(self.path)
            if content is None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            low, high = 0, len(content)
            if span and not made.plain:
                first, last = span.removeprefix("bytes=").split("-")
                low, high = int(first), min(int(last) + 1, high)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {low}-{high - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(high - low))
            self.end_headers()
            if body:
                sent = content[low:high] if not made.cut else content[low : (low + high) // 2]
                self.wfile.write(sent)
                self.close_connection = made.cut

        def handle(self):
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, *_):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.cut, made.plain = [], False, False
    made.files = {"/a.nii.gz": gzip_bytes(ARRAY), "/b.nii": plain_bytes(ARRAY)}
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    volume_cache().clear()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["a.nii.gz", "b.nii"])
def test_header_is_one_small_range_and_the_array_one_plain_get(server, name):
    volume = KneeVolume(f"{server.url}/{name}")
    assert server.asked == []
    assert volume.shape == (64, 64, 64)
    assert server.asked == [("GET", "bytes=0-4095")]
    np.testing.assert_array_equal(volume.array(), np.moveaxis(ARRAY, -1, 0))
    assert server.asked[1:] == [("GET", None)]
    KneeVolume(f"{server.url}/{name}").crop([0, 1, 0, 1, 0, 1])
    assert len(server.asked) == 2


def test_a_server_without_ranges_still_works(server):
    server.plain = True
    volume = KneeVolume(f"{server.url}/a.nii.gz")
    assert volume.shape == (64, 64, 64)
    np.testing.assert_array_equal(volume.array(), np.moveaxis(ARRAY, -1, 0))


@pytest.mark.parametrize("name", ["a.nii.gz", "b.nii"])
def test_a_connection_that_breaks_is_an_error_with_the_row(server, name):
    server.cut = True
    with pytest.raises((VolumeDataError, OSError), match=r"row 3, http"):
        KneeVolume(f"{server.url}/{name}", label="row 3").array()
    server.cut = False
    np.testing.assert_array_equal(KneeVolume(f"{server.url}/{name}").array(), np.moveaxis(ARRAY, -1, 0))


def test_absent_file_and_absent_server(server):
    with pytest.raises(VolumeMissingError, match=r"row 3, http.*images="):
        KneeVolume(f"{server.url}/nowhere.nii.gz", label="row 3").array()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.nii.gz"
    with pytest.raises((VolumeMissingError, OSError), match=r"[Cc]onnect"):
        KneeVolume(url, label="row 3").array()
