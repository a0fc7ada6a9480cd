"""A stream of rows that trainers can count, share among ranks in equal steps, and resume without voxels."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import datasets

from reasonknee_hf.dataset.stream import RowStream, begun_at, loader_worker, rows_behind
from reasonknee_hf.errors import OptionError, StateError

logger = logging.getLogger(__name__)

_Stream = TypeVar("_Stream", bound=RowStream)


class _Passed:
    """Stands for a row of a batch that a resuming trainer throws away."""

    def __repr__(self) -> str:
        return "row that was passed over while resuming"


PASSED = _Passed()


class EpochRow(dict[str, Any]):
    """A row that knows the epoch in which it came, for what is drawn anew in every epoch."""

    epoch = 0


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

    def batches(self, batch_size: int, workers: int) -> int:
        """How many batches an epoch has: each loader worker ends with an incomplete one of its own.

        Where rows are not known by worker, as behind a transform, it is the number without those.
        """
        workers = max(1, workers)
        rows: list[int | None] = [self._rows // workers + (n < self._rows % workers) for n in range(workers)]
        if not self._exactly and workers > 1:
            parts = [
                self._source()[0].shard_data_sources(workers, n, contiguous=False) for n in range(workers)
            ]
            rows = [getattr(part, "num_rows", None) for part in parts]
        if None in rows:
            rows = [self._rows]
        return sum(-(-count // batch_size) for count in rows if count)

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

    @property
    def column_names(self) -> list[str] | None:
        """As in `datasets`; behind a transform that has hidden them, those of the first row."""
        names: list[str] | None = super().column_names
        return names if names is not None else list(next(iter(self.take(1)), ()))

    def describe_order(self) -> str:
        """What tells this order of rows from others, as far as it is known."""
        told = [f"{rows.split}, {_told(rows.options)}" for rows in rows_behind(self)]
        return f"{self._rows} rows of {'; '.join(told)}" if told else f"{self._rows} rows"

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker_and_all()
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
            logger.warning(
                "equal steps: of its rows this part leaves %d out of the epoch, and repeats %d",
                left_out,
                repeated,
            )

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

    Examples:
        >>> from reasonknee_hf.train import training_stream
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> len(training_stream(rows))
        186
    """
    return _as_stream(ds, _count(ds, "training_stream", rows), _Position())


def _count(ds: datasets.IterableDataset, taker: str, rows: int | None = None) -> int:
    if not isinstance(ds, datasets.IterableDataset):
        raise OptionError(
            f"{taker}() takes a stream, not a {type(ds).__name__}: load with streaming=True. (Map-style sets need no"
            " help: they have a length, and trainers divide them and skip in them by index)"
        )
    if rows is None:
        rows = (ds.num_rows if isinstance(ds, RowStream) else None) or sum(1 for _ in ds)
    if rows < 1:
        raise OptionError("the stream has no rows; which split and filters made it?")
    return rows


def _as_stream(ds: datasets.IterableDataset, rows: int, position: _Position) -> TrainingStream:
    stream = _twin(ds, TrainingStream)
    stream._rows = rows
    stream._position = position
    return stream


def _twin(ds: datasets.IterableDataset, kind: type[_Stream]) -> _Stream:
    """The same rows in an object of its own; those that `copy` makes of a stream of `datasets` share all attributes."""
    stream = kind.__new__(kind)
    stream.__dict__ = vars(ds) | {"_state_dict": dict(ds._state_dict)}
    return stream


def _worker_and_all() -> tuple[int, int]:
    """Number of this loader worker, and how many there are."""
    info = loader_worker()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _told(options: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value is not None}


class PaddingRow(dict[str, Any]):
    """A row that fills the last batch of a rank, and counts in no metric."""


class EvaluationStream(RowStream):
    """Every row once over all ranks and loader workers, made by [`evaluation_stream`].

    Each of them reads a stretch of rows, so a scan is decoded twice at most where stretches meet. Stretches are filled
    with marked rows to the same length, and so make equal numbers of batches. Marked rows have no labels, and
    [`~reasonknee_hf.train.evaluation.RowEvaluation`] leaves them out of metrics.
    """

    _rows: int
    _rank: tuple[int, int] = (0, 1)

    # `accelerate` cuts what is gathered last to the rest of this by the batch of one rank, and would lose rows.
    total_dataset_length = 0

    @property
    def num_shards(self) -> int:
        """In how many parts it can be read: every row can be one."""
        return self._rows

    def __len__(self) -> int:
        return -(-self._rows // self._rank[1])

    def batches(self, batch_size: int, workers: int) -> int:
        """How many batches the loader workers of a rank give together."""
        workers = max(1, workers)
        return workers * -(-self._stretch(workers) // batch_size)

    def _stretch(self, workers: int) -> int:
        """How many rows each of the workers of every rank gives."""
        return -(-self._rows // (self._rank[1] * workers))

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> EvaluationStream:
        """The part of rank `index` of `num_shards`."""
        part = _twin(self, EvaluationStream)
        part._rank = (index, num_shards)
        return part

    def __iter__(self) -> Iterator[Any]:
        rank, (worker, workers) = self._rank[0], _worker_and_all()
        left = length = self._stretch(workers)
        row = None
        for row in self._from((rank * workers + worker) * length, length):
            left -= 1
            yield row
        if left:
            padding = PaddingRow(next(self._from(0, 1)) if row is None else row)
            yield from itertools.repeat(padding, left)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refused: an evaluation takes all rows.

        Raises:
            StateError: Always.
        """
        raise StateError(
            "an evaluation_stream is read as a whole; go on from a state with the stream it was made of."
        )

    def _from(self, first: int, count: int) -> Iterator[Any]:
        if first >= self._rows:
            return
        part = _twin(self, EvaluationStream)
        if self.num_rows is not None:  # the row index knows the place
            part._ex_iterable, first = begun_at(self._ex_iterable, first), 0
        yield from itertools.islice(super(EvaluationStream, part).__iter__(), first, first + count)

    def _source(self) -> tuple[Any, Any]:
        return self._ex_iterable, None  # divided by rows, in the same order whatever the epoch is


def evaluation_stream(ds: datasets.IterableDataset) -> EvaluationStream:
    """Makes a stream ready for evaluation on any number of ranks: see [`EvaluationStream`].

    Args:
        ds: The stream, with all transforms applied. What they do is done by each rank to all rows before its own, so
            leave the work to the collator. Where the row index does not tell how many rows there are, they are counted
            in one pass, which with `on_error="skip"` reads every volume.

    Raises:
        OptionError: Not a stream, or an empty one.

    Examples:
        >>> from reasonknee_hf.train import evaluation_stream
        >>> rows = rk.load_dataset("full", split="train", streaming=True, source="sample")
        >>> len(evaluation_stream(rows).shard(2, 0))
        93
    """
    rows = _count(ds, "evaluation_stream")
    if ds._distributed is not None or getattr(ds, "_exactly", False):
        raise OptionError(
            "this is one rank's part of a stream: evaluation_stream() divides the whole one by itself."
        )
    stream = _twin(ds, EvaluationStream)
    stream._rows = rows
    return stream


def check_ranks(dataset: Any, *, evaluates: bool) -> None:
    """Refuses a stream of which several ranks would get unequal numbers of batches or, evaluating, not every row.

    Raises:
        OptionError: It is such a stream; the message says what to make of it.
    """
    torch = sys.modules.get("torch.distributed")  # not imported without need
    ranks = torch.get_world_size() if torch is not None and torch.is_initialized() else 1
    dataset = getattr(dataset, "dataset", dataset)  # as `accelerate` wraps one of few shards
    if ranks == 1 or not isinstance(dataset, RowStream) or isinstance(dataset, EvaluationStream):
        return
    equal = isinstance(dataset, TrainingStream) or any(
        rows.options.equal_steps is not None for rows in rows_behind(dataset)
    )
    if evaluates or not equal:
        raise OptionError(
            f"{ranks} ranks that read a {type(dataset).__name__} would wait for batches that never come, or leave rows"
            " out and repeat others. Evaluate evaluation_stream(rows), and train on training_stream(rows)."
        )


def passed_over(rows: Sequence[Mapping[str, Any] | _Passed]) -> bool:
    """Whether a batch stands for one that a resuming trainer throws away.

    Raises:
        StateError: Only some of its rows do, so the trainer resumes elsewhere than the stream was told.
    """
    passed = sum(isinstance(row, _Passed) for row in rows)
    if 0 < passed < len(rows):
        raise StateError(
            f"{passed} of {len(rows)} rows of a batch were passed over while resuming: the batch size or the number"
            " of workers differs from what ResumeCallback was told. Resume with the settings of the checkpoint, or"
            " leave the callback out"
        )
    return passed > 0
