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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.errors import AmbiguousPathError, ReleaseError
from reasonknee_hf.hub.trees.open_tree import open_tree
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.volumes.dicom_files import TARS, series_url

GRID = "PIR"
"""Axis codes of the published masks as stored: slices last, left-right (source: public OAI label volumes)."""

_VOLUMES = (".nii.gz", ".nii")
_SERIES = re.compile(r"(?:^|/)(\d{7}/\d{8}/[^/]+?)(?:\.tar|\.tar\.gz|\.tgz)?$")
"""A series of the archive by the end of its path: participant, date of the study, series."""


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
        self._urls: dict[str, str] = {}
        self._mapped: dict[str, str] = {}
        if self.root.lower().endswith(".csv"):
            self._mapped = _read_map(Path(self.root), {scan.scan_id for scan in listed})
        elif os.path.isdir(self.root):
            self.root = os.path.abspath(os.path.expanduser(self.root))
            self._urls = {path: f"{self.root}/{path}" for path in _local_paths(self.root)}
        else:
            self._urls = _tree_urls(self.root)
        self._resolver = PathResolver(path for path in self._urls if path.endswith(_VOLUMES))
        self._visit_files: dict[str, list[str]] = {}
        self._series: dict[str, list[str]] = {}
        for path in self._urls:
            if path.endswith(_VOLUMES):
                self._visit_files.setdefault("/".join(path.split("/")[-2:]), []).append(path)
            elif match := _SERIES.search(path):
                self._series.setdefault(match[1], []).append(path)

    def __len__(self) -> int:
        """How many volumes and series there are, of whatever scans."""
        return len(self._mapped or self._urls)

    def find(self, scan: Scan) -> str | None:
        """URL of the scan's volume; `None` if it is not here.

        Raises:
            AmbiguousPathError: Several files fit, or a file of a visit of which both knees are listed.
        """
        path = self._mapped.get(scan.scan_id)
        if path is not None:
            return path if path.endswith(_VOLUMES) else self._series_url(scan, path)
        stem = scan.image_filepath.removesuffix(".gz").removesuffix(".nii")
        for name in (stem, scan.scan_id):
            for ending in _VOLUMES:
                found = self._resolver.find(name + ending)
                if found is not None:
                    return self._urls[found]
        found = self._of_visit(scan)
        if found is not None:
            return self._urls[found]
        found = self._only(self._series.get(series_key(scan), []), scan)
        return None if found is None else self._series_url(scan, self._urls[found])

    def place(self, scan: Scan) -> str:
        """Where the scan's volume would lie in the layout of the release: what is opened if it is nowhere."""
        return f"{self.root.rstrip('/')}/{scan.image_filepath.lstrip('./')}"

    def check(self, scans: Iterable[Scan]) -> None:
        """Makes sure that it holds a volume of any of the scans.

        Raises:
            ReleaseError: It does not.
        """
        some = None
        with suppress(AmbiguousPathError):  # it is there, and named when it is asked for
            if any(self.find(some := scan) is not None for scan in scans):
                return
            if some is None:
                return
            examples = ", ".join([*sorted(self._urls)[:3]]) or "nothing"
            raise ReleaseError(
                f"images={self.root!r} holds a volume of none of the scans that the tables list: neither a file such"
                f" as {some.image_filepath}, nor a folder or tar.gz of DICOM such as {series_key(some)}. It holds "
                f"{examples}. Point images= at the folder above them, or at a CSV with the columns scan_id and path."
            )

    def _of_visit(self, scan: Scan) -> str | None:
        files = [self._visit_files.get(f"{scan.patient_id}/{scan.visit}{ending}", []) for ending in _VOLUMES]
        found = self._only([path for some in files for path in some], scan)
        if found is not None and self._visits[scan.patient_id, scan.visit] > 1:
            raise AmbiguousPathError(
                f"{found} below {self.root} may be either knee of {scan.patient_id} at {scan.visit}: the tables list "
                f"several. Name it {scan.scan_id}.nii.gz, or give a CSV with the columns scan_id and path as images=."
            )
        return found

    def _only(self, paths: list[str], scan: Scan) -> str | None:
        """The only one; of one name with several endings the first: folders before tars, packed files before plain."""
        stems = {re.sub(r"(\.tar|\.nii)?(\.gz|\.tgz)?$", "", path): path for path in reversed(paths)}
        if len(stems) > 1:
            raise AmbiguousPathError(
                f"{scan.scan_id} fits several places below {self.root}: {', '.join(sorted(stems.values())[:4])}. "
                "Remove all but one, or give a CSV with the columns scan_id and path as images=."
            )
        return next(iter(stems.values()), None)

    def _series_url(self, scan: Scan, series: str) -> str:
        side = "RIGHT" if scan.knee_side == "right" else "LEFT"
        # The archive's accession number is a prefix and the series; source: names of public copies of the archive.
        wanted = {
            "PatientID": scan.patient_id,
            "StudyDate": scan.study,
            "AccessionNumber": scan.series,
            "SeriesNumber": scan.series,
            "SeriesDescription": f"3D_DESS_{side}",
        }
        name = re.sub(r".*/", "", scan.image_filepath.removesuffix(".gz"))
        return series_url(series, name, GRID, wanted)


def series_key(scan: Scan) -> str:
    """`participant/date/series`: how the archive names the scan's series."""
    return f"{scan.patient_id}/{scan.study}/{scan.series}"


def series_of(path: str) -> str | None:
    """`participant/date/series` at the end of a path or URL; `None` if it is no series of the archive."""
    match = _SERIES.search(path.strip().rstrip("/"))
    return match[1] if match else None


def _local_paths(root: str) -> Iterator[str]:
    """Files below a folder, and folders of series, which are not entered: they hold a million files."""
    entered: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in entered:
            folders.clear()
            continue
        entered.add((state.st_dev, state.st_ino))
        below = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        yield from (prefix + name for name in files)
        series = [name for name in folders if _SERIES.search(prefix + name)]
        folders[:] = sorted(set(folders) - set(series))
        yield from (prefix + name for name in series)


def _tree_urls(root: str) -> dict[str, str]:
    """The same of any other tree: path → URL."""
    tree = open_tree(root)
    urls: dict[str, str] = {}
    for path in tree.entries():
        folder = path.rpartition("/")[0]
        if not path.endswith((*_VOLUMES, *TARS)) and _SERIES.search(folder):
            urls.setdefault(folder, tree.url(path).rpartition("/")[0])
        else:
            urls[path] = tree.url(path)
    return urls


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
