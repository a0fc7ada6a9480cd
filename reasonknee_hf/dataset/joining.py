"""Joins a record with its scan, volume and mask to a row, and applies `on_error`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from reasonknee_hf.dataset.contract import Problem, Records, Release, Scan
from reasonknee_hf.dataset.faults import Fault, FaultLog
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.dataset.selection import Selection
from reasonknee_hf.errors import (
    ArchiveError,
    FileMissingError,
    IntegrityError,
    PointerError,
    RecordError,
    VolumeDataError,
    VolumeFormatError,
    is_outage,
)
from reasonknee_hf.volumes.volume import KneeVolume

OnError = Literal["raise", "skip", "null"]
EqualSteps = Literal["drop", "pad"]

# What may be wrong with a file itself; see `insist_on_broken`.
BROKEN = (FileMissingError, VolumeDataError, VolumeFormatError, ArchiveError, IntegrityError)


def insist_on_broken(error: Exception, release: Release) -> None:
    """Raises an error of the kinds `BROKEN` again unless it is about the release: an outage is never data.

    What an endpoint answers says nothing about the file. Nor does a checksum inside an archive of a Hub: the bytes
    that do not fit may be the endpoint's, and no hash tells.
    """
    hub = (
        release.sha is not None and isinstance(error, IntegrityError) and not isinstance(error, PointerError)
    )
    if hub or is_outage(error):
        raise error


@dataclass(frozen=True)
class RowOptions:
    """What the rows of a config are made of and in which order they come; the fields are options of `load_dataset`."""

    config: str
    masks: bool = True
    annotations: str = "all"
    on_error: OnError = "raise"
    shuffle: int | None = None
    window: int = 4
    num_shards: int | None = None
    equal_steps: EqualSteps | None = None
    balance: str | None = None
    selection: Selection | None = None

    @property
    def is_published_order(self) -> bool:
        """Whether all rows come as they stand in the file, so that no index is needed."""
        return self.shuffle is None and self.equal_steps is None and self.selection is None


class _Joined(NamedTuple):
    """What all records that name the same volume have in common.

    Attributes:
        scan: The scan; one that the split does not list if `problems` says so, and none of a record without volume.
        image: URL of its volume.
        mask: URL of its mask.
        missing: What is wrong with the two files.
        problems: What is wrong with the name.
    """

    scan: Scan | None
    image: str | None
    mask: str | None
    missing: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def scan_named(
    release: Release, records: Records, image: object, split: str
) -> tuple[Any, tuple[Problem, ...]]:
    """The scan whose volume a record names; where the split lists none, what the name tells, and a problem.

    `None` for records that are about no volume.
    """
    if records.image is None:
        return None, ()
    scan = release.scan_of(image, split)
    if scan is not None:
        return scan, ()
    problem = Problem("image", f"{image!r} is the volume of no scan that the split {split} lists")
    return release.dataset.unlisted(image, split), (problem,)


class Joiner:
    """Makes rows of one split.

    Args:
        release: Where scans, volumes and masks are found.
        split: The split whose table lists the scans.
        options: What rows are made of.
        faults: Where what was skipped or emptied is kept.
    """

    def __init__(self, release: Release, split: str, options: RowOptions, faults: FaultLog) -> None:
        self.release = release
        self.split = split
        self.options = options
        self.faults = faults
        # The rows of a scan come together, or mixed with those of a few others.
        self._joined = lru_cache(maxsize=64)(self._join)
        self._config = release.dataset.configs[options.config]
        self._row_of = self._config.row or release.dataset.row

    @cached_property
    def path(self) -> str:
        """The annotation array of the split."""
        return self.release.annotation_path(self.split, self.options.annotations)

    @cached_property
    def records(self) -> Records:
        """What its records name things."""
        return self.release.dataset.records(self.path)

    def __reduce__(self) -> tuple[type[Joiner], tuple[Release, str, RowOptions, FaultLog]]:
        return Joiner, (self.release, self.split, self.options, self.faults)

    def is_chosen(self, image: object) -> bool:
        """Whether the config and the selection have rows of the volume that a record names."""
        selection = self.options.selection
        if self._config.chosen is None and not (selection and selection.restricts_scans):
            return True
        scan = self.release.scan_of(image, self.split)
        return scan is not None and self.keeps_scan(scan)

    def keeps_scan(self, scan: Scan) -> bool:
        """Whether the config and the selection have a scan."""
        if self._config.chosen is not None and scan.scan_id not in self._chosen:
            return False
        return self.options.selection is None or self.options.selection.keeps_scan(scan)

    @cached_property
    def _chosen(self) -> Collection[str]:
        return () if self._config.chosen is None else self._config.chosen(self.release)

    def scan_row(self, scan: Scan) -> dict[str, Any] | None:
        """The row of a scan in the config `scans`; `None` if it is left out."""
        image, mask, missing = self._volumes(scan)
        if missing and not self._goes_on(scan.scan_id, missing):
            return None
        return self._shown(self.release.dataset.scan_row(scan, image, mask))

    def row(self, record: RawRecord) -> dict[str, Any] | None:
        """The row of a record; `None` if it is left out.

        Raises:
            RecordError: With `on_error="raise"`, the record does not fit; the message names row, file and offset.
        """
        image = self.records.image_of(record.value)
        # Only text can be remembered; anything else is the volume of no scan.
        joined = self._joined(image) if isinstance(image, str) else self._join(image)
        row, found = self._row_of(record.value, joined.scan, joined.image, joined.mask)
        if self._config.mask_columns is not None and self.options.masks and joined.scan is not None:
            row.update(self._config.mask_columns(self.release, joined.scan))
        problems, missing = [*joined.problems, *found], joined.missing
        if problems and self.options.on_error == "raise":
            raise RecordError(
                f"row {row['id']} ({self.path} of {self.release.tree.name}, record at byte {record.offset}): "
                f"{'; '.join(map(str, problems))}. Pass on_error='skip' or on_error='null' to go on without what does "
                "not fit."
            )
        if (problems or missing) and not self._goes_on(row["id"], [*problems, *missing]):
            return None
        return self._shown(row)

    def _join(self, image: object) -> _Joined:
        """The scan whose volume a record names, and what else follows from that name alone."""
        scan, problems = scan_named(self.release, self.records, image, self.split)
        volumes = (None, None, ()) if scan is None else self._volumes(scan)
        return _Joined(scan, *volumes, problems)

    def _goes_on(self, row_id: str, problems: Sequence[Problem]) -> bool:
        """Keeps what is wrong with a row; whether the row is given all the same."""
        skips = self.options.on_error == "skip"
        for problem in problems:
            self.faults.add(Fault("skipped" if skips else "nulled", row_id, str(problem)))
        return not skips

    def _volumes(self, scan: Scan) -> tuple[str | None, str | None, tuple[Problem, ...]]:
        """URLs of the scan's volume and mask, and what is wrong with them.

        With `on_error="raise"` nothing is looked at: what is wrong shows when it is touched. Otherwise both are read
        once, here, and are then in the cache of decoded volumes.
        """
        masks = self.options.masks
        if self.options.on_error == "raise":
            return self.release.image_url(scan), self.release.mask_url(scan) if masks else None, ()
        problems: list[Problem] = []
        image = self._readable("image", scan, self.release.image_url(scan), problems)
        mask_url = self.release.mask_url(scan) if masks else None
        mask = None if mask_url is None else self._readable("mask", scan, mask_url, problems)
        return image, mask, tuple(problems)

    def _readable(self, column: str, scan: Scan, url: str, problems: list[Problem]) -> str | None:
        """`url` if the volume there can be read; otherwise `None`, and the reason is added to `problems`."""
        try:
            KneeVolume(url, mask=column == "mask", label=scan.scan_id).load(ahead=True)
        except BROKEN as error:
            insist_on_broken(error, self.release)
            problems.append(Problem(column, str(error)))
            return None
        return url

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        """`row` without the columns that its config does not have."""
        for column in self._config.hidden:
            del row[column]
        if not self.options.masks:
            row.pop("mask", None)
        return row
