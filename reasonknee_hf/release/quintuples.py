"""From records to rows: joins them with their scans, and applies `on_error`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from reasonknee_hf.errors import RecordError
from reasonknee_hf.release.release import Release
from reasonknee_hf.release.shards import joined, read_records, shard_count, share
from reasonknee_hf.rows.features import ANSWER_COLUMNS
from reasonknee_hf.rows.json_array import RawRecord
from reasonknee_hf.rows.record import Problem, scan_columns, to_row
from reasonknee_hf.rows.scan import Scan, scan_from_image_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowOptions:
    """What the rows of a config are made of; the fields are options of `load_dataset`."""

    config: str
    masks: bool = True
    annotations: str = "all"
    on_error: str = "raise"


class _Skipped(Exception):
    """Raised inside this module for a row that `on_error="skip"` leaves out."""


def shard_names(release: Release, split: str) -> list[str]:
    """`"0/24"`, `"1/24"`, …: the shards of a split, which workers and ranks divide among themselves."""
    count = shard_count(len(release.scans(split)))
    return [f"{index}/{count}" for index in range(count)]


def generate_rows(
    release: Release, split: str, options: RowOptions, shards: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and rows of some shards, scan by scan in published order.

    Raises:
        RecordError: With `on_error="raise"`, a record that does not fit; the message names row, file and offset.
        AnnotationError: The file is not the JSON it should be, whatever `on_error` says.
    """
    # The rows of a scan come together, so a few scans are all that is worth remembering.
    volumes = lru_cache(maxsize=8)(partial(_volumes, release, options))
    numbers = [tuple(int(part) for part in shard.split("/")) for shard in shards]
    if options.config == "scans":
        scans = release.scans(split)
        for low, high in (share(len(scans), index, count) for index, count in numbers):
            for scan in scans[low:high]:
                try:
                    image, mask = volumes(scan)
                    yield scan.scan_id, _without_hidden(scan_columns(scan, image, mask), options)
                except _Skipped as reason:
                    logger.warning("scan %s is left out: %s", scan.scan_id, reason)
        return
    path = release.annotation_path(split, options.annotations)
    chosen = release.high_fidelity_ids if options.config == "high_fidelity" else None
    size = release.tree.size(path)
    for low, high in joined([share(size, index, count) for index, count in numbers]):
        for record in read_records(release.tree, path, low, high):
            scan = release.scan_of(record.value.get("image"), split)
            if chosen is not None and (scan is None or scan.scan_id not in chosen):
                continue
            try:
                yield str(record.offset), _row(release, record, scan, split, path, options, volumes)
            except _Skipped as reason:
                logger.warning("record at byte %d of %s is left out: %s", record.offset, path, reason)


def _row(
    release: Release,
    record: RawRecord,
    scan: Scan | None,
    split: str,
    path: str,
    options: RowOptions,
    volumes: Callable[[Scan], tuple[str | None, str | None]],
) -> dict[str, Any]:
    problems: list[Problem] = []
    image = record.value.get("image")
    if scan is None:
        scan = scan_from_image_path(image, split) or Scan("", "", "", "", "right", "", None, split)
        problems.append(Problem("image", f"{image!r} is the volume of no scan that the split {split} lists"))
    row, found = to_row(record.value, scan, *volumes(scan))
    problems += found
    if problems and options.on_error != "null":
        text = "; ".join(str(problem) for problem in problems)
        if options.on_error == "skip":
            raise _Skipped(text)
        raise RecordError(
            f"row {row['id']} ({path} of {release.tree.name}, record at byte {record.offset}): {text}. "
            "Pass on_error='skip' or on_error='null' to go on without what does not fit."
        )
    return _without_hidden(row, options)


def _volumes(release: Release, options: RowOptions, scan: Scan) -> tuple[str | None, str | None]:
    """URLs of the scan's volume and mask, by `on_error` where one is absent."""
    if options.on_error == "raise":
        return release.image_url(scan), release.mask_url(scan) if options.masks else None
    image = release.find_image(scan)
    mask = release.find_mask(scan) if options.masks else None
    if options.on_error == "skip":
        if image is None:
            raise _Skipped(f"its volume {scan.image_filepath} is neither in the release nor under images=")
        if options.masks and mask is None:
            raise _Skipped(f"its mask {scan.label_filepath} is not in the release")
    return image, mask


def _without_hidden(row: dict[str, Any], options: RowOptions) -> dict[str, Any]:
    """`row` without the columns that its config does not have."""
    if options.config == "bench":
        for column in ANSWER_COLUMNS:
            del row[column]
    if not options.masks:
        del row["mask"]
    return row
