"""The rows of a release for scoring: text and numbers alone, whether or not the volumes are there.

The rows of the config `bench` without its volume columns, read straight from the annotation file. What of a
record does not fit is null, as with `on_error="null"`, and is named in the report; volumes are neither
opened nor looked for, since whoever scores need not have them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.records import to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import unlisted_scan

logger = logging.getLogger(__name__)


def release_rows(
    release: Release, split: str = "test", *, annotations: str = "all", scans: int | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of one split; `image` is the stored `{bytes, path}` of the volume, not opened.

    Args:
        release: From `open_release`.
        split: The split.
        annotations: `all` or `balanced`.
        scans: The first so many scans only, at least 1.

    Raises:
        OptionError: There is no such split or kind, or `scans` is below 1.
        ReleaseError: The release has no annotations of that split and kind.
        AnnotationError: The annotation file is not the JSON it should be.
    """
    for option, value, valid in (
        ("split", split, layout.SPLITS),
        ("annotations", annotations, ("all", "balanced")),
    ):
        if value not in valid:
            raise OptionError(f"There is no {option} {value!r}. Valid: {', '.join(valid)}.")
    if scans is not None and scans < 1:
        raise OptionError(f"scans= is a number of scans, at least 1, not {scans}.")
    path = release.annotation_path(split, annotations)
    images: dict[str, str] = {}

    def within(row: dict[str, Any]) -> bool:
        return scans is None or len(images) <= scans

    def rows() -> Iterator[dict[str, Any]]:
        for record in iter_records(release.tree.stream(path), name=f"{path} of {release.tree.name}"):
            named = record.value.get("image")
            scan = release.scan_of(named, split) or unlisted_scan(named, split)
            if scan.scan_id not in images:
                images[scan.scan_id] = release.image_url(scan)
            row, problems = to_row(record.value, scan, images[scan.scan_id], None)
            for problem in problems:
                logger.warning("row %s: %s", row["id"], problem)
            yield row

    return takewhile(within, rows())
