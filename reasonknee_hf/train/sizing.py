"""How many workers, how much prefetch, how large a cache: one rule from the size of volumes and memory.

    cache of a process = (window + 1) volumes        the window that rows are mixed in, and the scan read
    ahead memory of a worker = 300 MiB + cache + 1 volume + (prefetch + 1) batches        torch, what is
    being decoded
    workers            = the most that fit into half of the memory, at most one a core but one, and one a
    shard

Without room for a worker, or on one core, the process that trains reads itself (0 workers). On two cores a
worker buys little where volumes are local and cached: decoding costs less than moving batches between
processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reasonknee_hf.errors import OptionError

MIB = 1 << 20
PROCESS = 300 * MIB
DESS_VOLUME = 160 * 384 * 384 * 2
"""Bytes of a decoded volume of usual size: 160 slices of 384 x 384 voxels, 16 bits each."""


@dataclass(frozen=True)
class LoaderSizes:
    """What a loader should be made with.

    Args:
        workers: Number of worker processes.
        prefetch: Batches that each worker keeps ready.
        cache_bytes: Size of the cache of decoded volumes in each process.
        worker_bytes: Memory that one worker takes by the rule.
    """

    workers: int
    prefetch: int
    cache_bytes: int
    worker_bytes: int

    @property
    def total_bytes(self) -> int:
        """Memory that all of them take by the rule."""
        return max(self.workers, 1) * self.worker_bytes

    def for_loader(self) -> dict[str, Any]:
        """Options of `torch.utils.data.DataLoader`."""
        if not self.workers:
            return {"num_workers": 0}
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": True,
        }

    def for_trainer(self) -> dict[str, Any]:
        """The same as options of `training_arguments`."""
        return {f"dataloader_{name}": value for name, value in self.for_loader().items()}


def loader_sizes(
    *,
    volume_bytes: int = DESS_VOLUME,
    batch_bytes: int = 64 * MIB,
    window: int = 4,
    shards: int | None = None,
    prefetch: int = 2,
    memory: int | None = None,
    cores: int | None = None,
) -> LoaderSizes:
    """Sizes a loader by the rule of this module.

    Args:
        volume_bytes: Of one decoded volume, with its mask if that is used.
        batch_bytes: Of one collated batch.
        window: Scans that rows are mixed in, as in `load_dataset`.
        shards: Shards of the stream, `ds.num_shards`; not a limit if not given.
        prefetch: Batches that each worker keeps ready.
        memory: Bytes that may be used at all; that of the machine or container by default.
        cores: Cores that may be used; those of this process by default.

    Raises:
        OptionError: A size is not above 0.

    Examples:
        >>> from reasonknee_hf.train import loader_sizes
        >>> loader_sizes(shards=24).cache_bytes > 0
        True
    """
    for name, value in (("volume_bytes", volume_bytes), ("batch_bytes", batch_bytes), ("window", window)):
        if value < 1:
            raise OptionError(f"{name}={value} is to be above 0.")
    if prefetch < 1:
        raise OptionError(f"prefetch={prefetch}: a worker prepares at least one batch.")
    cache = (window + 1) * volume_bytes
    worker = PROCESS + cache + volume_bytes + (prefetch + 1) * batch_bytes
    fit = (available_memory() if memory is None else memory) // 2 // worker
    free = (available_cores() if cores is None else cores) - 1
    workers = max(min(fit, free, free if shards is None else shards), 0)
    return LoaderSizes(workers=workers, prefetch=prefetch, cache_bytes=cache, worker_bytes=worker)


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Memory of the machine in bytes, or of its container where that has less.

    Not what is free at the moment: a run that is resumed must be divided among as many workers as before.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, _container_limit() or machine)


def _container_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
