"""The rows of a job: questions in the schema of the package, or records as they are published."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from reasonknee_hf.dataset.contract import Description, Records, Release, described
from reasonknee_hf.dataset.joining import scan_named
from reasonknee_hf.dataset.json_text import is_unicode
from reasonknee_hf.dataset.shards import read_records, read_values, share
from reasonknee_hf.errors import RecordError
from reasonknee_hf.publish.job import Derived, Job
from reasonknee_hf.publish.parquet import Batch
from reasonknee_hf.publish.volume_files import ScanFiles

logger = logging.getLogger(__name__)

_BATCH_RECORDS = 512
_TEXT_OR_NULL = {str, type(None)}


def question_rows(job: Job, split: str, index: int, count: int) -> Iterator[dict[str, Any]]:
    """The chosen rows of one share of a split, `image` being the volume's URL where pictures are made of it.

    Raises:
        RecordError: With `on_error="raise"`, a record that does not fit; the message names row, file and offset.
        AnnotationError: The file is not the JSON it should be.
    """
    release = job.opened()
    path = release.annotation_path(split, job.annotations)
    rows = _question_rows(job, release, split, path, index, count)
    if job.selection.by_question:
        rows = (row for row in rows if job.selection.keeps_row(row))
    return islice(rows, job.selection.limit)


def _question_rows(
    job: Job, release: Release, split: str, path: str, index: int, count: int
) -> Iterator[dict[str, Any]]:
    drawn = job.derived != Derived()
    config = release.dataset.configs[job.config]
    chosen = None if config.chosen is None else config.chosen(release)
    records, row_of = release.dataset.records(path), config.row or release.dataset.row
    bounds = share(release.tree.size(path), index, count)
    for _, record in read_records(release.tree, path, *bounds, records=records):
        scan, unlisted = scan_named(release, records, records.image_of(record.value), split)
        if chosen is not None and (scan is None or unlisted or scan.scan_id not in chosen):
            continue
        if job.selection.restricts_scans and (scan is None or not job.selection.keeps_scan(scan)):
            continue
        problems = [*unlisted]
        image = ScanFiles(job, scan).image if drawn and scan is not None else None
        mask = release.mask_url(scan) if drawn and job.masks and scan is not None else None
        row, found = row_of(record.value, scan, image, mask)
        problems += found
        if problems and job.on_error != "null":
            text = "; ".join(map(str, problems))
            where = f"row {row['id']} ({path} of {release.tree.name}, record at byte {record.offset})"
            if job.on_error == "skip":
                logger.warning("%s is left out: %s", where, text)
                continue
            raise RecordError(
                f"{where}: {text}. Pass on_error='skip' or on_error='null' to go on without what does not fit."
            )
        for column in config.hidden:
            del row[column]
        yield row


def record_batches(job: Job, split: str, index: int, count: int) -> Iterator[Batch]:
    """The chosen records of one share of a split, as they are published.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    release = job.opened()
    path = release.annotation_path(split, job.annotations)
    bounds = share(release.tree.size(path), index, count)
    dumps = _json_writer()
    columns: defaultdict[str, list[str | None]] = defaultdict(list)
    # Only text is gathered. Objects held until a batch is full would keep the garbage collector at work.
    records = release.dataset.records(path)
    parsed = _storable(job, path, read_values(release.tree, path, *bounds, records=records))
    for values in _chosen_values(job, split, records, parsed):
        for column, cells in _record_columns(values, release, split, records, dumps):
            columns[column] += cells
        if len(columns["scan_id"]) >= _BATCH_RECORDS:
            yield Batch(columns)
            columns = defaultdict(list)
    if columns:
        yield Batch(columns)


def _storable(job: Job, path: str, parsed: Iterator[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Records whose text a column can hold; of others what `on_error` says, and with `"null"` it moves to `other`."""
    if job.on_error == "null":
        yield from parsed
        return
    for values in parsed:
        kept = []
        for value in values:
            texts = {column: value.get(column) for column in job.dataset.record_texts}
            broken = [name for name, one in texts.items() if isinstance(one, str) and not is_unicode(one)]
            if not broken:
                kept.append(value)
                continue
            text = (
                f"the record of {value.get('image')!r} in {path} of {job.opened().tree.name}: half of a surrogate pair "
                f"in {', '.join(broken)}, which no text column can hold"
            )
            if job.on_error == "raise":
                raise RecordError(f"{text}. Pass on_error='skip' or on_error='null' to go on.")
            logger.warning("left out is %s", text)
        yield kept


def _chosen_values(
    job: Job, split: str, records: Records, parsed: Iterator[list[dict[str, Any]]]
) -> Iterator[list[dict[str, Any]]]:
    chosen, left = job.selection, job.selection.limit
    for values in parsed:
        if chosen.restricts_scans:
            values = [
                value
                for value in values
                if chosen.keeps_scan(scan_named(job.opened(), records, records.image_of(value), split)[0])
            ]
        if left is not None:
            values = values[:left]
            left -= len(values)
        if values:
            yield values
        if left == 0:
            return


def _record_columns(
    values: list[dict[str, Any]],
    release: Release,
    split: str,
    records: Records,
    dumps: Callable[[Any], str],
) -> Iterator[tuple[str, list[str | None]]]:
    dataset = release.dataset
    cells = {column: _texts([value.get(column) for value in values]) for column in dataset.record_texts}
    named = _texts([records.image_of(value) for value in values])
    scans = {image: release.scan_of(image, split) for image in set(named)}
    ids = {image: None if scan is None else scan.scan_id for image, scan in scans.items()}
    yield "scan_id", [ids[image] for image in named]
    for column in dataset.record_values:
        cells[column] = [dumps(value[column]) if column in value else None for value in values]
    yield from cells.items()
    # Each cell that is not null stands for a member: where there are more members, some are in no column.
    if sum(map(len, values)) == sum(len(some) - some.count(None) for some in cells.values()):
        yield "other", [None] * len(values)
    else:
        further = [_further(value, dataset) for value in values]
        yield "other", [dumps(one) if one else None for one in further]


def _texts(values: list[Any]) -> list[str | None]:
    """The values with null in place of what is not text, or is text that no column can hold."""
    if _TEXT_OR_NULL.issuperset(map(type, values)) and is_unicode("".join(filter(None, values))):
        return values
    return [value if isinstance(value, str) and is_unicode(value) else None for value in values]


def _further(record: Mapping[str, Any], dataset: Description) -> dict[str, Any]:
    """What the other columns of a row of `records` do not hold."""
    return {
        key: value
        for key, value in record.items()
        if key not in dataset.record_values
        and not (key in dataset.record_texts and isinstance(value, str) and is_unicode(value))
    }


def published_record(row: Mapping[str, Any], dataset: Description | None = None) -> dict[str, Any]:
    """The record that a row of the config `records` was made of, with the same keys and values."""
    dataset = dataset or described()
    record = {column: row[column] for column in dataset.record_texts if row[column] is not None}
    for column in dataset.record_values:
        if row[column] is not None:
            record[column] = json.loads(row[column])
    record.update(json.loads(row["other"] or "{}"))
    return record


def _json_writer() -> Any:
    """`json.dumps` without blanks and escapes; a faster one where it is installed and can hold the value."""

    def slow(value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if is_unicode(text) else json.dumps(value, separators=(",", ":"))

    try:
        import orjson
    except ImportError:
        return slow

    def fast(value: Any) -> str:
        try:
            text = str(orjson.dumps(value), "utf-8")
        except TypeError:  # whole numbers beyond 64 bits, halves of surrogate pairs
            return slow(value)
        return slow(value) if "null" in text else text  # which `orjson` makes of NaN and infinity

    return fast
