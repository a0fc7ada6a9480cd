"""Volumes and masks of published versions: once a scan, as the bytes of the published files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.dataset.joining import BROKEN, insist_on_broken
from reasonknee_hf.errors import VolumeMissingError
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.places import Place
from reasonknee_hf.publish.schema import scan_features
from reasonknee_hf.volumes import volume_bytes as source
from reasonknee_hf.volumes.decode import check_file

logger = logging.getLogger(__name__)


class ScanFiles:
    """Where the volume and the mask of a scan lie, and what to do where they do not.

    Raises:
        VolumeMissingError: With `on_error="raise"`, one that the tables name is nowhere.
    """

    def __init__(self, job: Job, scan: Any) -> None:
        self.job = job
        self.scan = scan

    @cached_property
    def image(self) -> str | None:
        """URL of the volume; `None` where there is none and that is accepted."""
        url = self._release.find_image(self.scan)
        if url is None:
            self._accept_missing("volume", self._release.image_url(self.scan))
        return url

    @cached_property
    def mask(self) -> str | None:
        """URL of the mask; `None` where the release names none, or there is none and that is accepted."""
        named = self._release.mask_url(self.scan) if self.job.masks else None
        if named is None:
            return None
        url = self._release.find_mask(self.scan)
        if url is None:
            self._accept_missing("mask", named)
        return url

    @property
    def urls(self) -> dict[str, str | None]:
        """Column → URL."""
        return {"image": self.image, "mask": self.mask} if self.job.masks else {"image": self.image}

    @property
    def complete(self) -> bool:
        """Whether nothing that the tables name is missing."""
        wants_mask = self.job.masks and self._release.mask_url(self.scan) is not None
        return self.image is not None and (self.mask is not None or not wants_mask)

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return sum(file_size(url) for url in self.urls.values() if url is not None)

    @property
    def _release(self) -> Release:
        return self.job.opened()

    def _accept_missing(self, what: str, named: str) -> None:
        if self.job.on_error == "raise":
            searched = [self._release.images] if self._release.images and what == "volume" else []
            places = " or ".join([*searched, self._release.tree.name])
            raise VolumeMissingError(
                f"{self.scan.scan_id}: the {what} {named} is not in {places}. Give the folder or "
                "URL that holds the volumes as images=, or choose volumes='none', or go on without it by "
                "on_error='skip' (the scan is left out of the volumes) or on_error='null'."
            )


def plan_shards(job: Job, scans: Sequence[Any]) -> list[tuple[str, ...]]:
    """Ids of consecutive scans whose files fit into one shard; a larger scan gets one of its own."""
    shards: list[list[str]] = []
    size = job.limits.shard
    for scan in scans:
        files = ScanFiles(job, scan)
        if job.on_error == "skip" and not files.complete:
            logger.warning("%s is left out of the volumes: a file of it is missing", scan.scan_id)
            continue
        weight = 1000 if job.volumes == "reference" else files.size
        if not shards or size + weight > job.limits.shard:
            shards.append([])
            size = 0
        shards[-1].append(scan.scan_id)
        size += weight
    return [tuple(shard) for shard in shards]


def files_state(job: Job, scans: Iterable[Any], *, masks: bool) -> str:
    """A hash of which volumes and masks of some scans are there, and of their size and age or hash."""
    release = job.opened()
    digest = sha256()
    for scan in scans:
        for url in (release.find_image(scan), release.find_mask(scan) if masks else None):
            digest.update(f"{scan.scan_id} {None if url is None else _file_state(url)}\n".encode())
    for part in release.mask_parts if masks else ():
        digest.update(f"{part} {_file_state(release.tree.url(part))}\n".encode())
    return digest.hexdigest()


def _file_state(url: str) -> tuple[int | str, ...]:
    if source.is_local(url):
        return source.identity(url)[:2]
    filesystem, name = url_to_fs(url)
    return file_size(url), filesystem.ukey(name)


def volume_rows(job: Job, split: str, scan_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row a scan, by the way that the job keeps volumes.

    Raises:
        VolumeFormatError, VolumeDataError: With `on_error="raise"`, a file that cannot be read. With `"skip"` its scan
            is left out, with `"null"` its column is null.
    """
    scans = {scan.scan_id: scan for scan in job.opened().scans(split)}
    for scan_id in scan_ids:
        files = ScanFiles(job, scans[scan_id])
        columns = job.dataset.scan_row(scans[scan_id], None, None)
        row: dict[str, Any] = {name: columns[name] for name in scan_features(job.dataset)}
        broken = False
        for column, url in files.urls.items():
            name = column + {"embed": "", "files": "_file", "reference": "_url"}[job.volumes]
            row[name] = None
            if url is None:
                continue
            try:
                if job.volumes == "embed":
                    row[name] = embedded(url)
                elif job.volumes == "files":
                    row[name] = copied(url, job, column, scans[scan_id])
                else:
                    row[name] = reference(url, job.opened())
            except BROKEN as error:
                insist_on_broken(error, job.opened())
                accept_broken(job, f"{scan_id}, {base_name(url)}", error)
                broken = True
        if not (broken and job.on_error == "skip"):
            yield row


def accept_broken(job: Job, what: str, error: Exception) -> None:
    """Logs that a file cannot be read; with `on_error="raise"`, raises the error again and says what it is about."""
    if job.on_error == "raise":
        raise type(error)(
            f"{what}: {error}. Fetch the file again, or go on without it by on_error='skip' (the scan is left out of "
            "the volumes) or on_error='null'."
        ) from error
    logger.warning("going on without %s: %s", what, error)


def embedded(url: str) -> dict[str, Any]:
    """The bytes of a file, which must be NIfTI, under its base name."""
    return {"bytes": read_volume(url), "path": base_name(url)}


def copied(url: str, job: Job, column: str, scan: Any) -> str:
    """Writes the bytes of a file beside the tables, atomically; returns its path below the root."""
    path = job.opened().copy_path(scan, column)
    if base_name(url).endswith(".nii"):
        path = path.removesuffix(".gz")
    relative = f"{job.volumes_name}/{path}"
    target, content = Path(job.out, relative), read_volume(url)
    if not target.is_file() or target.stat().st_size != len(content) or target.read_bytes() != content:
        Place(job.out).write(relative, content)
    return relative


def reference(url: str, release: Release) -> str:
    """The URL in the words of the stock clients where they can open it: files of a Hub, but not archive members."""
    from reasonknee_hf.hub.tree import SCHEME, parse_url

    if not url.startswith(SCHEME):
        return url
    address = parse_url(url)
    inside = address.revision == release.sha and address.path not in release.tree.entries()
    if address.revision is None or address.endpoints or inside:
        return url
    return f"hf://datasets/{address.source}@{address.revision}/{address.path}"


def read_volume(url: str) -> bytes:
    """The whole file, unchanged.

    Raises:
        VolumeFormatError: It is not NIfTI.
        VolumeDataError: It is cut or fails its checksum.
    """
    content = b"".join(bytes(chunk) for chunk in source.chunks(url))
    check_file(content)
    return content


def file_size(url: str) -> int:
    """Size in bytes of any file that fsspec opens."""
    filesystem, name = url_to_fs(url)
    return int(filesystem.size(name))


def base_name(url: str) -> str:
    """The last part of a path or of the first hop of a URL chain."""
    return url.partition("::")[0].replace("\\", "/").rpartition("/")[2]
