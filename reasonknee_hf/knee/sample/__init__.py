"""A synthetic release for tests and first steps: the published layout, nothing from a patient."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from reasonknee_hf.knee.sample.write import write_sample
from reasonknee_hf.version import __version__

LAYOUT = 2  # of its files; raised when the same options come to write others

__all__ = ["sample_folder", "write_sample"]


def sample_folder(*, scans: int = 6, seed: int = 0) -> Path:
    """The sample in the Hugging Face assets cache; written there when it is first asked for.

    Safe with several processes at once: each writes into a folder of its own, and the first to finish gives
    it the final name. A sample that has lost files since is written again.

    Args:
        scans, seed: As for `write_sample`.

    Returns:
        A folder with the layout of the published release.
    """
    from huggingface_hub import cached_assets_path

    cache = Path(
        cached_assets_path(
            "reasonknee_hf", namespace="sample", subfolder=f"{__version__}-{LAYOUT}-scans{scans}-seed{seed}"
        )
    )
    final = cache / "written"
    if not _is_complete(final):
        fresh = Path(tempfile.mkdtemp(prefix="writing-", dir=cache))
        try:
            write_sample(fresh / "release", scans=scans, seed=seed)
            (fresh / "inventory.txt").write_text(_inventory(fresh / "release"), encoding="utf-8")
            _settle(fresh, final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return final / "release"


def _inventory(release: Path) -> str:
    """One line a file: size and path."""
    files = sorted(path for path in release.rglob("*") if path.is_file())
    return "".join(f"{path.stat().st_size} {path.relative_to(release).as_posix()}\n" for path in files)


def _is_complete(written: Path) -> bool:
    try:
        expected = (written / "inventory.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return expected == _inventory(written / "release")


def _settle(fresh: Path, final: Path) -> None:
    """Gives `fresh` its final name, unless another process was faster; removes an incomplete sample."""
    while True:
        # A folder can only be renamed onto nothing or an empty one: a finished sample is never replaced.
        with contextlib.suppress(OSError):
            os.rename(fresh, final)
            return
        if _is_complete(final):
            return
        broken = Path(tempfile.mkdtemp(prefix="broken-", dir=final.parent))
        with contextlib.suppress(FileNotFoundError):
            os.rename(final, broken / "written")
        shutil.rmtree(broken, ignore_errors=True)
