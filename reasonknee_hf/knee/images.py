"""Where the volumes of scans lie below `images=`: the release's own layout, an OAI download, or what others use.

| layout | example |
|---|---|
| the release's, `.nii.gz` or `.nii`, any root above it | `data/images/9000001/00M/20041222_10300001_2.nii.gz` |
| by scan id | `9000001_00M_20041222_10300001_2.nii.gz` |
| by visit, where the tables list one knee of it | `9000001/00M.nii.gz` |
| DICOM as the OAI's disks hold it | `0.C.2/9000001/20041222/10300001/` with files such as `001` |
| the same in one tar a series, as NDA's download tool brings it | `9000001/20041222/10300001.tar.gz` |
| a CSV with the columns `scan_id` and `path` | |
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.errors import AmbiguousPathError, ReleaseError
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.trees.open_tree import open_tree
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.volumes.dicom_files import series_url

GRID = "PIR"
"""Axis codes of the published masks as stored: slices last, left-right (source: public OAI label volumes)."""

VOLUMES = (".nii.gz", ".nii")
_SERIES = re.compile(r"(?:^|/)(\d{7}/\d{8}/[^/]+?)(?:\.tar|\.tar\.gz|\.tgz)?$")
"""A series of the archive by the end of its path: participant, date of the study, series."""


_ADVICE = "Remove the others, or give a CSV with the columns scan_id and path as images=."


class ImageFolder:
    """Finds the volumes of scans below one root. Opening it costs a listing, in which series are not looked into.

    Args:
        root: Folder, URL or dataset id as for `source`, or the path of a CSV.
        scans: All scans that may be asked for.

    Raises:
        ReleaseError: The root cannot be listed, or the CSV cannot be read or names a file that is not there.
    """

    def __init__(self, root: str, scans: Iterable[Scan]) -> None:
        self.root = os.fspath(root)
        listed = list(scans)
        self._visits = Counter((scan.patient_id, scan.visit) for scan in listed)
        is_map = self.root.lower().endswith(".csv")
        self._mapped = _read_map(Path(self.root), {scan.scan_id for scan in listed}) if is_map else {}
        self.tree: Tree | None = None if is_map else open_tree(self.root, closed=_SERIES)
        self._paths = list(self.tree.entries()) if self.tree else list(self._mapped.values())
        self._resolver = PathResolver(path for path in self._paths if path.endswith(VOLUMES) and not is_map)
        self._by_end: dict[str, list[str]] = {}
        for path in self._paths:
            match = _SERIES.search(path)
            end = match[1] if match else "/".join(path.split("/")[-2:])
            self._by_end.setdefault(end, []).append(path)

    def find(self, scan: Scan) -> str | None:
        """URL of the scan's volume; `None` if it is not here.

        Raises:
            AmbiguousPathError: Several files fit, or a file of a visit of which the tables list several scans.
        """
        path = self.path(scan)
        if path is None:
            return None
        url = self.tree.url(path) if self.tree else path
        return url if path.endswith(VOLUMES) else _dicom_url(scan, url)

    def path(self, scan: Scan) -> str | None:
        """The file, or the folder of a series, that holds the scan's volume, as the tree or the CSV names it."""
        if self.tree is None:
            return self._mapped.get(scan.scan_id)
        for stem in (scan.image_filepath.removesuffix(".gz").removesuffix(".nii"), scan.scan_id):
            for ending in VOLUMES:
                if (path := self._resolver.find(stem + ending)) is not None:
                    return path
        path = self._only(scan, [f"{scan.patient_id}/{scan.visit}{ending}" for ending in VOLUMES])
        if path is not None and self._visits[scan.patient_id, scan.visit] > 1:
            raise AmbiguousPathError(
                f"{path} below {self.root} may be of any scan of {scan.patient_id} at {scan.visit}. {_ADVICE}"
            )
        return path or self._only(scan, [series_key(scan)])

    def _only(self, scan: Scan, ends: list[str]) -> str | None:
        """The only path with one of these ends; of a folder and its tar, the folder."""
        paths = [path for end in ends for path in self._by_end.get(end, ())]
        places = {re.sub(r"(\.tar|\.nii)?(\.gz)?$|\.tgz$", "", path): path for path in reversed(paths)}
        if len(places) > 1:
            some = ", ".join(sorted(places.values())[:4])
            raise AmbiguousPathError(f"{scan.scan_id} may be any of {some} below {self.root}. {_ADVICE}")
        return next(iter(places.values()), None)

    def place(self, path: str) -> str:
        """Where a path of the release would lie: what is opened if a volume is nowhere."""
        return f"{(self.tree.identity if self.tree else self.root).rstrip('/')}/{path}"

    def check(self, scans: Iterable[Scan]) -> None:
        """Makes sure that it holds a volume of any of the scans.

        Raises:
            ReleaseError: It does not.
        """
        listed = list(scans)
        with suppress(AmbiguousPathError):  # it is there, and named when it is asked for
            if not listed or any(self.find(scan) is not None for scan in listed):
                return
            raise ReleaseError(
                f"images={self.root!r} holds a volume of none of the scans that the tables list: neither a file such"
                f" as {listed[0].image_filepath}, nor a folder or tar.gz of DICOM such as {series_key(listed[0])}. It"
                f" holds {', '.join(self._paths[:3]) or 'nothing'}. Point images= at the folder above them, or at a CSV"
                " with the columns scan_id and path."
            )


def _dicom_url(scan: Scan, series: str) -> str:
    # The archive's accession number is a prefix and the series; source: names of public copies of the archive.
    wanted = {
        "PatientID": scan.patient_id,
        "StudyDate": scan.study,
        "AccessionNumber": scan.series,
        "SeriesNumber": scan.series,
        "SeriesDescription": f"3D_DESS_{scan.knee_side.upper()}",
    }
    return series_url(series, scan.image_filepath.removesuffix(".gz").rpartition("/")[2], GRID, wanted)


def series_key(scan: Scan) -> str:
    """`participant/date/series`: how the archive names the scan's series."""
    return f"{scan.patient_id}/{scan.study}/{scan.series}"


def series_of(path: str) -> str | None:
    """`participant/date/series` at the end of a path or URL; `None` if it is no series of the archive."""
    match = _SERIES.search(path.strip().rstrip("/"))
    return match[1] if match else None


def _read_map(path: Path, known: set[str]) -> dict[str, str]:
    try:
        rows = list(csv.DictReader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"images={str(path)!r} cannot be read ({error}); give a CSV in UTF-8") from None
    if not rows or not {"scan_id", "path"} <= rows[0].keys():
        raise ReleaseError(f"images={str(path)!r} must be a CSV with the columns scan_id and path, and rows.")
    found = {}
    for line, row in enumerate(rows, 2):
        scan_id, target = (row["scan_id"] or "").strip(), (row["path"] or "").strip()
        if scan_id not in known or scan_id in found:
            what = "twice" if scan_id in found else "in no split table"
            raise ReleaseError(f"{path}, line {line}: the scan {scan_id!r} is {what}.")
        if "://" not in target:
            target = os.path.abspath(path.parent / target)
            if not os.path.exists(target):
                raise ReleaseError(f"{path}, line {line}: there is no {target}.")
        found[scan_id] = target
    return found
