"""The rows of one split, in published order or in our shuffle, from any place on."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.contract import Config, Release
from reasonknee_hf.dataset.faults import FaultLog
from reasonknee_hf.dataset.index import IndexBuilder, RowIndex
from reasonknee_hf.dataset.indexing import keep_index, known_index, row_index
from reasonknee_hf.dataset.joining import Joiner, RowOptions
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.dataset.order import permutation
from reasonknee_hf.dataset.repeats import repeats, total
from reasonknee_hf.dataset.shards import read_records, scan_reader, shard_count, share
from reasonknee_hf.errors import OptionError

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where an iteration stands.

    Attributes:
        shard: Number of the shard, among those that are iterated over.
        row: How many of its records have been passed.
        offset: In published order, the byte behind the last of them; 0 before the first.
        image: The volume that the last of them names.
    """

    shard: int = 0
    row: int = 0
    offset: int = 0
    image: str | None = None


class Passed:
    """Where an iteration stands behind a row it gave; copied or pickled, it is the dict of the [`Place`].

    The place is worked out then: where a record ends takes a closer look at the file, and few of the places are
    ever asked for.
    """

    __slots__ = ("record", "row", "shard")

    def __init__(self, shard: int, row: int, record: RawRecord | None = None) -> None:
        self.shard = shard
        self.row = row
        self.record = record  # the last one, in published order

    def place(self) -> Place:
        """The place itself."""
        if self.record is None:
            return Place(self.shard, self.row)
        return Place(self.shard, self.row, self.record.end, self.record.value.get("image"))

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return self.place()._asdict()

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (self.place()._asdict(),)


@dataclass
class Quintuples:
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
        self._order: tuple[int | None, npt.NDArray[np.int64]] = (None, np.zeros(0, np.int64))
        self.joiner = Joiner(self.release, self.split, self.options, self.faults)

    def __reduce__(self) -> tuple[type[Quintuples], tuple[Any, ...]]:
        # Other processes map the index from disk; what follows from it is quickly made again.
        return Quintuples, (self.release, self.split, self.options, self.faults, self.prefetch)

    @property
    def _config(self) -> Config:
        return self.release.dataset.configs[self.options.config]

    @property
    def path(self) -> str:
        """The annotation array of the split."""
        return self.release.annotation_path(self.split, self.options.annotations)

    @cached_property
    def index(self) -> RowIndex:
        """The row index; built if this machine does not have it."""
        return row_index(self.release, self.path)

    @property
    def known_index(self) -> RowIndex | None:
        """The row index, if this machine has it."""
        return known_index(self.release, self.path)

    @property
    def num_rows(self) -> int | None:
        """How many records the split has for this config, if that is known without reading them."""
        if not self._config.asks:
            return len(self.release.scans(self.split))
        if self.known_index is None:
            return None
        return int(self._rows_per_image[self._chosen_images[0]].sum())

    def shards(self) -> list[str]:
        """`"0/24"`, `"1/24"`, …: what workers and ranks divide among themselves."""
        scans = self.release.scans(self.split)
        if self._config.chosen is not None:
            chosen = self._config.chosen(self.release)
            scans = [scan for scan in scans if scan.scan_id in chosen]
        count = self.options.num_shards or shard_count(len(scans))
        return [f"{number}/{count}" for number in range(count)]

    def read(
        self, shards: Sequence[str], epoch: int = 0, place: Place | None = None
    ) -> Iterator[tuple[Passed, str, dict[str, Any]]]:
        """Rows from a place on, each with its key and where the iteration then stands.

        Args:
            shards: Some of the names that [`Quintuples.shards`] gives, in any order.
            epoch: Any number that tells this epoch's shuffle from others.
            place: Where to begin; what an earlier iteration over the same shards gave.

        Raises:
            RecordError: With `on_error="raise"`, a record that does not fit; names row, file and offset.
            AnnotationError: The file is not the JSON it should be, whatever `on_error` says.
        """
        place = place or Place()
        numbers = [_numbers(shard) for shard in shards]
        if not self._config.asks:
            yield from self._scans(epoch, numbers, place)
        else:
            read = self._in_order if self.options.is_published_order else partial(self._indexed, epoch)
            for behind, record in read(numbers, place):
                row = self.joiner.row(record)
                if row is not None:
                    yield behind, f"{behind.shard}_{behind.row}", row
        if self.options.on_error != "raise" and (report := self.faults.report()):
            logger.warning("%s of %s: %s", self.split, self.release.tree.name, report)

    def place_of(self, start: int, shards: Sequence[str] | None = None, epoch: int = 0) -> Place:
        """The place of row number `start`, found in the row index.

        Args:
            start: Counts from 0 in the order in which rows come.
            shards: All that [`Quintuples.shards`] gives, in the order in which they are read; by default, in that one.
            epoch: Tells this epoch's shuffle from others.

        Raises:
            OptionError: The split has fewer rows.
        """
        numbers = [_numbers(shard) for shard in shards or self.shards()]
        if self.options.is_published_order and self._config.asks:
            return self._published_place(start, [number for number, _ in numbers])
        rows = self.rows_per_shard(epoch)
        return Place(*self._shard_and_row(start, [rows[number] for number, _ in numbers]))

    def _published_place(self, start: int, shards: Sequence[int]) -> Place:
        numbers, offsets = self.index.image_numbers, self.index.offsets
        chosen = np.flatnonzero(
            np.isin(numbers, self._chosen_images[0])
        )  # rows of the config, as in the file
        # A row belongs to the shard in which the records of its scan begin that lie together with its own.
        runs = np.flatnonzero(np.diff(numbers, prepend=-1))
        heads = offsets[runs[np.searchsorted(runs, chosen, side="right") - 1]]
        borders = [share(self.index.size, *_numbers(shard))[1] for shard in self.shards()]
        owners = np.searchsorted(borders, heads, side="right")
        rows = np.bincount(owners, minlength=len(borders))
        shard, passed = self._shard_and_row(start, rows[shards].tolist())
        if not passed:
            return Place(shard)
        last = int(chosen[np.searchsorted(owners, shards[shard]) + passed - 1])
        return Place(shard, passed, self.index.span(last)[1], self.index.images[numbers[last]])

    def _shard_and_row(self, start: int, rows: Sequence[int]) -> tuple[int, int]:
        """The shard that row number `start` lies in, and how many rows of that shard come before it."""
        ends = [0, *accumulate(rows)]
        if not 0 <= start < ends[-1]:
            raise OptionError(f"start={start} is not a row of {self.split}, which has {ends[-1]:,} rows.")
        shard = bisect_right(ends, start) - 1
        return shard, start - ends[shard]

    def rows_per_shard(self, epoch: int = 0) -> list[int]:
        """How many rows each shard of the split gives."""
        rows = self._held_by_shards(epoch)
        if self.options.equal_steps is None:
            return rows
        target = max(rows) if self.options.equal_steps == "pad" else min(rows)
        if not min(rows):
            raise OptionError(
                f"equal_steps={self.options.equal_steps!r} is not possible: {rows.count(0)} of the {len(rows)} shards "
                f"of {self.split} have no rows. Pass num_shards= with a number that ranks times workers divide and "
                "that is not larger than the number of scans."
            )
        return [target] * len(rows)

    def _held_by_shards(self, epoch: int) -> list[int]:
        """How many rows each shard of the split has, before steps are made equal."""
        shards = [_numbers(shard) for shard in self.shards()]
        if not self._config.asks:
            return [
                high - low for low, high in (share(len(self.release.scans(self.split)), *s) for s in shards)
            ]
        return [int(self._rows_per_image[self._images_of(*shard, epoch)].sum()) for shard in shards]

    # --- scans ---------------------------------------------------------------------------------------------------

    def _scans(
        self, epoch: int, shards: Sequence[tuple[int, int]], place: Place
    ) -> Iterator[tuple[Passed, str, dict[str, Any]]]:
        scans = self.release.scans(self.split)
        seed = self.options.shuffle
        order = range(len(scans)) if seed is None else permutation(len(scans), seed, epoch)
        target = self._equal_rows(epoch) if self.options.equal_steps else None
        for shard in range(place.shard, len(shards)):
            low, high = share(len(scans), *shards[shard])
            end = high - low if target is None else target
            for passed in range(place.row if shard == place.shard else 0, end):
                scan = scans[order[low + passed % (high - low)]]
                row = self.joiner.scan_row(scan)
                if row is not None:
                    yield Passed(shard, passed + 1), scan.scan_id, row

    # --- published order -----------------------------------------------------------------------------------------

    def _in_order(
        self, shards: Sequence[tuple[int, int]], place: Place
    ) -> Iterator[tuple[Passed, RawRecord]]:
        """Records as they stand in the file. Shards that lie end to end there are read in one go."""
        size = self.release.tree.size(self.path)
        ranges = [share(size, *shard) for shard in shards]
        shard, passed = place.shard, place.row
        resume = (place.offset, place.image) if place.offset else None
        while shard < len(ranges):
            beyond = shard + 1
            while beyond < len(ranges) and ranges[beyond][0] == ranges[beyond - 1][1]:
                beyond += 1
            low, high = ranges[shard][0], ranges[beyond - 1][1]
            whole = (low, high) == (0, size) and resume is None
            index = (
                IndexBuilder(self.release.dataset.question_of) if whole and self.known_index is None else None
            )
            for head, record in read_records(self.release.tree, self.path, low, high, resume):
                if index is not None:
                    index.add(record)
                while head is not None and not head.begins_before(ranges[shard][1]):
                    shard, passed = shard + 1, 0
                image = record.value.get("image")
                if self.joiner.is_chosen(image):
                    passed += 1
                    yield Passed(shard, passed, record), record
            if index is not None:
                keep_index(self.release, self.path, index)
            shard, passed, resume = beyond, 0, None

    # --- with the index ------------------------------------------------------------------------------------------

    def _indexed(
        self, epoch: int, shards: Sequence[tuple[int, int]], place: Place
    ) -> Iterator[tuple[Passed, RawRecord]]:
        """Records in our shuffle, or an equal number of each shard, or both."""
        target = self._equal_rows(epoch) if self.options.equal_steps else None
        for shard in range(place.shard, len(shards)):
            passed = place.row if shard == place.shard else 0
            images = self._images_of(*shards[shard], epoch)
            rows = int(self._rows_per_image[images].sum())
            while passed < (rows if target is None else target):
                for record in self._from(images, shards[shard][0], epoch, passed % rows):
                    passed += 1
                    yield Passed(shard, passed), record
                    if passed == target:
                        break

    def _equal_rows(self, epoch: int) -> int:
        """How many rows every shard gives; says what that costs."""
        equal, all_rows = self.rows_per_shard(epoch), sum(self._held_by_shards(epoch))
        change = sum(equal) - all_rows
        what = f"{change:,} rows are repeated" if change > 0 else f"{-change:,} rows are dropped"
        logger.warning("equal steps: %s of %s, which has %s rows", what, self.split, f"{all_rows:,}")
        return equal[0]

    def _from(
        self, images: npt.NDArray[np.int64], shard: int, epoch: int, passed: int
    ) -> Iterator[RawRecord]:
        """Records of these images but for the first `passed`, a window of a few scans at a time."""
        seed, window = self.options.shuffle, self.options.window
        for start in range(0, len(images), window):
            rows = [self.index.rows_of(int(image)) for image in images[start : start + window]]
            pairs = [
                (scan, place)
                for scan, (image, some) in enumerate(zip(images[start : start + window], rows, strict=True))
                for place, times in enumerate(self._repeats(int(image), some, epoch))
                for _ in range(times)
            ]
            if passed >= len(pairs):
                passed -= len(pairs)
                continue
            if seed is not None:
                pairs = [pairs[position] for position in permutation(len(pairs), seed, epoch, shard, start)]
            record = scan_reader(self.release.tree, self.path, self.index, rows)
            yield from starmap(record, pairs[passed:])
            passed = 0

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
        if self._weights is None:
            return self.index.counts
        images = range(len(self.index.images))
        return np.array(
            [total(self._weights[self.index.rows_of(image)].tolist()) for image in images], dtype=np.int64
        )

    def _repeats(self, image: int, rows: npt.NDArray[np.int64], epoch: int) -> list[int]:
        """How often each record of an image comes."""
        if self._weights is None:
            return [1] * len(rows)
        return repeats(self._weights[rows].tolist(), self.options.shuffle or 0, epoch, image)

    def _images_of(self, number: int, count: int, epoch: int) -> npt.NDArray[np.int64]:
        """Numbers, in the index, of the images of a shard, in the order of their rows."""
        images, heads = self._chosen_images
        if self.options.shuffle is not None:
            low, high = share(len(images), number, count)
            return images[self._permutation(epoch)[low:high]]
        low, high = share(self.index.size, number, count)
        return images[(heads >= low) & (heads < high)]

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        """The order of the images in an epoch, made once for all shards."""
        made_for, order = self._order
        if made_for != epoch:
            order = permutation(len(self._chosen_images[0]), self.options.shuffle or 0, epoch)
            self._order = epoch, order
        return order

    @cached_property
    def _chosen_images(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Numbers of the images whose rows the config has, and where the first record of each begins."""
        chosen = [n for n, image in enumerate(self.index.images) if self.joiner.is_chosen(image)]
        images = np.array(chosen, dtype=np.int64)
        return images, self.index.first_offsets[images]


def _numbers(shard: str) -> tuple[int, int]:
    number, _, count = shard.partition("/")
    return int(number), int(count)
