"""Rows as the innermost iterable of an `IterableDataset`: resumes at exactly the next row, and knows our shuffle.

`datasets` makes iterables out of generator functions, and on resume runs the generator again and throws away what was
seen. This one goes straight to the place, and keeps it and the epoch by itself, so that they hold in any chain of
transforms. What it needs of the inside of `datasets` is listed in `seams`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, TypeVar

import datasets
import fsspec.asyn
import numpy as np
import pyarrow as pa
from datasets.formatting import get_formatter
from datasets.iterable_dataset import ExamplesIterable

from reasonknee_hf.dataset import seams
from reasonknee_hf.dataset.faults import Report
from reasonknee_hf.dataset.prepared import fault_logs
from reasonknee_hf.dataset.row_features import item_type
from reasonknee_hf.dataset.split_rows import SplitRows
from reasonknee_hf.dataset.states import ANY_PART, DONE, STATE_VERSION, Passed, Places, misfit, read_places
from reasonknee_hf.errors import OptionError, RecordError, StateError
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.prefetch import prefetched
from reasonknee_hf.volumes.volume import KneeVolume

logger = logging.getLogger(__name__)

_Leaf = TypeVar("_Leaf")
_ROWS_AT_ONCE = 8  # with the bytes of two volumes each; an Arrow array holds 2 GiB


class RowStream(datasets.IterableDataset):
    """An `IterableDataset` that begins with the rows of one split; every transform of one is one too."""

    _ex_iterable: Any
    _distributed: Any
    _formatting: Any
    _state_dict: dict[str, Any]

    @property
    def num_rows(self) -> int | None:
        """Number of rows that an epoch gives, of a rank's part those of the rank.

        `None` where that is not known without reading: before the first full pass has built the row index, with
        `on_error="skip"`, and after transforms that may change it.
        """
        source = self._source()[0]
        return source.num_rows if isinstance(source, RowsIterable) else None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on, at the next iteration, with the row behind the one that `state_dict` was taken at, in its epoch.

        Raises:
            StateError: It is no state, or that of another chain of transforms. Whether it belongs to the same rows
                and options shows when the iteration begins.
        """
        if not isinstance(state_dict, dict) or type(state_dict.get("epoch")) is not int:
            raise StateError(f"this is not the state of a stream, but {str(state_dict)[:80]!r}.")
        self._prepare_ex_iterable_for_iteration()  # features may have been set since the stream was made
        ours = self._state_dict["examples_iterable"]
        if (found := misfit(ours, state_dict.get("examples_iterable"))) is not None:
            raise StateError(
                f"the state does not belong to this stream: {found}. It was saved by another chain of transforms, by"
                " another version of this package or, behind transforms, of datasets. Resume with what saved it, or"
                " start without the state."
            )
        super().load_state_dict(state_dict)
        self.set_epoch(state_dict["epoch"])  # `datasets` ignores the state of another epoch
        # Until the iteration begins this is the state. `datasets` would answer with that of a fresh dataset, which
        # loses the place of loader workers that have not given a batch when the next checkpoint is taken.
        self._state_dict = deepcopy(state_dict)

    def shuffle(self, *args: Any, **kwargs: Any) -> RowStream:
        """Refused: a buffer of shuffled rows is lost at each resume, and decodes a volume for nearly every row.

        Raises:
            OptionError: Always; the message names the alternative.
        """
        raise OptionError(
            "a stream of reasonknee_hf is not shuffled by a buffer, whose rows are lost when it is resumed. Pass"
            " shuffle=<seed> to load_dataset: it mixes scans and rows, decodes each volume once, resumes exactly, and"
            " set_epoch() changes the order."
        )

    def to_parquet(self, path_or_buf: Any, batch_size: int | None = None, **kwargs: Any) -> int:
        """As in `datasets`, with the bytes of all volumes in the file. No rows are a file without rows.

        Raises:
            VolumeMissingError: A volume is absent.
            OptionError: Nothing tells the type of the columns.
        """
        written = self._with_bytes()
        schema = written.features.arrow_schema
        # Stock code forgets the types of columns here, and stops at a shard whose scans have no records.
        tables = list(written.with_format("arrow").iter(batch_size or _ROWS_AT_ONCE))
        rows = datasets.Dataset(pa.concat_tables([schema.empty_table(), *tables]).cast(schema))
        return int(rows.to_parquet(path_or_buf, batch_size or (None if tables else 1), **kwargs))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """As in `datasets`, with the bytes of all volumes in the files, also with `embed_external_files=False`.

        Raises:
            VolumeMissingError: A volume is absent.
            OptionError: Nothing tells the type of the columns.
        """
        # The bytes are there already, and what stock code would do to put them there hides the types of columns.
        kwargs["embed_external_files"] = False
        return super(RowStream, self._with_bytes()).push_to_hub(*args, **kwargs)

    def _with_bytes(self) -> RowStream:
        """The stream with volumes as stock code writes them."""
        if self.features is None:
            raise OptionError(
                "nothing tells the types of the columns after map(), so volumes could not be written as such. Pass"
                " features= to map(), e.g. those of the stream before it, or remove the columns first."
            )
        written: RowStream = self.with_format(None).map(
            partial(_embedded, self.features), features=self.features
        )
        return written

    def __iter__(self) -> Iterator[Any]:
        if loader_worker() is not None:
            fsspec.asyn.reset_lock()  # of the process that was forked
        iterable = self._prepare_ex_iterable_for_iteration()
        if self._formatting and (iterable.iter_arrow or self._formatting.is_table):
            formatter = get_formatter(self._formatting.format_type, features=self.features)
            yield from (formatter.format_row(table) for _, table in iterable.iter_arrow())
        else:
            yield from (row for _, row in iterable)

    def _source(self) -> tuple[Any, Any]:
        """The iterables in this epoch, of this rank and worker; and the ranks that still divide their rows."""
        source, ranks = self._ex_iterable, self._distributed
        source = seams.with_leaves(source, lambda leaf: _changed(leaf, epoch=self.epoch))
        if ranks is not None and getattr(ranks, "strategy", "auto") != "examples":
            # Where ranks do not divide the shards, `datasets` has every rank read all rows and keep some.
            among = ranks.world_size
            evenly = source.num_shards % among == 0 or seams.only_by_rows(source, RowsIterable)
            if evenly and among <= source.num_shards:
                source, ranks = source.shard_data_sources(among, ranks.rank, contiguous=False), None
        if (worker := loader_worker()) is not None:
            if worker.id == 0 and source.num_shards < worker.num_workers:
                logger.warning("%d workers, but only %d shards", worker.num_workers, source.num_shards)
            source = source.shard_data_sources(worker.num_workers, worker.id, contiguous=False)
        return source, ranks

    def _prepare_ex_iterable_for_iteration(self, *args: Any, **kwargs: Any) -> Any:
        kept = self._ex_iterable, self._distributed
        source, ranks = self._source()
        if isinstance(source, RowsIterable) and self._formatting is None and self.features == source.declared:
            source = _changed(source, is_typed=True)
        self._ex_iterable, self._distributed = source, ranks
        try:
            iterable = super()._prepare_ex_iterable_for_iteration(*args, **kwargs)
        finally:
            self._ex_iterable, self._distributed = kept
        self._state_dict["examples_iterable"] = (
            iterable._state_dict
        )  # from 4.8 to 5.1, loading makes another one
        return iterable


def row_stream(rows: SplitRows, start: int, info: datasets.DatasetInfo) -> RowStream:
    """The stream of a split."""
    iterable = RowsIterable(rows, info.features, start)
    return RowStream(iterable, info=info, split=datasets.NamedSplit(rows.split))


class RowsIterable(ExamplesIterable):
    """Iterates over a part of a split: `part = (c, w)` is the `c`-th of `w` equal ones, in `count` shards.

    Parts are stretches, so they differ by one scan at most, and those of a part's parts are parts of the split.

    Args:
        rows: The split.
        declared: The types of its columns.
        start: Number of the row to begin with when no state has been loaded.
    """

    is_typed = False
    """Whether rows come decoded. `datasets` decodes those of others, before 4.8 by way of Arrow, row by row."""

    def __init__(self, rows: SplitRows, declared: datasets.Features, start: int = 0) -> None:
        super().__init__(rows.read, {})
        self.rows = rows
        self.declared = declared
        self.start = start
        self.epoch = 0
        self.part = (0, 1)
        self.count = len(rows.shards())

    @property
    def features(self) -> datasets.Features | None:
        return self.declared if self.is_typed else None

    @property
    def num_shards(self) -> int:
        return self.count

    @property
    def num_rows(self) -> int | None:
        """How many rows this part gives in this epoch, if that is known."""
        rows = self.rows.num_rows(self.shards(), self.epoch)
        return None if rows is None else rows - self.start

    def shards(self, of: int | None = None) -> list[str]:
        """Names of this part's shards; where the split is cut into `of`, of those that begin in it."""
        (number, parts), of = self.part, of or self.part[1] * self.count
        within = range(-(-number * of // parts), -(-(number + 1) * of // parts)) if self.count else ()
        return [f"{shard}/{of}" for shard in within]

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = self._at_the_start()
        return self._state_dict

    def _at_the_start(self) -> dict[str, Any]:
        # Nothing in it is a dict or a list: `datasets` merges those, and would keep what the loaded one lacks.
        return {
            "type": type(self).__name__,
            "version": STATE_VERSION,
            "source": self.rows.release.identity,
            "split": self.rows.split,
            "options": " ".join(f"{k}={v}" for k, v in asdict(self.rows.options).items() if v is not None),
            "epoch": self.epoch,
            "part": f"{self.part[0]}/{self.part[1]}",
            "shards": self.part[1] * self.count,
            "places": None,
        }

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        names, places = self._where()
        types = self.declared
        rows, here, given = self.rows.read(names, self.epoch, places), 0, bool(places)
        if self.rows.prefetch:
            rows = prefetched(rows, volumes=_volumes_of, on_touch=True)
        for shard, behind, key, row in rows:
            while names[here] != shard:
                places[names[here]] = DONE
                here += 1
            places[shard], given = behind, True
            yield key, types.decode_example(types.encode_example(row)) if self.is_typed else row
        places.update(dict.fromkeys(names, DONE))
        if not given and self.part == (0, 1) and (left_out := self.rows.faults.report()):
            raise RecordError(f"nothing is left of {self.rows.split}: {left_out}")

    def _where(self) -> tuple[list[str], dict[str, Any]]:
        """The shards to read, and how far they have been: from the state, which may be one that was loaded.

        Raises:
            StateError: It was saved in another setup; the message says what differs.
        """
        state = self._state_dict or self._init_state_dict()
        ours, checked = self._at_the_start(), ["source", "split", "options", "epoch", "part"]
        if state["places"] is None:
            places = self.rows.places_of(self.start, self.shards(), self.epoch) if self.start else {}
            # Nothing was read: it may have been taken before the shards were divided among the workers.
            ours["part"], state = state["part"], state | {"shards": ours["shards"]}
        else:
            places = read_places(state["places"])
        if state["part"] == ANY_PART:
            checked.remove("part")
        differing = [
            f"{name}: saved with {state[name]!r}, now {ours[name]!r}"
            for name in checked
            if state[name] != ours[name]
        ]
        if differing:
            raise StateError(
                f"the state belongs to another setup ({'; '.join(differing)}). Load the dataset with the same options,"
                " the same number of ranks and workers (or join the states of all with merge_states) and the state of"
                " the same rank, or start without it."
            )
        names = self.shards(state["shards"])
        places = {name: places[name] for name in names if name in places}
        self._state_dict |= self._at_the_start() | {"shards": state["shards"], "places": Places(places)}
        return names, places

    def shuffle_data_sources(self, generator: np.random.Generator) -> RowsIterable:
        """The same: our shuffle knows seed and epoch, and without it rows come in published order."""
        return _changed(self)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> RowsIterable:
        """The `index`-th of `num_shards` equal stretches. All have as many shards, where there are scans enough.

        Raises:
            OptionError: The stream begins at a row, and is to be divided.
        """
        if self.start and num_shards > 1:
            raise OptionError(
                f"start={self.start} counts the rows of the whole stream, which is to be divided into {num_shards}"
                " parts for workers or ranks. Read it in one process, or leave start= out and load a state."
            )
        (number, parts), among = self.part, max(1, min(num_shards, self.count))
        count = -(-self.count // among)
        if self.count % among:
            count = max(1, min(count, len(self.rows.scans) // (parts * among)))
        return _changed(
            self, part=(number * among + index, parts * among), count=count if index < among else 0
        )

    def reshard_data_sources(self) -> RowsIterable:
        """The same: there are enough shards from the start."""
        return _changed(self)


def _embedded(type_: Any, value: Any) -> Any:
    """A value with its volumes as they are stored, with their bytes."""
    if value is None or isinstance(type_, VolumeFeature):
        return value if value is None else type_.embed_example(type_.encode_example(value))
    if isinstance(type_, dict):
        return {name: _embedded(part, value.get(name)) for name, part in type_.items()}
    item = item_type(type_)
    return value if item is None else [_embedded(item, one) for one in value]


def loader_worker() -> Any:
    """The loader worker that this process is, if it is one."""
    torch = sys.modules.get("torch.utils.data")
    return None if torch is None else torch.get_worker_info()


seams.stays(RowStream, RowsIterable)


def _changed(leaf: _Leaf, **changes: Any) -> _Leaf:
    """A copy of one of our iterables with other attributes; those of others as they are."""
    twin = copy(leaf)
    if isinstance(leaf, RowsIterable):
        vars(twin).update(changes, _state_dict=None)
    return twin


def begun_at(source: RowsIterable, row: int) -> RowsIterable:
    """The same, from a row on."""
    return _changed(source, start=source.start + row)


def rows_behind(stream: datasets.IterableDataset) -> list[SplitRows]:
    """The splits that a stream begins with."""
    return [leaf.rows for leaf in seams.leaves(stream._ex_iterable) if isinstance(leaf, RowsIterable)]


def _volumes_of(item: tuple[str, Passed, str, dict[str, Any]]) -> tuple[KneeVolume, ...]:
    """The volumes of a row that has its stored form."""
    image, mask = item[3].get("image"), item[3].get("mask")
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

    Examples:
        >>> options = {"streaming": True, "source": "sample", "on_error": "skip"}
        >>> ds = rk.load_dataset("full", split="validation", **options)
        >>> sum(1 for _ in ds), len(rk.report(ds).faults)  # one volume of the sample is missing on purpose
        (62, 62)
    """
    if isinstance(dataset, dict):
        faults = [fault for part in dataset.values() for fault in report(part).faults]
    else:
        prepared = isinstance(dataset, datasets.Dataset)
        logs = fault_logs(dataset) if prepared else [rows.faults for rows in rows_behind(dataset)]
        if not logs:
            raise OptionError(
                "report() takes what reasonknee_hf loaded; nothing tells where the rows of this stream come from."
            )
        faults = [fault for log in logs for fault in log.report().faults]
    return Report(tuple(dict.fromkeys(faults)))
