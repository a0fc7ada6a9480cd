"""Fixtures for tests that need a Hub: `origin` (fresh for each test) and `olah` (a real mirror of it)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .server import Origin


@pytest.fixture
def origin() -> Iterator[Origin]:
    """An origin of its own: no repository, no faults, empty log."""
    with Origin() as server:
        yield server


@pytest.fixture
def second_origin() -> Iterator[Origin]:
    """Another origin, to play the mirror."""
    with Origin() as server:
        yield server


@contextlib.contextmanager
def run_olah(origin_url: str, folder: Path) -> Iterator[str]:
    """Runs olah as a mirror of `origin_url` and yields its endpoint."""
    command = Path(sys.executable).with_name("olah-cli")
    if not command.exists():
        pytest.skip("needs the mirror server `olah` (pip install olah)")
    netloc = origin_url.removeprefix("http://")
    port = _free_port()
    config = folder / "olah.toml"
    config.write_text(
        f"""[basic]
host = "127.0.0.1"
port = {port}
repos-path = "{folder / "cache"}"
cache-block-size = "64KB"
cache-chunk-size = "64KB"
metadata-cache-ttl = 0
hf-scheme = "http"
hf-netloc = "{netloc}"
hf-lfs-netloc = "{netloc}"
mirror-scheme = "http"
mirror-netloc = "127.0.0.1:{port}"
mirror-lfs-netloc = "127.0.0.1:{port}"
""",
        encoding="utf-8",
    )
    with open(folder / "olah.out", "wb") as out:
        process = subprocess.Popen(
            [str(command), "-c", str(config), "--log-path", str(folder / "logs")],
            stdout=out, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        try:
            _wait_for(port, process, folder / "olah.out")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def olah_origin() -> Iterator[Origin]:
    """The origin behind `olah`. It lives as long as the mirror; tests use repositories of their own."""
    with Origin() as server:
        yield server


@pytest.fixture(scope="session")
def _olah_url(olah_origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("olah")
    with run_olah(olah_origin.url, folder) as url:
        yield url
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def olah(_olah_url: str, olah_origin: Origin) -> Iterator[str]:
    """Endpoint of a running olah in front of `olah_origin`, the log and the faults of the origin empty."""
    olah_origin.clear()
    yield _olah_url
    olah_origin.clear()


@pytest.fixture
def olah_of(tmp_path: Path) -> Iterator[Callable[[Origin], str]]:
    """Starts a fresh olah, with an empty cache, in front of the given origin."""
    with contextlib.ExitStack() as stack:
        yield lambda origin: stack.enter_context(run_olah(origin.url, tmp_path))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen, out: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(
                f"olah ended with {process.returncode}: {out.read_text(errors='replace')[-2000:]}"
            )
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("olah did not start")
