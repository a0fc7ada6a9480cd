"""One release: where each of its files lies, and which scans belong to which split."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from reasonknee_hf.dataset.contract import Description, resembled
from reasonknee_hf.dataset.files_release import OpenedRelease
from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.errors import FileMissingError, ReleaseError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.images import ImageFolder
from reasonknee_hf.knee.scans import Scan, read_split_csv

logger = logging.getLogger(__name__)


class Release(OpenedRelease):
    """The upstream file tree at one commit, wherever it lies.

    Opening one costs a listing; tables are read when they are asked for, volumes and masks never.

    Args:
        dataset: What it is a release of.
        fs: Filesystem over the release.
        images: Another root for the volumes: a folder or URL in any layout of [`ImageFolder`], such as a download of
            DICOM from the OAI, or a CSV that maps scans to paths.
        high_fidelity: The scans of the `high_fidelity` config instead of those with expert segmentations: scan ids,
            or the path of a CSV with a column `scan_id` or the columns of the split tables.

    Raises:
        ReleaseError: The tree is empty or holds no split table, or `images` holds no volume of any scan.

    Examples:
        >>> release = rk.open_release("sample")
        >>> [scan.scan_id for scan in release.scans("test")]
        ['9000003_00M_20041013_10000041_1', '9000003_00M_20041013_10000052_2']
    """

    def __init__(
        self,
        dataset: Description,
        fs: ReasonKneeFileSystem,
        *,
        images: str | None = None,
        high_fidelity: str | Sequence[str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.fs = fs
        self.images = images
        self._high_fidelity = high_fidelity
        self._scans: dict[str, list[Scan]] = {}
        self._scan_by_path: dict[str, dict[str, Scan]] = {}
        self._listed_images: dict[str, PathResolver] = {}
        paths = self.tree.entries()
        if not any(layout.split_table(split) in paths for split in layout.SPLITS):
            found = (
                f"it holds {len(paths)} other files, e.g. {sorted(paths)[0]!r}" if paths else "it is empty"
            )
            raise ReleaseError(
                f"{self.tree.name} is not a 3DReasonKnee release: {found}, and none of the split tables "
                f"{', '.join(layout.split_table(split) for split in layout.SPLITS)}. "
                f"{resembled(dataset, paths) or 'Point `source` at the root of a release.'} Or use source='sample'."
            )
        if self.image_folder is not None:
            self.image_folder.check(self.all_scans())

    def __getstate__(self) -> dict[str, Any]:
        # What is derived from the tables is larger than they are and quickly made again.
        kept = ("dataset", "fs", "images", "_high_fidelity", "_scans", "identity", "high_fidelity_ids")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _scan_by_path={}, _listed_images={})

    def _telling(self) -> Iterable[str]:
        return (p for p in self.tree.entries() if p.startswith(("data/split_files/", "data/generate_data/")))

    # --- scans ---------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits whose table the release holds."""
        paths = self.tree.entries()
        return tuple(split for split in layout.SPLITS if layout.split_table(split) in paths)

    def scan_count(self, split: str) -> int:
        """How many scans are listed for `split`."""
        return len(self.scans(split))

    def scans(self, split: str) -> list[Scan]:
        """The scans listed for `split`, in the order of the published table.

        Raises:
            ReleaseError: The table is absent or lacks a column.
        """
        if split not in self._scans:
            path = layout.split_table(split)
            if split not in self.splits:
                raise ReleaseError(
                    f"{self.tree.name} holds no {path}; it has the splits {', '.join(self.splits)}."
                )
            self._scans[split] = read_split_csv(self.tree.read(path), name=path, split=split)
        return self._scans[split]

    def all_scans(self) -> Iterator[Scan]:
        """The scans of all splits."""
        for split in self.splits:
            yield from self.scans(split)

    def scan_of(self, image: object, split: str) -> Scan | None:
        """The scan of `split` whose volume a record names; `None` if the split lists no such volume."""
        if not isinstance(image, str):
            return None
        path = self._image_paths(split).find(image)
        return None if path is None else self._scan_by_path[split][path]

    def _image_paths(self, split: str) -> PathResolver:
        if split not in self._scan_by_path:
            by_path = {layout.from_root(scan.image_filepath): scan for scan in self.scans(split)}
            self._scan_by_path[split] = by_path
            self._listed_images[split] = PathResolver(by_path)
        return self._listed_images[split]

    @cached_property
    def high_fidelity_ids(self) -> frozenset[str]:
        """Ids of the scans of the `high_fidelity` config.

        Raises:
            ReleaseError: The release holds no expert segmentations and no list was given.
        """
        if self._high_fidelity is not None:
            return frozenset(self._listed_ids(self._high_fidelity))
        found = frozenset(self.expert_files)
        if not found:
            raise ReleaseError(
                f"{self.tree.name} holds no expert segmentations under {layout.EXPERT_FOLDER} that name one of its "
                "scans, so it has no high_fidelity config. Pass high_fidelity= with scan ids or a CSV to choose them."
            )
        return found

    @cached_property
    def expert_files(self) -> dict[str, list[str]]:
        """Scan id -> expert segmentation files: those under `data/OAI` that name its patient, study and series."""
        by_patient: dict[str, list[Scan]] = {}
        for scan in self.all_scans():
            by_patient.setdefault(scan.patient_id, []).append(scan)
        found: dict[str, list[str]] = {}
        for path in self.tree.entries():
            if not path.startswith(f"{layout.EXPERT_FOLDER}/"):
                continue
            words = set(re.split(r"[^0-9A-Za-z]+", path))
            for patient in words & by_patient.keys():
                for scan in by_patient[patient]:
                    if scan.study in words and scan.series in words:
                        found.setdefault(scan.scan_id, []).append(path)
        return found

    def expert_masks(self, scan: Scan) -> list[dict[str, Any]]:
        """Expert segmentations of a scan as rows store them; structures are spelt as in `labels` where it has them."""
        known = {name.casefold(): name for name in self.labels}
        masks = []
        for path in self.expert_files.get(scan.scan_id, ()):
            name, ending, _ = path.rpartition("/")[2].partition(".nii")
            if ending:
                structure = known.get(name.replace("_", " ").casefold(), name)
                masks.append({"structure": structure, "mask": {"bytes": None, "path": self.tree.url(path)}})
        return masks

    def _listed_ids(self, chosen: str | Sequence[str]) -> Collection[str]:
        known = {scan.scan_id for scan in self.all_scans()}
        ids = _ids_from_csv(chosen) if isinstance(chosen, (str, Path)) else list(chosen)
        unknown = [scan_id for scan_id in ids if scan_id not in known]
        if unknown or not ids:
            raise ReleaseError(
                f"high_fidelity names {len(unknown)} of {len(ids)} scans that {self.tree.name} does not list, e.g. "
                f"{unknown[0] if unknown else 'none at all'!r}; a scan id is patient_visit_study_series_side."
            )
        return ids

    # --- volumes and masks ---------------------------------------------------------------------------------------

    @cached_property
    def _resolver(self) -> PathResolver:
        return PathResolver(self.tree.entries())

    @cached_property
    def image_folder(self) -> ImageFolder | None:
        """What lies under `images=`."""
        return None if self.images is None else ImageFolder(self.images, self.all_scans())

    def find_image(self, scan: Scan) -> str | None:
        """URL of the scan's volume under `images=` or in the release; `None` if it is in neither."""
        if self.image_folder is not None and (url := self.image_folder.find(scan)) is not None:
            return url
        path = self._resolver.find(scan.image_filepath)
        return None if path is None else self.tree.url(path)

    def image_url(self, scan: Scan) -> str:
        """URL of the scan's volume; where it would lie if it is nowhere, so that opening it says what is missing."""
        path = layout.from_root(scan.image_filepath)
        place = self.fs.unstrip_protocol(path) if self.image_folder is None else self.image_folder.place(path)
        return self.find_image(scan) or place

    def splits_without(self, columns: Collection[str]) -> frozenset[str]:
        """The splits whose records lack one of these columns altogether; none of a release."""
        return frozenset()

    def copy_path(self, scan: Scan, column: str) -> str:
        """Where a copy of the scan's volume or mask lies in a folder of copies: as in `data/`."""
        published = scan.image_filepath if column == "image" else scan.label_filepath or ""
        return layout.from_root(published).removeprefix("data/")

    @cached_property
    def mask_archive(self) -> str | None:
        """The folder in which the members of the mask archive appear; `None` if there is no such archive.

        That is `data/masks`, or, where the pieces lie elsewhere under `data/`, the one folder called `masks`.
        """
        if layout.MASKS_FOLDER in self.fs.archives:
            return layout.MASKS_FOLDER
        name = layout.MASKS_FOLDER.rpartition("/")[2]
        found = [f for f in self.fs.archives if f.startswith("data/") and f.rpartition("/")[2] == name]
        return found[0] if len(found) == 1 else None

    @property
    def mask_parts(self) -> Sequence[str]:
        """Paths of the parts of the mask archive."""
        if self.mask_archive is None:
            return ()
        return [*self.fs.archives[self.mask_archive].parts.paths]

    @cached_property
    def _mask_members(self) -> PathResolver:
        return PathResolver(self.fs.members(self.mask_archive or layout.MASKS_FOLDER))

    def mask_url(self, scan: Scan) -> str | None:
        """URL of the scan's mask without asking whether it exists; `None` if the table names none."""
        if scan.label_filepath is None:
            return None
        path = layout.from_root(scan.label_filepath)
        if self.mask_archive is not None and path not in self.tree.entries():
            # By its place in the archive, whose directory need not be read for that.
            _, _, member = path.rpartition("masks/")
            return self.fs.unstrip_protocol(f"{self.mask_archive}/{member}")
        found = self._resolver.find(scan.label_filepath)
        return self.tree.url(found) if found else self.fs.unstrip_protocol(path)

    def find_mask(self, scan: Scan) -> str | None:
        """URL of the scan's mask if it exists. Reads the directory of the mask archive, once."""
        if scan.label_filepath is None:
            return None
        path = self._resolver.find(scan.label_filepath)
        if path is not None:
            return self.tree.url(path)
        if self.mask_archive is None:
            return None
        member = self._mask_members.find(scan.label_filepath)
        return None if member is None else self.fs.url(f"{self.mask_archive}/{member}")

    # --- annotations and side files ------------------------------------------------------------------------------

    def annotation_path(self, split: str, kind: str = "all") -> str:
        """Path of the annotation array of `split`.

        Raises:
            ReleaseError: The release holds no such file. The message lists the arrays that it holds.
        """
        path = layout.annotation_file(split, kind)
        if path not in self.tree.entries():
            raise ReleaseError(f"{self.tree.name} holds no {path}: {self._arrays_held()}.")
        return path

    def _arrays_held(self) -> str:
        held = [path for path in self.tree.entries() if path.startswith("data/generate_data/")]
        return f"it holds {', '.join(held)}" if held else "there is nothing under data/generate_data"

    def annotated_splits(self, kind: str = "all") -> tuple[str, ...]:
        """The splits that have an annotation array of this kind.

        Raises:
            ReleaseError: No split has one. The message lists the arrays that the release holds.
        """
        paths = self.tree.entries()
        found = tuple(split for split in self.splits if layout.annotation_file(split, kind) in paths)
        if not found:
            raise ReleaseError(f"{self.tree.name} holds none of the arrays {kind!r}: {self._arrays_held()}.")
        return found

    @cached_property
    def labels(self) -> dict[str, int]:
        """Structure name -> label id of the masks, from `labels.json`; empty if the release has none."""
        if layout.LABELS_FILE not in self.tree.entries():
            logger.warning("%s holds no %s: mask labels have no names", self.tree.name, layout.LABELS_FILE)
            return {}
        return {str(name): int(value) for name, value in self.read_json(layout.LABELS_FILE).items()}

    def question_files(self) -> dict[str, Mapping[str, Any]]:
        """The published question files by name without ending."""
        prefix = f"{layout.QUESTION_FOLDER}/"
        paths = [p for p in self.tree.entries() if p.startswith(prefix) and p.endswith(".json")]
        return {path[len(prefix) : -len(".json")]: self.read_json(path) for path in sorted(paths)}

    def read_json(self, path: str) -> dict[str, Any]:
        """One small JSON file of the release, which must hold an object."""
        try:
            value = json.loads(self.tree.read(path).decode("utf-8-sig"))
        except ValueError as error:
            raise ReleaseError(f"{path} of {self.tree.name} is not JSON: {error}.") from None
        if not isinstance(value, dict):
            raise ReleaseError(f"{path} of {self.tree.name} holds a {type(value).__name__}, not an object.")
        return value


def _ids_from_csv(path: str | Path) -> list[str]:
    file = Path(path)
    if not file.is_file():
        raise FileMissingError(
            f"high_fidelity={str(path)!r} is not a file. Pass a CSV, or a list of scan ids."
        )
    content = file.read_bytes()
    table = csv.DictReader(content.decode("utf-8-sig").splitlines())
    if "scan_id" in (table.fieldnames or ()):
        return [row["scan_id"].strip() for row in table]
    return [scan.scan_id for scan in read_split_csv(content, name=str(path), split="high_fidelity")]
