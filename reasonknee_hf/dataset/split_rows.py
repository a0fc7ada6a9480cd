"""The rows of one split, in published order or in our shuffle, from any place on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.contract import Config, Records, Release
from reasonknee_hf.dataset.faults import FaultLog
from reasonknee_hf.dataset.index import IndexBuilder, RowIndex, keep_index, known_index, row_index
from reasonknee_hf.dataset.joining import Joiner, RowOptions
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.dataset.order import permutation, repeats, total
from reasonknee_hf.dataset.record_forms import Form, form_of
from reasonknee_hf.dataset.shards import read_records, scan_reader, shard_count, share
from reasonknee_hf.dataset.states import DONE, Passed, Place
from reasonknee_hf.errors import OptionError

logger = logging.getLogger(__name__)

# Rows that are read together where no window of the shuffle says how many scans are.
_ROWS_AT_ONCE = 256


class _Part(NamedTuple):
    """What a shard is made of, where rows are found in the index.

    Attributes:
        images: Numbers of its images, in order.
        skip: How many rows of the first one belong to the shard before.
        rows: How many rows it has.
    """

    images: npt.NDArray[np.int64]
    skip: int
    rows: int


@dataclass
class SplitRows:
    """The rows of one split of a release. Cheap to make and to pickle; nothing is read before iteration.

    Args:
        release: Where the rows come from.
        split: Which of its splits.
        options: What rows are made of, and in which order.
        faults: Where what `on_error` skipped or emptied is kept.
        prefetch: Whether streams load the volumes of the next scan in the background once volumes are touched.
    """

    release: Release
    split: str
    options: RowOptions
    faults: FaultLog = field(default_factory=FaultLog.of_stream)
    prefetch: bool = True
    joiner: Joiner = field(init=False)

    def __post_init__(self) -> None:
        self._orders: tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._told = False
        self.joiner = Joiner(self.release, self.split, self.options, self.faults)

    def __reduce__(self) -> tuple[type[SplitRows], tuple[Any, ...]]:
        # Other processes map the index from disk; what follows from it is quickly made again.
        return SplitRows, (self.release, self.split, self.options, self.faults, self.prefetch)

    @property
    def _config(self) -> Config:
        return self.release.dataset.configs[self.options.config]

    @property
    def path(self) -> str:
        """The annotation array of the split."""
        return self.release.annotation_path(self.split, self.options.annotations)

    @property
    def records(self) -> Records:
        """What its records name things."""
        return self.joiner.records

    @cached_property
    def form(self) -> Form:
        """How its records are cut."""
        return form_of(self.release.tree, self.path, self.records)

    @cached_property
    def index(self) -> RowIndex:
        """The row index; built if this machine does not have it."""
        return row_index(self.release, self.path)

    @property
    def known_index(self) -> RowIndex | None:
        """The row index, if this machine has it."""
        return known_index(self.release, self.path)

    @cached_property
    def scans(self) -> list[Any]:
        """The scans that the table lists and the config and the selection keep."""
        return [scan for scan in self.release.scans(self.split) if self.joiner.keeps_scan(scan)]

    @property
    def _about(self) -> int:
        """How many scans give rows, for the number of shards: a whole file is cut without being read to count them."""
        whole = self.options.is_published_order and self._config.asks and self._config.chosen is None
        return self.release.scan_count(self.split) if whole else len(self.scans)

    def num_rows(self, shards: Sequence[str] | None = None, epoch: int = 0) -> int | None:
        """How many rows some shards give, by default all, if that is known without reading records or volumes."""
        if self.options.on_error == "skip" or (self._config.asks and self.known_index is None):
            return None
        return sum(self.rows_in(self.shards() if shards is None else shards, epoch))

    def shards(self) -> list[str]:
        """`"0/24"`, `"1/24"`, …: what workers and ranks divide among themselves."""
        count = self.options.num_shards or shard_count(self._about)
        return [f"{number}/{count}" for number in range(count)]

    def read(
        self, shards: Sequence[str], epoch: int = 0, places: Mapping[str, Place] | None = None
    ) -> Iterator[tuple[str, Passed, str, dict[str, Any]]]:
        """Rows from some places on: the shard of each, where that stands behind the row, the row's key, and the row.

        Args:
            shards: Some of `"0/n"` … `"n-1/n"`, in order, for any `n`.
            epoch: Any number that tells this epoch's shuffle from others.
            places: How far shards have been read; those that are not named have not.

        Raises:
            RecordError: With `on_error="raise"`, a record that does not fit; names row, file and offset.
            AnnotationError: The file is not the JSON it should be, whatever `on_error` says.
        """
        places = places or {}
        left = [shard for shard in shards if places.get(shard) != DONE]
        if not self._config.asks:
            yield from self._scans(epoch, left, places)
        else:
            read = self._in_order if self.options.is_published_order else partial(self._indexed, epoch)
            for shard, behind, record in read(left, places):
                row = self.joiner.row(record)
                if row is not None:
                    yield shard, behind, f"{shard}_{behind.row}", row
        if self.options.on_error != "raise" and (report := self.faults.report()):
            logger.warning("%s of %s: %s", self.split, self.release.tree.name, report)

    def places_of(self, start: int, shards: Sequence[str], epoch: int = 0) -> dict[str, Place]:
        """How far shards have been read when row number `start` of them comes next, found in the row index.

        Args:
            start: Counts from 0 in the order in which rows come.
            shards: All of the split, in the order in which they are read.
            epoch: Tells this epoch's shuffle from others.

        Raises:
            OptionError: The split has fewer rows.
        """
        rows, places, passed = self.rows_in(shards, epoch), {}, start
        for shard, number in zip(shards, rows, strict=True):
            if passed < number:
                break
            places[shard], passed = DONE, passed - number
        else:
            raise OptionError(f"start={start} is not a row of {self.split}, which has {sum(rows):,} rows.")
        if passed:
            places[shard] = Place(passed)
            if self.options.is_published_order and self._config.asks:
                chosen, owners = self._published_owners(_numbers(shard)[1])
                last = int(chosen[np.searchsorted(owners, _numbers(shard)[0]) + passed - 1])
                image = self.index.images[self.index.image_numbers[last]]
                places[shard] = Place(passed, self.index.span(last)[1], image)
        return places

    def rows_in(self, shards: Sequence[str], epoch: int = 0) -> list[int]:
        """How many rows each of some shards gives, before `on_error` leaves any out."""
        if not shards:
            return []
        if self.options.equal_steps is not None:
            return [self._equal_rows(_numbers(shards[0])[1])] * len(shards)
        if not self._config.asks:
            return [high - low for low, high in (share(len(self.scans), *_numbers(s)) for s in shards)]
        if not self.options.is_published_order:
            return [self._part(shard, epoch).rows for shard in shards]
        count = _numbers(shards[0])[1]
        rows = np.bincount(self._published_owners(count)[1], minlength=count)
        return [int(rows[_numbers(shard)[0]]) for shard in shards]

    def _equal_rows(self, count: int) -> int:
        """How many rows each of `count` shards gives."""
        rows = len(self.scans) if not self._config.asks else int(self._ends(0)[-1])
        if rows < count:
            raise OptionError(
                f"equal_steps={self.options.equal_steps!r} is not possible: the {count} shards of {self.split} have"
                f" {rows} rows. Pass num_shards= with a number that ranks times workers divide and that is not"
                " larger."
            )
        return -(-rows // count) if self.options.equal_steps == "pad" else rows // count

    def _tell_equal_rows(self, shards: Sequence[str], epoch: int) -> None:
        """Says what equal steps cost: once, in one of the workers and ranks."""
        if self.options.equal_steps is None or self._told or epoch or not shards or _numbers(shards[0])[0]:
            return
        self._told, count = True, _numbers(shards[0])[1]
        rows = len(self.scans) if not self._config.asks else int(self._ends(0)[-1])
        change = count * self._equal_rows(count) - rows
        what = f"{change:,} rows are repeated" if change > 0 else f"{-change:,} rows are dropped"
        logger.warning("equal steps: %s of %s, which has %s rows", what, self.split, f"{rows:,}")

    # --- scans ---------------------------------------------------------------------------------------------------

    def _scans(
        self, epoch: int, shards: Sequence[str], places: Mapping[str, Place]
    ) -> Iterator[tuple[str, Passed, str, dict[str, Any]]]:
        seed, scans = self.options.shuffle, self.scans
        order = range(len(scans)) if seed is None else permutation(len(scans), seed, epoch)
        self._tell_equal_rows(shards, epoch)
        for shard, end in zip(shards, self.rows_in(shards), strict=True):
            low, high = share(len(scans), *_numbers(shard))
            for passed in range(places.get(shard, Place()).row, end):
                scan = scans[order[low + passed % (high - low)]]
                row = self.joiner.scan_row(scan)
                if row is not None:
                    yield shard, Passed(passed + 1), f"{shard}_{passed}", row

    # --- published order -----------------------------------------------------------------------------------------

    def _bytes(self, shard: str) -> tuple[int, int]:
        """Where, in published order, the first records of a shard's scans begin.

        Borders lie half a scan before those of equal shares, so that each of a few scans has a shard of its own.
        """
        size, (number, count) = self.release.tree.size(self.path), _numbers(shard)
        half = size // (2 * max(1, self.release.scan_count(self.split)))
        low, high = share(size, number, count)
        return max(0, low - half), size if number + 1 == count else max(0, high - half)

    def _in_order(
        self, shards: Sequence[str], places: Mapping[str, Place]
    ) -> Iterator[tuple[str, Passed, RawRecord]]:
        """Records as they stand in the file. Shards that lie end to end there are read in one go."""
        size = self.release.tree.size(self.path)
        for run in self._runs(shards, places):
            ranges = [self._bytes(shard) for shard in run]
            at, (passed, offset, image) = 0, places.get(run[0], Place())
            resume = (offset, image) if offset else None
            low, high = ranges[0][0], ranges[-1][1]
            whole = (low, high) == (0, size) and resume is None
            build = whole and self.known_index is None
            index = IndexBuilder(self.release.dataset.question_of, self.records) if build else None
            read = partial(read_records, self.release.tree, self.path, records=self.records, form=self.form)
            for head, record in read(low, high, resume):
                if index is not None:
                    index.add(record)
                while head is not None and not head.begins_before(ranges[at][1]):
                    at, passed = at + 1, 0
                if self.joiner.is_chosen(self.records.image_of(record.value)):
                    passed += 1
                    yield run[at], Passed(passed, record, self.records), record
            if index is not None:
                keep_index(self.release, self.path, index)

    def _runs(self, shards: Sequence[str], places: Mapping[str, Place]) -> Iterator[list[str]]:
        """Shards that lie end to end, only the first of which has been begun."""
        run: list[str] = []
        for shard in shards:
            if run and (shard in places or self._bytes(run[-1])[1] != self._bytes(shard)[0]):
                yield run
                run = []
            run.append(shard)
        if run:
            yield run

    def _published_owners(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows of the config as they stand in the file, and which of `count` shards each belongs to."""
        numbers, offsets = self.index.image_numbers, self.index.offsets
        chosen = np.flatnonzero(np.isin(numbers, self._chosen_images))
        # A row belongs to the shard in which the records of its scan begin that lie together with its own.
        runs = np.flatnonzero(np.diff(numbers, prepend=-1))
        heads = offsets[runs[np.searchsorted(runs, chosen, side="right") - 1]]
        borders = [self._bytes(f"{number}/{count}")[1] for number in range(count)]
        return chosen, np.searchsorted(borders, heads, side="right")

    # --- with the index ------------------------------------------------------------------------------------------

    def _indexed(
        self, epoch: int, shards: Sequence[str], places: Mapping[str, Place]
    ) -> Iterator[tuple[str, Passed, RawRecord]]:
        """Records in our shuffle, of a selection, or an equal number of each shard."""
        self._tell_equal_rows(shards, epoch)
        for shard, target in zip(shards, self.rows_in(shards, epoch), strict=True):
            part, passed = self._part(shard, epoch), places.get(shard, Place()).row
            while passed < target:
                for record in self._from(part, _numbers(shard)[0], epoch, passed % part.rows):
                    passed += 1
                    yield shard, Passed(passed), record
                    if passed == target:
                        break

    def _part(self, shard: str, epoch: int) -> _Part:
        """Whole scans; where steps are equal, an equal share of the rows, whatever scan that begins and ends in."""
        number, count = _numbers(shard)
        images, ends = self._order(epoch), self._ends(epoch)
        if self.options.equal_steps is None:
            first, last = share(len(images), number, count)
            return _Part(images[first:last], 0, int(ends[last] - ends[first]))
        low, high = share(int(ends[-1]), number, count)
        first, last = int(np.searchsorted(ends, low, side="right")) - 1, int(np.searchsorted(ends, high))
        return _Part(images[first:last], low - int(ends[first]), high - low)

    def _from(self, part: _Part, shard: int, epoch: int, passed: int) -> Iterator[RawRecord]:
        """Records of a part but for the first `passed`, a window of a few scans at a time."""
        seed, left, skip = self.options.shuffle, part.rows, part.skip
        window = (
            self.options.window if seed is not None else _ROWS_AT_ONCE * len(part.images) // part.rows or 1
        )
        for start in range(0, len(part.images), window):
            images = [int(image) for image in part.images[start : start + window]]
            rows = [self._rows_of(image) for image in images]
            pairs = [
                (scan, place)
                for scan, image in enumerate(images)
                for place, times in enumerate(self._repeats(image, rows[scan], epoch))
                for _ in range(times)
            ][skip : skip + left]
            left, skip = left - len(pairs), 0
            if passed >= len(pairs):
                passed -= len(pairs)
                continue
            if seed is not None:
                pairs = [pairs[position] for position in permutation(len(pairs), seed, epoch, shard, start)]
            record = scan_reader(self.release.tree, self.path, self.form, self.index, rows)
            yield from starmap(record, pairs[passed:])
            passed = 0

    def _rows_of(self, image: int) -> npt.NDArray[np.int64]:
        rows = self.index.rows_of(image)
        return rows if self._selected is None else rows[self._selected[rows]]

    @cached_property
    def _selected(self) -> npt.NDArray[np.bool_] | None:
        """Which rows of the index ask a chosen question; `None` where all are chosen."""
        selection = self.options.selection
        chosen = None if selection is None else selection.question_ids(self.release.dataset)
        return None if chosen is None else np.isin(self.index.question_ids, sorted(chosen))

    @cached_property
    def _weights(self) -> npt.NDArray[np.float64] | None:
        """The weight of every record where rare grades are oversampled."""
        weights = self.release.dataset.weights
        if self.options.balance is None or weights is None:
            return None
        return weights(self.release, self.path, self.index)

    @cached_property
    def _rows_per_image(self) -> npt.NDArray[np.int64]:
        """How many rows each image of the index gives, in any epoch."""
        if self._weights is not None:
            images = range(len(self.index.images))
            rows = [total(self._weights[self._rows_of(image)].tolist()) for image in images]
            return np.array(rows, dtype=np.int64)
        if self._selected is None:
            return self.index.counts
        numbers = self.index.image_numbers[self._selected]
        return np.bincount(numbers, minlength=len(self.index.images)).astype(np.int64)

    def _repeats(self, image: int, rows: npt.NDArray[np.int64], epoch: int) -> list[int]:
        """How often each record of an image comes."""
        if self._weights is None:
            return [1] * len(rows)
        return repeats(self._weights[rows].tolist(), self.options.shuffle or 0, epoch, image)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The images of the config in the order of an epoch, made once for all shards."""
        return self._ordered(epoch)[0]

    def _ends(self, epoch: int) -> npt.NDArray[np.int64]:
        """For each image in the order of an epoch how many rows those before it have, and then all."""
        return self._ordered(epoch)[1]

    def _ordered(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if self._orders is None or self._orders[0] != epoch:
            images, seed = self._chosen_images, self.options.shuffle
            if seed is not None:
                images = images[permutation(len(images), seed, epoch)]
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._rows_per_image[images])])
            self._orders = epoch, images, ends
        return self._orders[1:]

    @cached_property
    def _chosen_images(self) -> npt.NDArray[np.int64]:
        """Numbers of the images whose rows the config and the selection have, in the order of the file."""
        names, rows = self.index.images, self._rows_per_image
        chosen = [n for n, image in enumerate(names) if rows[n] and self.joiner.is_chosen(image)]
        return np.array(chosen, dtype=np.int64)


def _numbers(shard: str) -> tuple[int, int]:
    number, _, count = shard.partition("/")
    return int(number), int(count)
