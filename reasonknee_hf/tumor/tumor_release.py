"""One release of DeepTumorVQA 2.0: its volumes, in two repositories, and what is drawn of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reasonknee_hf.dataset.contract import Description, resembled
from reasonknee_hf.dataset.files_release import FileScan, FilesRelease
from reasonknee_hf.errors import (
    FileMissingError,
    ForbiddenError,
    OptionError,
    ReleaseError,
    RemoteMissingError,
)
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.tumor import tumor_files as files


@dataclass(frozen=True)
class TumorScan(FileScan):
    """One CT volume.

    Args:
        drawn: Name of a picture or video that is shipped of it -> its URL.
    """

    drawn: Mapping[str, str] = field(default_factory=dict, compare=False)


def scan_named(image: object, split: str = "") -> TumorScan:
    """The volume of an id; whatever else is given is taken for one."""
    return TumorScan(str(image), f"image_only/{image}/ct.nii.gz", split)


class TumorRelease(FilesRelease):
    """The published layout at one commit, or a part of it in a folder.

    Volumes are looked for under `images=`, then in the release, then in the repository of training volumes, which is
    asked for nothing before one of them is touched.

    Args:
        dataset, fs: As in [`FilesRelease`].
        images: Filesystem over the volumes of training.
        given: Whether the user named it.
    """

    def __init__(
        self, dataset: Description, fs: ReasonKneeFileSystem, images: ReasonKneeFileSystem, given: bool
    ) -> None:
        if not any(path.startswith(files.MARKS) for path in fs.tree.entries()) and (
            other := resembled(dataset, fs.tree.entries())
        ):
            raise ReleaseError(f"{fs.tree.name} is not a release of {dataset.title}. {other}")
        super().__init__(dataset, fs, files.FILES, images)
        self.images = images.source if given else None

    @cached_property
    def own_volumes(self) -> dict[str, str]:
        """Ids of the volumes that the release ships, and their paths."""
        found = (files.VOLUME.fullmatch(path) for path in self.tree.entries())
        return {one[1]: one[0] for one in found if one}

    @cached_property
    def _drawn(self) -> dict[str, dict[str, str]]:
        drawn: dict[str, dict[str, str]] = {}
        for path in self.tree.entries():
            if one := files.DRAWN.fullmatch(path):
                drawn.setdefault(one[2], {})[f"{path.split('/')[2]}/{one[1]}"] = self.tree.url(path)
        return drawn

    @cached_property
    def _train_ids(self) -> list[str]:
        """The volumes of training that the release names: in prose, or by what it ships of them."""
        if files.TRAIN_IDS in self.tree.entries():
            named = files.SCAN_ID.findall(self.tree.read(files.TRAIN_IDS).decode("utf-8", "replace"))
        else:
            found = (files.DRAWN.fullmatch(path) for path in self.tree.entries() if path.startswith("train/"))
            named = [one[2] for one in found if one]
        return [*dict.fromkeys(named)]

    def scans(self, split: str) -> Sequence[Any]:
        """The volumes of a split. Those of the test and of training are known without reading questions."""
        if split not in self._listed:
            if not (known := self._named(split)):
                return super().scans(split)
            self._listed[split] = [self.scan_of(name, split) for name in known]
        return self._listed[split]

    def _named(self, split: str) -> Sequence[str]:
        """The volumes of a split by what the release ships, where that tells."""
        if split == "test":
            return [*self.own_volumes]
        return self._train_ids if split in ("train", "holdout") else ()

    def scan_count(self, split: str) -> int:
        """How many volumes a split has, or about so many."""
        return len(self._named(split)) or super().scan_count(split)

    def scan_of(self, image: object, split: str) -> Any | None:
        """The volume of an id; `None` if it is none."""
        if not isinstance(image, str) or not files.SCAN_ID.fullmatch(image):
            return None
        return TumorScan(image, scan_named(image).file, split, self._drawn.get(image, {}))

    def find_image(self, scan: TumorScan) -> str | None:
        """URL of the volume; `None` if it is nowhere. May list the repository of training volumes.

        Raises:
            ForbiddenError: That repository wants a token, or access that its page gives.
        """
        own = self._own_url(scan)
        if self.images is None and (own is not None or scan.split == "test"):
            return own
        try:
            path = self._volumes_by_id.get(scan.scan_id)
            found = None if path is None else self.volumes.tree.url(path)
        except (ForbiddenError, RemoteMissingError) as error:
            raise type(error)(
                f"{scan.scan_id}: its volume lies in the repository {files.VOLUMES}. Ask for access on"
                f" https://huggingface.co/datasets/{files.VOLUMES} and pass token=, or name a folder with images="
                f" ({error})"
            ) from error
        return found or own

    def _own_url(self, scan: TumorScan) -> str | None:
        own = self.own_volumes.get(scan.scan_id)
        return self.published_url(scan) if own is None else self.tree.url(own)

    @cached_property
    def _volumes_by_id(self) -> dict[str, str]:
        """Paths of the volumes of training: `…/ID/ct.nii.gz`, or files that begin with their id."""
        found: dict[str, str] = {}
        for path in self.volumes.tree.entries():
            *_, folder, file = ("", *path.split("/"))
            one = files.SCAN_ID.match(folder if file.startswith("ct.nii") else file)
            if one is not None and file.endswith((".nii", ".nii.gz")):
                found.setdefault(one[0], path)
        return found

    def image_url(self, scan: TumorScan) -> str:
        """URL of the volume, or where it would lie."""
        if self.images is not None:
            return self.find_image(scan) or self.volumes.unstrip_protocol(scan.file)
        own = self._own_url(scan)
        if own is None and scan.split == "test":
            return self.fs.unstrip_protocol(f"benchmark/ct/{scan.scan_id}/ct.nii.gz")
        return own or self.volumes.unasked_url(scan.file)

    def copy_path(self, scan: TumorScan, column: str) -> str:
        """Where a copy of the volume lies in a folder of copies."""
        return f"ct/{scan.scan_id}/ct.nii.gz"

    def tool_cache(self, name: str) -> dict[str, Any]:
        """What the tools answer, for each volume: `{id: {"segment": {...}, "measure": {...}}}`, as published.

        Args:
            name: `benchmark_oracle`, `benchmark_totalsegmentator` or `training_oracle`.

        Raises:
            OptionError: There is no cache of that name.
            FileMissingError: The release does not hold it.
        """
        if name not in files.TOOL_CACHES:
            raise OptionError(f"Unknown tool cache {name!r}. Valid: {', '.join(files.TOOL_CACHES)}.")
        path = files.TOOL_CACHE.format(name)
        if path not in self.tree.entries():
            raise FileMissingError(f"{self.tree.name} holds no {path}.")
        told: dict[str, dict[str, Any]] = json.loads(self.tree.read(path))
        return told.get("cache", told)
