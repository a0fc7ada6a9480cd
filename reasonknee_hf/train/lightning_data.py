"""Rows in a `lightning` trainer: shared among ranks in equal steps, resumed at the next batch.

    data = RowsDataModule(rk.load_dataset("full", split="train", streaming=True), collate_fn=collator, batch_size=8)
    Trainer(max_epochs=3).fit(model, data, ckpt_path="last")

Importing this module imports `lightning` and torchdata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed
from lightning import LightningDataModule
from torchdata.stateful_dataloader import StatefulDataLoader

from reasonknee_hf.dataset.stream import RowStream
from reasonknee_hf.errors import StateError
from reasonknee_hf.train.trainer_stream import TrainingStream, evaluation_stream, training_stream


class RowsDataModule(LightningDataModule):
    """Loaders of streams for `lightning`, whose place stands in its checkpoints.

    A checkpoint holds the place of every rank, and a resumed run goes on with the next batch of the same epoch.

    Args:
        train: The rows to train on: a stream as `load_dataset` gives it, or a `training_stream`. Ranks read different
            scans in equal numbers of steps.
        evaluate: The rows to validate on, each once over all ranks; batches fill up with rows that are marked as
            `Reference.is_padding`. `None` for no validation.
        collate_fn: Makes batches, such as a `Collator`; batches keep their references on the device.
        evaluate_collate_fn: Another one for validation, such as a `Collator` without target.
        loader: Options of the loaders: `batch_size`, `num_workers`, …

    Raises:
        StateError: When a run is resumed with another number of ranks than saved the checkpoint.

    Examples:
        >>> from reasonknee_hf.train import RowsDataModule
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> RowsDataModule(rows, collate_fn=list, batch_size=4).state_dict()
        {'ranks': [None]}
    """

    def __init__(
        self,
        train: RowStream,
        evaluate: RowStream | None = None,
        *,
        collate_fn: Callable[[Any], Any],
        evaluate_collate_fn: Callable[[Any], Any] | None = None,
        **loader: Any,
    ) -> None:
        super().__init__()
        self._train, self._evaluate, self._options = train, evaluate, loader
        self._collators = collate_fn, evaluate_collate_fn or collate_fn
        self._loader: _Resumed | None = None
        self._saved: dict[str, Any] | None = None

    def train_dataloader(self) -> Any:
        """Batches of this rank's part, from the place that was loaded."""
        stream = self._train if isinstance(self._train, TrainingStream) else training_stream(self._train)
        loader = StatefulDataLoader(self._part(stream), collate_fn=self._collators[0], **self._options)
        self._loader = _Resumed(loader, lambda: int(self.trainer.current_epoch), self._saved)
        return self._loader

    def val_dataloader(self) -> Any:
        """Batches of this rank's part of the rows to validate on."""
        if self._evaluate is None:
            return []
        stream = self._part(evaluation_stream(self._evaluate))
        return _Counted(StatefulDataLoader(stream, collate_fn=self._collators[1], **self._options))

    def _part(self, stream: Any) -> Any:
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        return stream if ranks == 1 else stream.shard(ranks, rank)

    def state_dict(self) -> dict[str, Any]:
        """The place of every rank; `lightning` asks all of them at once."""
        own = self._loader.state() if self._loader is not None else None
        ranks = [own]
        if torch.distributed.is_initialized():
            ranks *= torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, own)
        return {"ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the place of this rank until its loader is made.

        Raises:
            StateError: It was saved by another number of ranks.
        """
        ranks = state_dict["ranks"]
        if len(ranks) != self.trainer.world_size:
            raise StateError(
                f"the checkpoint was saved by {len(ranks)} ranks, and this run has {self.trainer.world_size}, so that"
                " the rows that follow would be others. Resume with as many ranks, or start without the checkpoint."
            )
        self._saved = ranks[self.trainer.global_rank]


class _Counted:
    """Batches, and how many there are: `lightning` leaves out what comes behind the length of a loader.

    It has no `state_dict`, since `lightning` keeps that of rank 0 and gives it to all.
    """

    def __init__(self, loader: StatefulDataLoader[Any]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        count: int = self._loader.dataset.batches(self._loader.batch_size or 1, self._loader.num_workers)
        return count

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader


class _Resumed(_Counted):
    """Batches of the epoch that the trainer is in, from a place on."""

    def __init__(
        self, loader: StatefulDataLoader[Any], epoch: Callable[[], int], saved: dict[str, Any] | None
    ) -> None:
        super().__init__(loader)
        self._epoch, self._saved, self._given = epoch, saved, 0

    def __iter__(self) -> Iterator[Any]:
        saved, self._saved, self._given = self._saved, None, 0
        if saved is not None and saved["epoch"] == self._epoch():
            self._given = saved["given"]
            self._loader.load_state_dict(saved["loader"])
        self._loader.dataset.set_epoch(self._epoch())
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state(self) -> dict[str, Any] | None:
        """Where it stands; `None` between epochs."""
        if not 0 < self._given < len(self):
            return None
        return {"epoch": self._epoch(), "given": self._given, "loader": self._loader.state_dict()}
