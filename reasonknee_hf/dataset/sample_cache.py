"""Synthetic releases in the assets cache of Hugging Face, written when they are first asked for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from reasonknee_hf.hub.disk import alone, must_be_kept, our_folder, write_file
from reasonknee_hf.version import __version__


def kept_sample(name: str, write: Callable[[Path], object]) -> Path:
    """A folder that `write` fills once.

    Safe with several processes at once: one writes it, the others wait. A sample that has lost files since is written
    again.

    Args:
        name: Tells it from other samples of this version; another one as soon as other files would be written.
        write: Writes the release into a folder that does not exist yet.
    """
    name = f"{__version__}-{name}"
    cache = our_folder("sample") / name
    final = cache / "written"
    if not _is_complete(final):
        with (
            must_be_kept(cache, "the sample"),
            alone(our_folder("archives", "locks") / f"sample-{name}"),
        ):
            if not _is_complete(final):
                _write_anew(cache, final, write)
    return final / "release"


def _write_anew(cache: Path, final: Path, write: Callable[[Path], object]) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob("writing-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="writing-", dir=cache))
    try:
        write(fresh / "release")
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
    except (FileNotFoundError, NotADirectoryError):
        return False
    return expected == _inventory(written / "release")
