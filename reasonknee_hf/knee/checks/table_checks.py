"""The split tables: within each, against each other, and against the table of all studies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from reasonknee_hf.errors import IntegrityError, ReleaseError
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import Scan, read_split_csv, scan_from_image_path
from reasonknee_hf.verify.findings import Findings

PUBLISHED_SCANS = {"train": 5903, "validation": 837, "test": 1280}
"""Rows of the published split tables at commit 7a611f92."""

PAPER_SCANS = {"train": 5977, "validation": 797, "test": 1196}
"""Scans in each split by the paper (arXiv 2510.20967), which the published tables do not match."""


@dataclass(frozen=True)
class Tables:
    """The scans of all split tables that can be read.

    Args:
        scans: Split to its scans, in the order of the table.
        complete: Whether all three tables are there and readable. If not, what seems to be left over may
            belong to a table that is missing.
    """

    scans: Mapping[str, list[Scan]]
    complete: bool

    def __iter__(self) -> Iterator[Scan]:
        for scans in self.scans.values():
            yield from scans


def check_tables(release: Release, unusable: set[str], found: Findings) -> Tables:
    """Reads the split tables and reports what is wrong with them.

    Args:
        release: Where they lie.
        unusable: Paths of files that were reported as empty or as pointers; they are not read.
        found: Where defects go.
    """
    scans: dict[str, list[Scan]] = {}
    for split in layout.SPLITS:
        path = layout.split_table(split)
        if split not in release.splits:
            found.add("table-missing", path)
        elif path not in unusable:
            try:
                scans[split] = release.scans(split)
            except (ReleaseError, IntegrityError) as error:
                found.add("table-broken", str(error))
    tables = Tables(scans, complete=len(scans) == len(layout.SPLITS))
    if not tables.complete:
        missing = ", ".join(layout.split_table(split) for split in layout.SPLITS if split not in scans)
        found.not_checked.append(f"files and records that nobody lists: {missing} could not be read")
    _check_rows(tables, found)
    _check_splits(tables, found)
    _check_alike(tables, found)
    if tables.complete and layout.ALL_STUDIES_FILE not in unusable:
        _check_studies(release, tables, found)
    return tables


def fold_id(text: str) -> str:
    """`text` without what table readers change in ids: case, zeros in front of numbers, `.0` behind them."""
    text = re.sub(r"(?<=\d)\.0+(?=_|$)", "", text.casefold())
    return re.sub(r"\d+", lambda digits: digits[0].lstrip("0") or "0", text)


def _check_rows(tables: Tables, found: Findings) -> None:
    for split, scans in tables.scans.items():
        seen: set[str] = set()
        for scan in scans:
            if scan.scan_id in seen:
                found.add("scan-twice", f"{scan.scan_id} ({layout.split_table(split)})")
            seen.add(scan.scan_id)
            named = scan_from_image_path(scan.image_filepath)
            if named is None or named.scan_id == scan.scan_id:
                continue
            kind = "ids-alike" if fold_id(named.scan_id) == fold_id(scan.scan_id) else "table-path"
            found.add(kind, f"{scan.scan_id} names {scan.image_filepath} ({layout.split_table(split)})")


def _check_splits(tables: Tables, found: Findings) -> None:
    splits_of: dict[str, dict[str, str]] = {}  # patient -> split -> one of its scans
    owners: dict[str, dict[str, str]] = {}  # file -> scan ids
    for scan in tables:
        splits_of.setdefault(scan.patient_id, {}).setdefault(scan.split, scan.scan_id)
        for path in filter(None, (scan.image_filepath, scan.label_filepath)):
            owners.setdefault(layout.from_root(path), {})[scan.scan_id] = scan.split
    for patient, splits in splits_of.items():
        if len(splits) > 1:
            found.add("patient-in-two-splits", f"{patient}: {_pairs(splits)}")
    for path, ids in owners.items():
        if len(ids) > 1:
            found.add("file-of-two-scans", f"{path}: {', '.join(ids)}")
    for split, scans in tables.scans.items():
        if len(scans) != PUBLISHED_SCANS[split]:
            found.add(
                "split-size",
                f"{split}: {len(scans):,} listed, {PUBLISHED_SCANS[split]:,} in the published table, "
                f"{PAPER_SCANS[split]:,} in the paper",
            )


def _check_alike(tables: Tables, found: Findings) -> None:
    """Ids that a reader of numbers would make one: `0012` and `12`, `00M` and `0m`."""
    by_column: dict[str, dict[str, Scan]] = {"patient_id": {}, "visit": {}}
    by_scan: dict[tuple[str, str, str], dict[str, Scan]] = {}
    for scan in tables:
        by_column["patient_id"].setdefault(scan.patient_id, scan)
        by_column["visit"].setdefault(scan.visit, scan)
        # Of equal patient and visit: what differs in those is reported above.
        key = scan.patient_id, scan.visit, fold_id(scan.scan_id)
        by_scan.setdefault(key, {}).setdefault(scan.scan_id, scan)
    for column, values in by_column.items():
        for group in _alike(values):
            found.add("ids-alike", f"{column} {_pairs({value: values[value].split for value in group})}")
    for scans in by_scan.values():
        if len(scans) > 1:
            found.add("ids-alike", f"scan {_pairs({name: scan.split for name, scan in scans.items()})}")


def _alike(values: Iterable[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for value in values:
        groups.setdefault(fold_id(value), []).append(value)
    return [group for group in groups.values() if len(group) > 1]


def _check_studies(release: Release, tables: Tables, found: Findings) -> None:
    path = layout.ALL_STUDIES_FILE
    if path not in release.tree.entries():
        return
    try:
        studies = {scan.scan_id for scan in read_split_csv(release.tree.read(path), path, split="")}
    except (ReleaseError, IntegrityError) as error:
        found.add("table-broken", str(error))
        return
    listed = {scan.scan_id: scan.split for scan in tables}
    for scan_id, split in listed.items():
        if scan_id not in studies:
            found.add("studies-differ", f"{scan_id}: in {layout.split_table(split)} only")
    for scan_id in sorted(studies - listed.keys()):
        found.add("studies-differ", f"{scan_id}: in {path} only")


def _pairs(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{left} ({right})" for left, right in texts.items())
