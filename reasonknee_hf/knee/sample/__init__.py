"""A synthetic release for tests and first steps: the published layout, nothing from a patient."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from reasonknee_hf.hub.disk import alone, our_folder, write_file
from reasonknee_hf.knee.sample.write import write_sample
from reasonknee_hf.version import __version__

LAYOUT = 2  # of its files; raised when the same options come to write others

__all__ = ["sample_folder", "write_sample"]


def sample_folder(*, scans: int = 6, seed: int = 0) -> Path:
    """The sample in the Hugging Face assets cache; written there when it is first asked for.

    Safe with several processes at once: one writes it, the others wait. A sample that has lost files since is
    written again.

    Args:
        scans, seed: As for `write_sample`.

    Returns:
        A folder with the layout of the published release.
    """
    name = f"{__version__}-{LAYOUT}-scans{scans}-seed{seed}"
    cache = our_folder("sample") / name
    final = cache / "written"
    if not _is_complete(final):
        with alone(our_folder("archives", "locks") / f"sample-{name}"):
            if not _is_complete(final):
                _write_anew(cache, final, scans, seed)
    return final / "release"


def _write_anew(cache: Path, final: Path, scans: int, seed: int) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob("writing-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="writing-", dir=cache))
    try:
        write_sample(fresh / "release", scans=scans, seed=seed)
        write_file(fresh / "inventory.txt", _inventory(fresh / "release").encode())
        shutil.rmtree(final, ignore_errors=True)
        os.rename(fresh, final)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


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
