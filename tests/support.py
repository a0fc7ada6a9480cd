"""Helpers that several tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def in_fresh_process(code: str, cwd: Path, *arguments: str, **env: str) -> str:
    """Runs `code` in a new interpreter and returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def plain(row: dict) -> dict:
    """A row with its volumes replaced by their paths, so that rows can be compared."""
    return {k: v.path if k in ("image", "mask") and v is not None else v for k, v in row.items()}


def files_below(root: Path) -> dict[str, bytes]:
    """Content of every file by its path below `root`."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
