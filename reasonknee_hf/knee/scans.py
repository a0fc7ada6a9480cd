"""Scans: one knee at one visit, as the published split tables list them.

Every identifier is text from the first byte to the last row: nothing is parsed as a number, so `0012`, `1e5`
and `NA` stay what they are.
"""

from __future__ import annotations

import csv
import gc
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.knee.layout import SPLIT_HEADER

SIDES = ("right", "left")

# Of these only the last may be empty.
SPLIT_COLUMNS = tuple(name for name in SPLIT_HEADER if name != "path")
_DIGITS = {"right": "1", "left": "2"}
_SIDE_SPELLINGS = {"1": "right", "r": "right", "right": "right", "2": "left", "l": "left", "left": "left"}
_IMAGE_PATH = re.compile(
    r"(?:^|/)(?P<patient_id>[^/]+)/(?P<visit>[^/]+)/(?P<study>[^/_]+)_(?P<series>[^/_]+)_(?P<side>[12])\.nii(?:\.gz)?$"
)


@dataclass(frozen=True)
class Scan:
    """One knee at one visit: what one volume and one mask belong to.

    Args:
        patient_id, study, series: Identifiers as published, leading zeros kept.
        visit: `00M` … `48M`.
        knee_side: `right` or `left`.
        image_filepath: Path of the volume as published, e.g.
            `../data/images/9000001/00M/20041222_10300001_2.nii.gz`.
        label_filepath: Path of the mask as published; `None` where the table leaves it empty.
        split: The split whose table lists the scan.
        published_side: The side as the table writes it, e.g. `2` or `LEFT`.
    """

    patient_id: str
    visit: str
    study: str
    series: str
    knee_side: str
    image_filepath: str
    label_filepath: str | None = None
    split: str = ""
    published_side: str = ""

    @cached_property
    def scan_id(self) -> str:
        """`patient_visit_study_series_side`, the side as the published digit: 1 right, 2 left."""
        return "_".join((self.patient_id, self.visit, self.study, self.series, _DIGITS[self.knee_side]))


def read_split_csv(content: bytes, name: str, split: str) -> list[Scan]:
    """The scans that a split table lists, in its order.

    Args:
        content: The file's bytes: UTF-8 with or without byte-order mark, any line ends.
        name: What to call the file in errors.
        split: The split that the table belongs to.

    Raises:
        ReleaseError: The table is empty or not UTF-8, lacks a column, or a row has an empty identifier, an
            unknown side or another number of cells than the header. The message names file and line.
    """
    with _collector_paused():
        rows = _rows(content, name)
        try:
            _, header = next(rows)
        except StopIteration:
            raise ReleaseError(
                f"{name} is empty; a split table begins with a line of column names."
            ) from None
        pick = itemgetter(*_places(header, name))
        scans = []
        for line, row in rows:
            if len(row) != len(header):
                raise ReleaseError(
                    f"{name}, line {line} has {len(row)} cells, the header names {len(header)} columns."
                )
            scans.append(_scan(pick(row), name, line, split))
        return scans


def scan_from_image_path(path: object, split: str = "") -> Scan | None:
    """The scan that the path of a volume names, e.g. `/data/images/9000001/00M/20041222_10300001_2.nii.gz`.

    Returns `None` if `path` is not text of the form `…/PATIENT/VISIT/STUDY_SERIES_SIDE.nii.gz`.
    """
    if not isinstance(path, str) or not (match := _IMAGE_PATH.search(path.replace("\\", "/"))):
        return None
    return Scan(
        patient_id=match["patient_id"],
        visit=match["visit"],
        study=match["study"],
        series=match["series"],
        knee_side=_SIDE_SPELLINGS[match["side"]],
        image_filepath=path,
        split=split,
        published_side=match["side"],
    )


def unlisted_scan(image: object, split: str = "") -> Scan:
    """The scan of a volume that no table lists: what its path tells, else one without any identifier."""
    return scan_from_image_path(image, split) or Scan("", "", "", "", "right", "", None, split)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Thousands of objects that stay make the garbage collector look through all that was ever imported.

    Behind `import torch` that takes three times as long as reading a table does.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rows(content: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cleaned cells of every line that is not blank."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ReleaseError(f"{name}, line {line} is not UTF-8 text; save the table as UTF-8 CSV.") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            cells = list(map(str.strip, row))
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ReleaseError(f"{name}, line {reader.line_num} is not CSV: {error}.") from None


def _places(header: list[str], name: str) -> list[int]:
    """Where the columns of `SPLIT_COLUMNS` stand."""
    found = ", ".join(header)
    missing = [column for column in SPLIT_COLUMNS if column not in header]
    if missing:
        raise ReleaseError(
            f"{name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}. It has: {found}. "
            f"A split table needs: {', '.join(SPLIT_COLUMNS)}."
        )
    repeated = [column for column in SPLIT_COLUMNS if header.count(column) > 1]
    if repeated:
        raise ReleaseError(
            f"{name} has the column {repeated[0]} {header.count(repeated[0])} times. It has: {found}."
        )
    return [header.index(column) for column in SPLIT_COLUMNS]


def _scan(cells: Sequence[str], name: str, line: int, split: str) -> Scan:
    """The scan of a line; `cells` are those of `SPLIT_COLUMNS`."""
    patient_id, visit, study, series, published_side, image_filepath, label_filepath = cells
    if not all(cells[:-1]):
        column = SPLIT_COLUMNS[cells.index("")]
        raise ReleaseError(f"{name}, line {line}: {column} is empty. Fill it in, or remove the line.")
    side = _SIDE_SPELLINGS.get(published_side.casefold())
    if side is None:
        raise ReleaseError(
            f"{name}, line {line}: knee_side is {published_side!r}; "
            "known are 1, R, right (right) and 2, L, left (left)."
        )
    return Scan(
        patient_id,
        visit,
        study,
        series,
        side,
        image_filepath,
        label_filepath or None,
        split,
        published_side,
    )
