"""A stream of rows that trainers can count, share among ranks in equal steps, and resume without voxels."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import datasets

from reasonknee_hf.dataset.stream import RowsIterable, RowStream
from reasonknee_hf.errors import OptionError, StateError

logger = logging.getLogger(__name__)


class _Passed:
    """Stands for a row of a batch that a resuming trainer throws away."""

    def __repr__(self) -> str:
        return "row that was passed over while resuming"


PASSED = _Passed()


class EpochRow(dict[str, Any]):
    """A row that knows the epoch in which it came, for what is drawn anew in every epoch."""

    epoch = 0


def epoch_of(row: Mapping[str, Any]) -> int:
    """The epoch in which a row came; 0 where nothing tells."""
    return row.epoch if isinstance(row, EpochRow) else 0


def _in_epoch(row: Any, epoch: int) -> Any:
    if epoch and type(row) is dict:
        row = EpochRow(row)
        row.epoch = epoch
    return row


@dataclass
class _Position:
    """Where a resumed run starts; shared by a stream and the parts of it that ranks read."""

    epoch: int = 0
    batches: int = 0
    batch_size: int = 1

    def rows(self, epoch: int, worker: int, workers: int) -> int:
        """How many rows a worker passes over: loaders take batches from their workers in turns."""
        if epoch != self.epoch:
            return 0
        return len(range(worker, self.batches, workers)) * self.batch_size


class TrainingStream(RowStream):
    """A `datasets.IterableDataset` with a length, made by [`training_stream`].

    - `len` is the number of rows, of a rank's part where `accelerate` split the stream.
    - Ranks read different scans. Every rank yields the same number of rows: one that holds more leaves rows
      out, one that holds fewer repeats its first ones; how many is logged. So all ranks make the same steps. One
      that holds none is an `OptionError`.
    - [`~reasonknee_hf.train.callbacks.ResumeCallback`] makes a resuming `Trainer` pass over the rows it has
      seen without touching a volume.

    Each loader worker ends with an incomplete batch of its own, so with several workers an epoch can have a few
    more batches than `len` lets a trainer expect; a `Trainer` leaves those out.

    Transforms (`map`, `filter`, `shuffle`, …) give plain streams: apply them before.
    """

    _rows: int
    _position: _Position
    _exactly: bool = False
    _starting_state_dict: dict[str, Any] | None

    def __len__(self) -> int:
        return self._rows

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> TrainingStream:
        """The part of the stream that rank `index` of `num_shards` reads: whole scans, in equal numbers
        of rows."""
        part = _as_stream(
            super().shard(num_shards, index, contiguous), self._rows // num_shards, self._position
        )
        part._exactly = True
        return part

    def pass_over(self, *, epoch: int, batches: int, batch_size: int) -> None:
        """Puts placeholders in the place of the first rows of an epoch, for a loader that throws them away.

        Args:
            epoch: The epoch; others are not affected.
            batches: How many batches of each rank are thrown away.
            batch_size: Rows of a batch.
        """
        self._position.epoch = epoch
        self._position.batches = batches
        self._position.batch_size = batch_size

    def describe_order(self) -> str:
        """What tells this order of rows from others, as far as it is known: a stream of ours, or a transform of one."""
        source = self._ex_iterable
        while not isinstance(source, RowsIterable) and hasattr(source, "ex_iterable"):
            source = source.ex_iterable
        if not isinstance(source, RowsIterable):
            return f"{self._rows} rows"
        told = {name: value for name, value in asdict(source.rows.options).items() if value is not None}
        return f"{self._rows} rows of {source.rows.split}, {told}"

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        rows = self._equal_rows(worker, workers) if self._exactly else super().__iter__()
        passed = self._position.rows(self.epoch, worker, workers)
        for number, row in enumerate(rows):
            yield PASSED if number < passed else _in_epoch(row, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """As in `datasets`; a rank's part also tells how many rows it has given."""
        state: dict[str, Any] = super().state_dict()
        return {"given": 0, "repeated": 0, **state} if self._exactly else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in `datasets`.

        Raises:
            StateError: The state of something else was loaded into a rank's part.
        """
        if self._exactly and "given" not in state_dict:
            raise StateError(
                "the state does not tell how many rows this rank's part of a training stream has given. Load one that"
                " such a part saved, or start without it."
            )
        super().load_state_dict(state_dict)

    def _equal_rows(self, worker: int, workers: int) -> Iterator[Any]:
        """This worker's equal part of the rank's rows."""
        wanted = self._rows // workers + (worker < self._rows % workers)
        resumed = self._starting_state_dict
        given = repeated = 0
        if resumed is not None and resumed["epoch"] == self.epoch:
            given, repeated = resumed["given"], resumed["repeated"]
        passes = itertools.chain([super().__iter__()], self._again())
        for number, rows in enumerate(passes):
            before = given
            for row in itertools.islice(rows, wanted - given):
                given += 1
                repeated += number > 0 or repeated > 0
                self._state_dict |= {"given": given, "repeated": repeated}
                yield row
            if given == wanted:
                break
            if given == before and (number > 0 or before == 0):
                raise OptionError(
                    f"this rank, or its loader worker {worker + 1} of {workers}, has no rows to read, so that the"
                    " others would wait for it. Load with num_shards= a multiple of ranks times workers that is not"
                    " larger than the number of scans, or use fewer of them."
                )
        left_out = 0 if repeated else sum(1 for _ in rows)
        if left_out or repeated:
            logger.info("equal steps: this part leaves %d rows out and repeats %d", left_out, repeated)

    def _again(self) -> Iterator[Iterator[Any]]:
        """The rows from the first on, whatever state was loaded, over and over."""
        while True:
            resumed, self._starting_state_dict = self._starting_state_dict, None
            try:
                yield super().__iter__()
            finally:
                self._starting_state_dict = resumed


def training_stream(ds: datasets.IterableDataset, rows: int | None = None) -> TrainingStream:
    """Makes a stream ready for trainers: see [`TrainingStream`].

    Args:
        ds: The stream, with all transforms applied.
        rows: How many rows it has. If not given, the row index tells for a stream as `load_dataset` gives
            it. After a transform, or with `on_error="skip"`, rows are counted in one pass over the records,
            which with `on_error="skip"` reads every volume.

    Raises:
        OptionError: Not a stream, or an empty one.
    """
    if not isinstance(ds, datasets.IterableDataset):
        raise OptionError(
            f"training_stream() takes a stream, not a {type(ds).__name__}: load with streaming=True."
            " (Map-style sets"
            " need no help: they have a length, and trainers skip in them by index)"
        )
    if rows is None:
        rows = (ds.num_rows if isinstance(ds, RowStream) else None) or sum(1 for _ in ds)
    if rows < 1:
        raise OptionError("the stream has no rows to train on; which split and filters made it?")
    stream = _as_stream(ds, rows, _Position())
    # How many rows equal steps leave depends on which scans the shuffle of the epoch puts together.
    options = ds._ex_iterable.rows.options if isinstance(ds._ex_iterable, RowsIterable) else None
    stream._exactly = options is not None and options.shuffle is not None and options.equal_steps is not None
    return stream


def _as_stream(ds: datasets.IterableDataset, rows: int, position: _Position) -> TrainingStream:
    stream: TrainingStream = copy.copy(ds)
    stream.__class__ = TrainingStream
    stream._rows = rows
    stream._position = position
    return stream


def _worker() -> tuple[int, int]:
    """Number of this loader worker, and how many there are."""
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def passed_over(rows: Sequence[Mapping[str, Any] | _Passed]) -> bool:
    """Whether a batch stands for one that a resuming trainer throws away.

    Raises:
        StateError: Only some of its rows do, so the trainer resumes elsewhere than the stream was told.
    """
    passed = sum(isinstance(row, _Passed) for row in rows)
    if 0 < passed < len(rows):
        raise StateError(
            f"{passed} of {len(rows)} rows of a batch were passed over while resuming: the batch size or"
            " the number of"
            " workers differs from what ResumeCallback was told. Resume with the settings of the"
            " checkpoint, or"
            " leave the callback out"
        )
    return passed > 0
