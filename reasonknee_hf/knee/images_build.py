"""Writes the volumes of an OAI download in the layout of the release, once: verified, atomic, resumable."""

from __future__ import annotations

import csv
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeAlias

from reasonknee_hf.errors import (
    EndpointError,
    ExtraMissingError,
    OptionError,
    ReasonKneeError,
    ReleaseError,
)
from reasonknee_hf.hub.disk import write_file
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.images import ImageFolder, series_key, series_of
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.volumes.grid import check_equal
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_bytes import chunks, inflater, named_errors, plain
from reasonknee_hf.volumes.voxels import read_header

_Job: TypeAlias = tuple[Scan, str, "str | None", Path]  # the scan, its volume, its mask, the file to write
_UNFINISHED = ".*.part"  # what a killed `write_file` leaves
_INDEXES = ("contents*.csv", "*/contents*.csv", "image03.txt")
_LEVEL = 1  # MRI is mostly noise: higher levels save 3 % and take up to twice as long


@dataclass(frozen=True)
class Outcome:
    """What became of one scan.

    Args:
        scan_id, split, series: The scan; its series as the archive names it.
        state: `made`, `kept` (made by an earlier run), `missing` (not in the download), `found` or `refused`.
        note: Why it was refused, or that there was no mask to verify its grid against.
    """

    scan_id: str
    split: str
    series: str
    state: str
    note: str = ""


def build_images(release: Release, root: str, out: str | Path, workers: int = 1) -> Iterator[Outcome]:
    """Writes `data/images/<patient>/<visit>/<study>_<series>_<side>.nii.gz` below `out` for every scan in a download.

    Every file appears whole or not at all, and only if its grid is that of the published mask. Files of earlier runs
    are kept. A worker holds one volume and its packed bytes.

    Args:
        release: Whose scans and masks.
        root: The download, in any layout of [`ImageFolder`].
        out: Folder to write to; it can then be given as `images=`.
        workers: Processes.

    Returns:
        An [`Outcome`] a scan, as they come.

    Raises:
        ReleaseError: The download holds no volume of any scan.
        EndpointError: A mask cannot be had now. What was made stays; run it again.
        OSError: A file cannot be written.
    """
    if workers < 1:
        raise OptionError(f"workers={workers}: give a number of processes of at least 1.")
    scans = list(release.all_scans())
    folder, target = ImageFolder(root, scans), Path(out)
    folder.check(scans)
    for left in target.rglob(_UNFINISHED):
        left.unlink(missing_ok=True)
    jobs: list[_Job] = []
    for scan in scans:
        url, outcome = _found(folder, scan)
        if url is None:
            yield outcome
        else:
            path = layout.from_root(scan.image_filepath).removesuffix(".gz") + ".gz"
            jobs.append((scan, url, release.find_mask(scan), target / path))
    if workers == 1:
        yield from map(_build, jobs)
    else:
        with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
            yield from pool.map(_build, jobs)


def _found(folder: ImageFolder, scan: Scan) -> tuple[str | None, Outcome]:
    try:
        url = folder.find(scan)
    except ReasonKneeError as error:
        return None, _outcome(scan, "refused", str(error))
    return url, _outcome(scan, "missing" if url is None else "found")


def _outcome(scan: Scan, state: str, note: str = "") -> Outcome:
    return Outcome(scan.scan_id, scan.split, series_key(scan), state, note)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel])  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _build(job: _Job) -> Outcome:
    scan, url, mask, target = job
    kept = target.exists()
    url = str(target) if kept else url
    try:
        with named_errors(lambda: f"{scan.scan_id}, {url}", False, url):
            pieces = plain(chunks(url))
            _, start = read_header(pieces)
            note = _check_grid(KneeVolume(url, start, label=scan.scan_id), mask)
            packed = [] if kept else list(_packed(start, pieces))
    except (EndpointError, ExtraMissingError):
        raise
    except ReasonKneeError as error:
        return _outcome(scan, "refused", str(error))
    if not kept:
        write_file(target, *packed)
    return _outcome(scan, "kept" if kept else "made", note)


def _check_grid(volume: KneeVolume, url: str | None) -> str:
    """What is to be said of a grid that cannot be verified."""
    if url is None:
        _ = volume.affine  # readable, and with a place
        return "its grid is not verified: the release has no mask of it"
    mask = KneeVolume(url, mask=True, label=volume.label)
    check_equal(volume.grid, mask.grid, f"the mask {url}")
    return ""


def _packed(start: bytes, rest: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """The file in gzip, byte for byte the same whenever it is made."""
    packer = inflater().compressobj(level=_LEVEL, wbits=31)
    yield packer.compress(start)
    yield from (packer.compress(piece) for piece in rest)
    yield packer.flush()


# --- what is there and what is not -----------------------------------------------------------------------------


def list_images(release: Release, root: str, indexes: Iterable[str] = ()) -> tuple[list[Outcome], list[str]]:
    """What of the split tables is in a download, and what to fetch.

    Args:
        release: Whose scans.
        root: The download.
        indexes: `contents.*.csv` of OAI disks or NDA's `image03.txt`; those that lie in the download by default.

    Returns:
        Outcomes with the state `found` or `missing` (`refused` where several files fit), and for each missing one what
        the index calls its series, such as an address for the download tool; without an index the series itself.
    """
    scans = list(release.all_scans())
    folder = ImageFolder(root, scans)
    found = [_found(folder, scan)[1] for scan in scans]
    lying_there = chain.from_iterable(Path(root).glob(name) for name in _INDEXES)
    addresses = dict(chain.from_iterable(map(_index_rows, [Path(path) for path in indexes] or lying_there)))
    return found, [addresses.get(one.series, one.series) for one in found if one.state == "missing"]


def _index_rows(path: Path) -> Iterator[tuple[str, str]]:
    """Series and address of each row of an index, whatever its other columns; NDA's second header row is none."""
    try:
        lines = path.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ReleaseError(f"the index {path} cannot be read: {error}") from None
    rows = csv.reader(lines, delimiter="\t" if "\t" in (lines or [""])[0] else ",")
    header = [name.strip().casefold() for name in next(rows, [])]
    column = next((header.index(name) for name in ("image_file", "folder") if name in header), None)
    if column is None:
        raise ReleaseError(
            f"{path} is no index of the archive: it has neither a column Folder (contents.*.csv of OAI disks) nor "
            f"image_file (image03.txt of NDA), but {', '.join(header[:8])}."
        )
    for row in rows:
        if len(row) > column and (series := series_of(row[column])) is not None:
            yield series, row[column].strip()
