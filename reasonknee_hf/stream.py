"""Rows as the innermost iterable of an `IterableDataset`: resumes at exactly the next row, and knows our shuffle.

`datasets` makes iterables out of generator functions, and on resume runs the generator again and throws away what was
seen. This one goes straight to the place. It stands on the seam between builders and `IterableDataset`
(`ExamplesIterable`), which is the same on `datasets` 3.6 to 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import numpy as np
from datasets.iterable_dataset import ExamplesIterable

from reasonknee_hf.errors import StateError
from reasonknee_hf.release.quintuples import Place, Quintuples

STATE_VERSION = 1


class RowsIterable(ExamplesIterable):  # type: ignore[misc]
    """Iterates over some shards of a split.

    Args:
        rows: The split.
        shards: Names of the shards, in the order in which they are read.
        epoch: Tells the shuffle of this epoch from others.
        start: Where to begin when no state has been loaded.
    """

    def __init__(self, rows: Quintuples, shards: Sequence[str], epoch: int = 0, start: Place = Place()) -> None:
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
            "place": asdict(self.start),
        }
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        place = self.start if self._state_dict is None else self._loaded_place()
        for behind, key, row in self.rows.read(self.shards, self.epoch, place):
            if self._state_dict is not None:
                self._state_dict["place"] = asdict(behind)
            yield key, row

    def _loaded_place(self) -> Place:
        """The place of the state, which may be one that was loaded.

        Raises:
            StateError: It was saved by another version or in another setup; the message says what differs.
        """
        state = self._state_dict
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"the state has version {state['version']}, this package reads {STATE_VERSION}. Resume with the version "
                "of reasonknee_hf that saved it."
            )
        ours = self._setup()
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
        return Place(**state["place"])

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
        return RowsIterable(self.rows, shards, self.epoch)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> RowsIterable:
        """Every `num_shards`-th shard, or a stretch of them."""
        chosen = self.split_shard_indices_by_worker(num_shards, index, contiguous=contiguous)
        return RowsIterable(self.rows, [self.shards[position] for position in chosen], self.epoch)

    def reshard_data_sources(self) -> RowsIterable:
        """The same: there are enough shards from the start."""
        return RowsIterable(self.rows, self.shards, self.epoch, self.start)

    @property
    def num_shards(self) -> int:
        return len(self.shards)
