"""The rule that sizes loaders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.errors import OptionError
from reasonknee_hf.train.sizing import (
    DESS_VOLUME,
    MIB,
    available_cores,
    available_memory,
    loader_sizes,
)

GIB = 1 << 30


def test_the_rule_on_a_machine_of_two_cores_and_one_of_thirty_two() -> None:
    small = loader_sizes(memory=16 * GIB, cores=2)
    assert (small.workers, small.prefetch) == (1, 2)
    assert small.cache_bytes == 5 * DESS_VOLUME
    assert small.worker_bytes == 300 * MIB + 6 * DESS_VOLUME + 3 * 64 * MIB
    assert loader_sizes(memory=64 * GIB, cores=32).workers == 31
    assert loader_sizes(memory=8 * GIB, cores=32).workers == 5
    assert loader_sizes(memory=64 * GIB, cores=32, shards=4).workers == 4


def test_without_room_or_cores_the_trainer_reads_itself() -> None:
    assert loader_sizes(memory=GIB, cores=8).for_loader() == {"num_workers": 0}
    assert loader_sizes(memory=64 * GIB, cores=1).workers == 0


def test_options_fit_loaders_and_trainers() -> None:
    sizes = loader_sizes(memory=16 * GIB, cores=4)
    assert sizes.for_loader() == {"num_workers": 3, "prefetch_factor": 2, "persistent_workers": True}
    assert sizes.for_trainer()["dataloader_num_workers"] == 3


@given(
    st.integers(1, 1 << 30),
    st.integers(1, 1 << 28),
    st.integers(1, 16),
    st.integers(1 << 26, 1 << 40),
    st.integers(1, 128),
)
def test_workers_never_take_more_than_half_of_the_memory(volume, batch, window, memory, cores) -> None:
    sizes = loader_sizes(volume_bytes=volume, batch_bytes=batch, window=window, memory=memory, cores=cores)
    assert sizes.workers == 0 or sizes.total_bytes <= memory // 2
    assert sizes.workers < cores
    assert sizes.cache_bytes >= window * volume


def test_this_machine_is_looked_at() -> None:
    assert available_cores() >= 1
    assert available_memory() > 64 * MIB
    assert loader_sizes().workers >= 0


@pytest.mark.parametrize("options", [{"volume_bytes": 0}, {"batch_bytes": 0}, {"window": 0}, {"prefetch": 0}])
def test_sizes_above_nothing(options) -> None:
    with pytest.raises(OptionError):
        loader_sizes(**options)
