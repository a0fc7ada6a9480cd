"""The peak memory of a process."""

from __future__ import annotations

from pathlib import Path


def peak_memory() -> int:
    """VmHWM of this process in bytes; unlike `ru_maxrss` it does not count the parent's, from before `exec`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("This benchmark needs /proc.")
