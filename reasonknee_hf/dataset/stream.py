"""Rows as the innermost iterable of an `IterableDataset`: resumes at exactly the next row, and knows our shuffle.

`datasets` makes iterables out of generator functions, and on resume runs the generator again and throws away what was
seen. This one goes straight to the place. It stands on the seam between builders and `IterableDataset`
(`ExamplesIterable`), which is the same on `datasets` 3.6 to 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property, lru_cache
from hashlib import sha256
from inspect import signature
from typing import Any

import datasets
import numpy as np
from datasets.iterable_dataset import ExamplesIterable

from reasonknee_hf.dataset.faults import FaultLog, Report
from reasonknee_hf.dataset.prepared import fault_logs
from reasonknee_hf.dataset.split_rows import Passed, Place, Quintuples
from reasonknee_hf.errors import OptionError, StateError
from reasonknee_hf.volumes.prefetch import prefetched
from reasonknee_hf.volumes.volume import KneeVolume

STATE_VERSION = 1


class RowStream(datasets.IterableDataset):
    """An `IterableDataset` over the rows of one split."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the whole split, if the row index is there; the first full pass builds it."""
        iterable = self._ex_iterable
        return iterable.rows.num_rows if isinstance(iterable, RowsIterable) else None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on, at the next iteration, with the row behind the one that `state_dict` was taken at, in its epoch."""
        super().load_state_dict(state_dict)
        self.set_epoch(state_dict["epoch"])  # `datasets` ignores the state of another epoch
        # Until the iteration begins this is the state. `datasets` would answer with that of a fresh dataset, which
        # loses the place of loader workers that have not given a batch when the next checkpoint is taken.
        self._state_dict = deepcopy(state_dict)


def row_stream(rows: Quintuples, start: int, info: datasets.DatasetInfo) -> RowStream:
    """The stream of a split. `set_epoch` reaches our shuffle on every version of `datasets`."""
    iterable = RowsIterable(rows, rows.shards(), start=start)
    options: dict[str, Any] = {}
    if (
        rows.options.shuffle is not None
        and "shuffling" in signature(datasets.IterableDataset.__init__).parameters
    ):
        # Before 5.2 the epoch only reached datasets that had been shuffled.
        from datasets.iterable_dataset import ShufflingConfig

        seed = rows.options.shuffle
        options["shuffling"] = ShufflingConfig(generator=np.random.default_rng(seed), _original_seed=seed)
    return RowStream(iterable, info=info, split=datasets.NamedSplit(rows.split), **options)


class RowsIterable(ExamplesIterable):
    """Iterates over some shards of a split.

    Args:
        rows: The split.
        shards: Names of the shards, in the order in which they are read.
        epoch: Tells the shuffle of this epoch from others.
        start: Number of the row to begin with when no state has been loaded.
    """

    def __init__(self, rows: Quintuples, shards: Sequence[str], epoch: int = 0, start: int = 0) -> None:
        super().__init__(rows.read, {"shards": list(shards)})
        self.rows = rows
        self.shards = list(shards)
        self.epoch = epoch
        self.start = start

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {
            "type": type(self).__name__,
            "version": STATE_VERSION,
            "setup": self._setup(),
            "place": self._first._asdict(),
        }
        return self._state_dict

    @cached_property
    def _first(self) -> Place:
        """Where to begin when no state has been loaded: in another place in each epoch."""
        return self.rows.place_of(self.start, self.shards, self.epoch) if self.start else Place()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        place = self._first if self._state_dict is None else self._loaded_place()
        rows = self.rows.read(self.shards, self.epoch, place)
        if self.rows.prefetch:
            rows = prefetched(rows, volumes=_volumes_of, on_touch=True)
        for behind, key, row in rows:
            if self._state_dict is not None:
                self._state_dict["place"] = behind
            yield key, row

    def _loaded_place(self) -> Place:
        """The place of the state, which may be one that was loaded.

        Raises:
            StateError: It was saved by another version or in another setup; the message says what differs.
        """
        state: dict[str, Any] = self._state_dict
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"the state has version {state['version']}, this package reads {STATE_VERSION}. Resume with the "
                "version of reasonknee_hf that saved it."
            )
        ours, place = self._setup(), Place(**deepcopy(state["place"]))
        if place == self._first:
            # Nothing was read: the state may have been taken before the shards were divided among the workers.
            del ours["shards"]
        differing = [
            f"{name}: saved with {state['setup'].get(name)!r}, now {value!r}"
            for name, value in ours.items()
            if state["setup"].get(name) != value
        ]
        if differing:
            raise StateError(
                f"the state belongs to another setup ({'; '.join(differing)}). Load the dataset with the same options, "
                "and the same number of ranks and workers, or start without the state."
            )
        state["setup"] = self._setup()
        return place

    def _setup(self) -> dict[str, Any]:
        """What a state must have been saved with to mean the same rows here."""
        return {
            "source": self.rows.release.identity,
            "split": self.rows.split,
            # Text, because loading merges dictionaries and would keep what the saved one lacks.
            "options": " ".join(f"{k}={v}" for k, v in asdict(self.rows.options).items() if v is not None),
            "epoch": self.epoch,
            "shards": f"{len(self.shards)}:{sha256(' '.join(self.shards).encode()).hexdigest()[:16]}",
        }

    def shuffle_data_sources(self, generator: np.random.Generator) -> RowsIterable:
        """Another epoch of our shuffle; without it, the shards in another order, as `datasets` does."""
        draw = deepcopy(generator)
        if self.rows.options.shuffle is not None:
            return RowsIterable(self.rows, self.shards, int(draw.integers(1 << 62)), self.start)
        shards = [self.shards[position] for position in draw.permutation(len(self.shards))]
        return RowsIterable(self.rows, shards, self.epoch, self.start)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> RowsIterable:
        """Every `num_shards`-th shard, or a stretch of them.

        Raises:
            OptionError: The stream begins at a row, and is to be divided.
        """
        if self.start and num_shards > 1:
            raise OptionError(
                f"start={self.start} counts the rows of the whole stream, which is to be divided into {num_shards}"
                " parts for workers, ranks or a buffer of shuffled rows. Read it in one process and shuffle with"
                " shuffle=, or leave start= out and load a state."
            )
        chosen = self.split_shard_indices_by_worker(num_shards, index, contiguous=contiguous)
        return RowsIterable(self.rows, [self.shards[position] for position in chosen], self.epoch, self.start)

    def reshard_data_sources(self) -> RowsIterable:
        """The same: there are enough shards from the start."""
        return RowsIterable(self.rows, self.shards, self.epoch, self.start)

    @property
    def num_shards(self) -> int:
        return len(self.shards)


def _volumes_of(item: tuple[Passed, str, dict[str, Any]]) -> tuple[KneeVolume, ...]:
    """The volumes of a row that has its stored form."""
    image, mask = item[2]["image"], item[2].get("mask")
    return _volumes(image and image["path"], mask and mask["path"])


@lru_cache(maxsize=64)  # the rows of a scan come together, or mixed with those of a few others
def _volumes(image: str | None, mask: str | None) -> tuple[KneeVolume, ...]:
    given = ((image, False), (mask, True))
    return tuple(KneeVolume(path, mask=is_mask) for path, is_mask in given if path is not None)


def report(
    dataset: datasets.Dataset
    | datasets.IterableDataset
    | datasets.DatasetDict
    | datasets.IterableDatasetDict,
) -> Report:
    """What `on_error="skip"` left out and `on_error="null"` emptied, so far, in the splits that a dataset came from.

    Args:
        dataset: A stream of ours, also one that has been mapped, filtered, split among ranks or put together with
            others; a prepared dataset, also a mapped one or a part of it; or a dict of either.

    Raises:
        OptionError: The dataset does not come from this package, or nothing tells where its rows were prepared: it was
            put together of several prepared ones, or read by `load_from_disk`.
    """
    if isinstance(dataset, dict):
        faults = [fault for part in dataset.values() for fault in report(part).faults]
    else:
        prepared = isinstance(dataset, datasets.Dataset)
        logs = fault_logs(dataset) if prepared else list(_fault_logs(dataset._ex_iterable))
        if not logs:
            raise OptionError(
                "report() takes what reasonknee_hf loaded; nothing tells where the rows of this stream come from."
            )
        faults = [fault for log in logs for fault in log.report().faults]
    return Report(tuple(dict.fromkeys(faults)))


def _fault_logs(iterable: Any) -> Iterator[FaultLog]:
    """The logs of all our iterables that a chain of iterables begins with."""
    if isinstance(iterable, RowsIterable):
        yield iterable.rows.faults
    elif (source := getattr(iterable, "ex_iterable", None)) is not None:
        yield from _fault_logs(source)
    else:
        for source in getattr(iterable, "ex_iterables", ()):
            yield from _fault_logs(source)
