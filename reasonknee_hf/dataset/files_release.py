"""A release without tables: records in files, and volumes that lie by the names that the records give them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from reasonknee_hf.dataset.contract import Description
from reasonknee_hf.dataset.index import row_index
from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.dataset.published import is_published, open_records
from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.tree import Tree

_READ_TO_COUNT = 16 << 20  # bytes of records that are read to count volumes
_BYTES_A_SCAN = 64 << 10


@dataclass(frozen=True)
class FileScan:
    """A volume of which nothing is known but what records call it.

    Args:
        scan_id: Tells it from others; also the group that must not be torn apart, since nothing names a patient.
        file: Its path below the root of the volumes.
        split: Where it was met.
    """

    scan_id: str
    file: str
    split: str = ""

    @property
    def patient_id(self) -> str:
        return self.scan_id


class OpenedRelease:
    """What any release is: a dataset, and a filesystem over its files, of which some tell its state."""

    dataset: Description
    fs: ReasonKneeFileSystem

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tree.name!r})"

    @property
    def tree(self) -> Tree:
        """The files."""
        return self.fs.tree

    @property
    def sha(self) -> str | None:
        """Commit of a Hub release; `None` for a folder."""
        return self.tree.sha

    @cached_property
    def identity(self) -> str:
        """What caches are keyed by: the commit, or for a folder size and age of its tables and files of records."""
        if self.sha is not None:
            return self.tree.identity
        digest = sha256()
        for path in self._telling():
            place = self.tree.url(path)
            told = os.stat(place).st_mtime_ns if os.path.isfile(place) else 0
            digest.update(f"{path} {self.tree.size(path)} {told}\n".encode())
        return f"{self.tree.identity}#{digest.hexdigest()[:16]}"

    def _telling(self) -> Iterable[str]:
        """Paths of the tables and files of records."""
        raise NotImplementedError


class FilesRelease(OpenedRelease):
    """Files of records, some for each split. Which volumes a split has is what its records say, by the row index.

    A version that was written of the dataset is one too, where its rows hold the record as JSON in a column `record`.

    Args:
        dataset: What it is a release of.
        fs: Filesystem over the files.
        files: Kind of annotations -> split -> path of its file; those that are not there are left out.
        images: Filesystem over the volumes; the same by default.

    Raises:
        ReleaseError: None of the files is there.
    """

    labels: Mapping[str, int] = {}
    _urls: Mapping[str, Sequence[str | None]] = {}
    mask_parts: Sequence[str] = ()

    def __init__(
        self,
        dataset: Description,
        fs: ReasonKneeFileSystem,
        files: Mapping[str, Mapping[str, str]],
        images: ReasonKneeFileSystem | None = None,
    ) -> None:
        self.volumes = images or fs
        if is_published(fs.tree, [path for some in files.values() for path in some.values()]):
            version, files = open_records(dataset, fs.tree, files)
            fs, self._urls = version.fs, version.urls()
            self.identity, self.published_in = version.identity, version.tree
        self.dataset, self.fs = dataset, fs
        self.images = None if images is None else images.source
        there, wanted = fs.tree.entries(), [path for some in files.values() for path in some.values()]
        self.files = {
            kind: {split: path for split, path in some.items() if path in there}
            for kind, some in files.items()
        }
        if not any(self.files.values()):
            found = f"{len(there)} files, e.g. {next(iter(there))!r}" if there else "nothing"
            raise ReleaseError(
                f"{self.tree.name} is not a release of {dataset.title}: it holds {found}, and none of"
                f" {', '.join(wanted)}. Point source= at the root of one."
            )

    def __getstate__(self) -> dict[str, Any]:
        # What is derived from the files is quickly made again.
        kept = ("dataset", "fs", "volumes", "images", "files", "identity", "_urls", "published_in")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def _telling(self) -> Iterable[str]:
        return dict.fromkeys(path for some in self.files.values() for path in some.values())

    # --- records -------------------------------------------------------------------------------------------------

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have records about volumes."""
        about = self.dataset.records
        found = (split for some in self.files.values() for split, path in some.items() if about(path).image)
        return tuple(dict.fromkeys(found))

    def annotated_splits(self, kind: str = "all") -> tuple[str, ...]:
        """The splits that have a file of this kind."""
        return tuple(self.files.get(kind, ()))

    def annotation_path(self, split: str, kind: str = "all") -> str:
        """The file of the records of a split.

        Raises:
            ReleaseError: There is none; the message names those that there are.
        """
        path = self.files.get(kind, {}).get(split)
        if path is None:
            held = ", ".join(path for some in self.files.values() for path in some.values())
            raise ReleaseError(f"{self.tree.name} has no records {kind!r} of {split!r}: it holds {held}.")
        return path

    def splits_without(self, columns: Collection[str]) -> frozenset[str]:
        """The splits whose records lack one of these columns altogether; none."""
        return frozenset()

    # --- volumes -------------------------------------------------------------------------------------------------

    @cached_property
    def _listed(self) -> dict[str, list[Any]]:
        return {}

    def scans(self, split: str) -> Sequence[Any]:
        """The volumes of a split, in the order of its records, which are read once."""
        if split not in self._listed:
            paths = [some[split] for some in self.files.values() if split in some]
            names = [row_index(self, path).images for path in paths if self.dataset.records(path).image]
            found = (self.scan_of(name, split) for some in names for name in some)
            self._listed[split] = [*dict.fromkeys(scan for scan in found if scan is not None)]
        return self._listed[split]

    def scan_count(self, split: str) -> int:
        """How many volumes a split has. For large files, which would have to be read, an estimate by their size."""
        paths = [some[split] for some in self.files.values() if split in some]
        size = sum(self.tree.size(path) for path in paths if self.dataset.records(path).image)
        return len(self.scans(split)) if size < _READ_TO_COUNT else size // _BYTES_A_SCAN

    def all_scans(self) -> Iterator[Any]:
        """The volumes of all splits."""
        for split in self.splits:
            yield from self.scans(split)

    def scan_of(self, image: object, split: str) -> Any | None:
        """The volume that a record names; `None` if it names none."""
        return self.dataset.unlisted(image, split) if isinstance(image, str) and image else None

    @cached_property
    def _resolver(self) -> PathResolver:
        return PathResolver(self.volumes.tree.entries())

    def find_image(self, scan: Any) -> str | None:
        """URL of the volume; `None` if there is no such file."""
        path = self._resolver.find(scan.file)
        return self.published_url(scan) if path is None else self.volumes.tree.url(path)

    def published_url(self, scan: Any) -> str | None:
        """Where the volume lies in a published version; `None` in a release."""
        return self._urls.get(scan.scan_id, (None,))[0]

    def image_url(self, scan: Any) -> str:
        """URL of the volume; where it would lie if it is nowhere, so that opening it says what is missing."""
        return self.find_image(scan) or self.volumes.unstrip_protocol(scan.file)

    def find_mask(self, scan: Any) -> str | None:
        """Where the mask lies: there is none."""
        return None

    mask_url = find_mask

    def copy_path(self, scan: Any, column: str) -> str:
        """Where a copy of the volume lies in a folder of copies."""
        return str(scan.file)
