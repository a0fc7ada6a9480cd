"""Joins a record with its scan, volume and mask to a row, and applies `on_error`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from reasonknee_hf.errors import RecordError
from reasonknee_hf.release.release import Release
from reasonknee_hf.rows.features import ANSWER_COLUMNS
from reasonknee_hf.rows.json_array import RawRecord
from reasonknee_hf.rows.record import Problem, scan_columns, to_row
from reasonknee_hf.rows.scan import Scan, scan_from_image_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowOptions:
    """What the rows of a config are made of and in which order they come; the fields are options of `load_dataset`."""

    config: str
    masks: bool = True
    annotations: str = "all"
    on_error: str = "raise"
    shuffle: int | None = None
    window: int = 4
    num_shards: int | None = None
    equal_steps: str | None = None

    @property
    def is_published_order(self) -> bool:
        """Whether rows come as they stand in the file, so that no index is needed."""
        return self.shuffle is None and self.equal_steps is None


class _Skipped(Exception):
    """Raised inside this module for a row that `on_error="skip"` leaves out."""


class Joiner:
    """Makes rows of one split.

    Args:
        release: Where scans, volumes and masks are found.
        split: The split whose table lists the scans.
        options: What rows are made of.
    """

    def __init__(self, release: Release, split: str, options: RowOptions) -> None:
        self.release = release
        self.split = split
        self.options = options
        # The rows of a scan come together, or mixed with those of a few others.
        self._volumes = lru_cache(maxsize=64)(self._find_volumes)

    def __reduce__(self) -> tuple[type[Joiner], tuple[Release, str, RowOptions]]:
        return Joiner, (self.release, self.split, self.options)

    def is_chosen(self, image: object) -> bool:
        """Whether the config has the rows of the volume that a record names."""
        if self.options.config != "high_fidelity":
            return True
        scan = self.release.scan_of(image, self.split)
        return scan is not None and scan.scan_id in self._high_fidelity

    @cached_property
    def _high_fidelity(self) -> frozenset[str]:
        return self.release.high_fidelity_ids

    def scan_row(self, scan: Scan) -> dict[str, Any] | None:
        """The row of a scan in the config `scans`; `None` if it is left out."""
        try:
            return self._shown(scan_columns(scan, *self._volumes(scan)))
        except _Skipped as reason:
            logger.warning("scan %s is left out: %s", scan.scan_id, reason)
            return None

    def row(self, record: RawRecord) -> dict[str, Any] | None:
        """The row of a record; `None` if it is left out.

        Raises:
            RecordError: With `on_error="raise"`, the record does not fit; the message names row, file and offset.
        """
        problems: list[Problem] = []
        image = record.value.get("image")
        scan = self.release.scan_of(image, self.split)
        if scan is None:
            scan = scan_from_image_path(image, self.split) or Scan("", "", "", "", "right", "", None, self.split)
            problems.append(Problem("image", f"{image!r} is the volume of no scan that the split lists"))
        try:
            row, found = to_row(record.value, scan, *self._volumes(scan))
            problems += found
            if problems and self.options.on_error != "null":
                self._refuse(record, row["id"], problems)
        except _Skipped as reason:
            logger.warning("%s is left out: %s", self._name(record), reason)
            return None
        return self._shown(row)

    def _refuse(self, record: RawRecord, row_id: str, problems: list[Problem]) -> None:
        text = "; ".join(str(problem) for problem in problems)
        if self.options.on_error == "skip":
            raise _Skipped(text)
        raise RecordError(
            f"row {row_id} ({self._name(record)}): {text}. Pass on_error='skip' or on_error='null' to go on without "
            "what does not fit."
        )

    def _name(self, record: RawRecord) -> str:
        path = self.release.annotation_path(self.split, self.options.annotations)
        return f"{path} of {self.release.tree.name}, record at byte {record.offset}"

    def _find_volumes(self, scan: Scan) -> tuple[str | None, str | None]:
        """URLs of the scan's volume and mask, by `on_error` where one is absent."""
        masks = self.options.masks
        if self.options.on_error == "raise":
            return self.release.image_url(scan), self.release.mask_url(scan) if masks else None
        image = self.release.find_image(scan)
        mask = self.release.find_mask(scan) if masks else None
        if self.options.on_error == "skip":
            if image is None:
                raise _Skipped(f"its volume {scan.image_filepath} is neither in the release nor under images=")
            if masks and mask is None and scan.label_filepath is not None:
                raise _Skipped(f"its mask {scan.label_filepath} is not in the release")
        return image, mask

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        """`row` without the columns that its config does not have."""
        if self.options.config == "bench":
            for column in ANSWER_COLUMNS:
                del row[column]
        if not self.options.masks:
            del row["mask"]
        return row
