"""Hermetic test session: own caches, no token, no network but loopback."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

# A busy machine is no failure of the code under test.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# The Hub clients freeze their settings when they are imported, so these must stand before any such import.
_HOME = tempfile.mkdtemp(prefix="reasonknee-test-home-")


def _remove_home(process: int = os.getpid()) -> None:
    if os.getpid() == process:  # not in what was forked
        shutil.rmtree(_HOME, ignore_errors=True)


atexit.register(_remove_home)
for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "REASONKNEE_SOURCE", "REASONKNEE_MIRRORS"):
    os.environ.pop(name, None)
os.environ.update(
    HF_HOME=_HOME,
    HF_HUB_DISABLE_XET="1",
    REASONKNEE_CACHE="0",  # tests that count requests begin with nothing; those of the cache ask for one
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_UPDATE_DOWNLOAD_COUNTS="0",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
    MPLBACKEND="Agg",
    REASONKNEE_RETRY_TIME="3",
    NO_PROXY="127.0.0.1,localhost",
    no_proxy="127.0.0.1,localhost",
)

pytest_plugins = ["hub.fixtures", "realrelease", "publishing"]

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "real"
UPSTREAM = Path(__file__).resolve().parents[2] / "shared" / "upstream"


@pytest.fixture(scope="session")
def real_dir() -> Path:
    """The folder of real imaging files, where it is there."""
    if not REAL.is_dir():
        pytest.skip(f"needs the folder of real files at {REAL}")
    return REAL


@pytest.fixture(scope="session")
def upstream_dir() -> Path:
    """The folder of published question files and facts, where it is there."""
    if not UPSTREAM.is_dir():
        pytest.skip(f"needs the folder of published facts at {UPSTREAM}")
    return UPSTREAM


@pytest.fixture(scope="session")
def sample_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the synthetic release with its irregular rows; session-wide, so do not change it."""
    from reasonknee_hf.knee.sample import write_sample

    return write_sample(tmp_path_factory.mktemp("sample") / "release")
