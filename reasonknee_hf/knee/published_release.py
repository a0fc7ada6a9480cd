"""A version that `convert` or `push` wrote, as a release again: the same rows, volumes and masks by key.

Its manifests say which tables hold what, and where in a table the bytes of each volume lie. Tables of questions are
read once, into tables and records as they were published, in the cache of assets; volumes stay where they are. Of
several versions in one place the rows are put together, each once.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from reasonknee_hf.dataset.contract import MANIFEST, Description
from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.hub.disk import must_be_kept, our_folder
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.fs.stretch import stretch_url
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.trees.folder_tree import FsspecTree
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import SIDES, Scan, scan_from_image_path

logger = logging.getLogger(__name__)

_RICHEST = ("full", "records", "high_fidelity", "bench")
_SCAN = ("patient_id", "visit", "study", "series", "knee_side")
_FORMAT = 3  # of what lies in the cache

_as_json = json.JSONEncoder(ensure_ascii=False).encode

Place = tuple[str, int | None, int | None, str]  # file, where in it, bytes, name; or a URL alone


class PublishedRelease(Release):
    """A release whose volumes and masks lie in the tables of a published version, or beside them."""

    def __init__(
        self,
        dataset: Description,
        fs: ReasonKneeFileSystem,
        urls: Mapping[str, Sequence[str | None]],
        lacking: Collection[str],
        identity: str,
        published_in: Tree,
        **options: Any,
    ) -> None:
        self._urls = dict(urls)
        self.published_in = published_in
        self.identity = identity
        self._lacking = frozenset(lacking)
        super().__init__(dataset, fs, **options)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_urls": self._urls, "_lacking": self._lacking, "published_in": self.published_in,
        }  # fmt: skip

    def splits_without(self, columns: Collection[str]) -> frozenset[str]:
        """The splits that were written without the columns that give the answer away."""
        return self._lacking if columns else frozenset()

    def find_image(self, scan: Scan) -> str | None:
        """URL of the volume under `images=` or in the version; `None` if it is in neither."""
        return super().find_image(scan) or self._urls.get(scan.scan_id, (None, None))[0]

    def find_mask(self, scan: Scan) -> str | None:
        """URL of the mask; `None` if the version has none."""
        return self._urls.get(scan.scan_id, (None, None))[1]

    def mask_url(self, scan: Scan) -> str | None:
        """The same."""
        return self.find_mask(scan)


def is_published(tree: Tree) -> bool:
    """Whether a place holds versions that this package wrote, and no release."""
    paths = tree.entries()
    return any(map(MANIFEST.fullmatch, paths)) and not any(
        path.startswith("data/split_files/") for path in paths
    )


def open_published(dataset: Description, tree: Tree, **options: Any) -> PublishedRelease:
    """Opens a published version as a release.

    Args:
        dataset: What it is a version of.
        tree: Its files.
        options: As in [`Release`].

    Raises:
        ReleaseError: Its card names nothing that a manifest tells.
    """
    paths = [path for path in tree.entries() if MANIFEST.fullmatch(path)]
    texts = {path: tree.read(path) for path in paths}
    told = [json.loads(text) for text in texts.values()]
    told = [one for one in told if one.get("dataset") in (None, dataset.name)]  # older ones name none
    # Of several the card says which are in use. One version whose files are there needs no card.
    alone = len({one["kind"] for one in told}) == len(told) == len(paths)
    card = ""
    if not alone or any(path not in tree.entries() for one in told for path in one["files"]):
        card = tree.read("README.md").decode("utf-8", "replace") if "README.md" in tree.entries() else ""
        told = [one for one in told if any(pattern in card for pattern in one["patterns"])]
    if not told:
        raise ReleaseError(
            f"{tree.name}: the card names no table that a manifest tells. Push or convert it again."
        )
    key = sha256(repr((_FORMAT, tree.identity, sorted(texts.items()), card)).encode()).hexdigest()[:24]
    folder = our_folder("published", key)
    kept = _kept(folder)
    if kept is None:
        with must_be_kept(folder, f"the tables of {tree.name}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as temporary:
                _write(tree, told, Path(temporary))
                with contextlib.suppress(OSError):  # another process was faster
                    shutil.rmtree(folder, ignore_errors=True)
                    os.rename(temporary, folder)
                    os.mkdir(temporary)
        kept = _kept(folder)
        if kept is None:
            raise ReleaseError(f"the tables of {tree.name} could not be kept in {folder}. Try again.")
    urls = {
        scan: [None if one is None else _url(tree, *one) for one in both]
        for scan, both in kept["places"].items()
    }
    for split, count in kept["left"].items():
        logger.warning(
            "%s: %d rows of %s that only its version without answers has are left out; plain `datasets` loads them",
            *(tree.name, count, split),
        )
    if options.get("high_fidelity") is None:
        options["high_fidelity"] = kept["experts"] or None
    fs = ReasonKneeFileSystem(source=str(folder), skip_instance_cache=True)
    assert isinstance(fs.tree, FsspecTree)
    fs.tree.name = tree.name  # what messages speak of is what was asked for, not where its tables are kept
    identity = f"{tree.identity}#{key}"  # the same on every machine, wherever its tables are kept there
    return PublishedRelease(dataset, fs, urls, kept["lacking"], identity, tree, **options)


def _kept(folder: Path) -> dict[str, Any] | None:
    """What was written of a version; `None` if it is not there, or not all of it any more."""
    try:
        kept: dict[str, Any] = json.loads((folder / "places.json").read_text("utf-8"))
        return (
            kept
            if all((folder / path).stat().st_size == size for path, size in kept["files"].items())
            else None
        )
    except (FileNotFoundError, NotADirectoryError):
        return None


def _url(tree: Tree, path: str, start: int | None, size: int | None, name: str) -> str:
    if "://" in path or os.path.isabs(path):
        return path
    return tree.url(path) if start is None or size is None else stretch_url(tree.url(path), start, size, name)


def _write(tree: Tree, manifests: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Writes tables of scans, records and places of volumes in the layout of a release."""
    scans: dict[str, dict[str, Scan]] = {}
    places: dict[str, list[Place | None]] = {}
    for one in (one for one in manifests if one["kind"] == "volumes"):
        for split, path, part in _tables(one):
            for row in _volume_rows(tree, path, part):
                image = _image_path(row)
                scan = scan_from_image_path(image, split)
                if scan is not None:
                    scans.setdefault(split, {})[image] = scan
                    places[scan.scan_id] = [row["image"], row["mask"]]
    asked = [one for one in manifests if one["kind"] == "questions"]
    asked.sort(key=lambda one: _RICHEST.index(_config(one)))
    for folder in ("data/split_files", "data/generate_data"):
        (out / folder).mkdir(parents=True)
    experts: set[str] = set()
    left: dict[str, int] = {}
    lacking = []
    for split in dict.fromkeys(split for one in asked for split, _, _ in _tables(one)):
        versions = [one for one in asked if any(split == name for name, _, _ in _tables(one))]
        if _config(versions[0]) == "bench":
            lacking.append(split)
        with (out / layout.annotation_file(split)).open("w", encoding="utf-8") as file:
            file.write("[")
            rows = _rows(tree, versions, split, experts, left)
            for number, (image, scan, record) in enumerate(rows):
                file.write(",\n" * (number > 0) + record)
                if scan is not None:
                    scans.setdefault(split, {}).setdefault(image, scan)
            file.write("]")
    for split, listed in scans.items():
        with (out / layout.split_table(split)).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(layout.SPLIT_HEADER)
            for image, scan in listed.items():
                _, mask = places.get(scan.scan_id) or [None, None]
                label = "" if mask is None else f"../data/masks/{scan.scan_id}.nii.gz"
                side = SIDES.index(scan.knee_side) + 1
                told = [scan.patient_id, scan.visit, scan.study, scan.series, side]
                table.writerow([*told, "-", f"..{image}", label])
    labels = next((one["labels"] for one in manifests if one.get("labels")), None)
    if labels:
        (out / layout.LABELS_FILE).parent.mkdir(parents=True, exist_ok=True)
        (out / layout.LABELS_FILE).write_text(json.dumps(labels), "utf-8")
    kept: dict[str, Any] = {"places": places, "lacking": lacking, "left": left, "experts": sorted(experts)}
    files = (path for path in out.rglob("*") if path.is_file())
    kept["files"] = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
    (out / "places.json").write_text(json.dumps(kept), "utf-8")


def _rows(
    tree: Tree, versions: Sequence[Mapping[str, Any]], split: str, experts: set[str], left: dict[str, int]
) -> Iterator[tuple[str, Scan | None, str]]:
    """Image, scan and record of each row of a split that some versions hold, the richest version first.

    Args:
        tree: Where they lie.
        versions: Their manifests.
        split: Which split.
        experts: Gets the ids of the scans that a version `high_fidelity` holds.
        left: Gets the number of rows that only a version without answers holds, where others have answers.
    """
    seen: set[tuple[str, Any]] = set()
    scan_of = functools.cache(lambda image: scan_from_image_path(image, split))
    for one in versions:
        mine = set()
        for image, prompt, record in _records(
            tree, [path for name, path, _ in _tables(one) if name == split]
        ):
            scan = scan_of(image)
            if scan is not None and _config(one) == "high_fidelity":
                experts.add(scan.scan_id)
            key = (image if scan is None else scan.scan_id, prompt)
            if key in seen:
                continue
            if _config(one) == "bench" and _config(versions[0]) != "bench":
                left[split] = left.get(split, 0) + 1
                continue
            mine.add(key)
            yield image, scan, record
        seen |= mine


def _config(manifest: Mapping[str, Any]) -> str:
    return str(manifest["provenance"]["options"]["config"])


def _tables(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Split, path and part of the tables that have rows, in order."""
    for path, part in sorted(manifest["files"].items()):
        if part["rows"]:
            yield re.sub(r"-\d{5}-of-\d{5}-.*", "", path.rpartition("/")[2]), path, part


def _volume_rows(tree: Tree, path: str, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The columns of a table of volumes that tell scans, and where each volume lies.

    Where the manifest tells all volumes the table is not opened: an id names all that a scan is.
    """
    spans: Mapping[str, Any] = part.get("spans") or {}
    named = [row for scan_id in spans if (row := _told_by_id(scan_id)) and "image" in spans[scan_id]]
    for row in named if len(named) == part["rows"] else _table_rows(tree, path):
        found = spans.get(row["scan_id"], {})
        for column in ("image", "mask"):
            other = row.get(f"{column}_file") or row.get(f"{column}_url")
            if other is not None:
                row[column] = (other, None, None, other.rpartition("/")[2])
            else:
                row[column] = (path, *found[column]) if column in found else None
        yield row


def _told_by_id(scan_id: str) -> dict[str, Any] | None:
    told = dict(zip(_SCAN, scan_id.split("_"), strict=False)) | {"scan_id": scan_id}
    side = told.get("knee_side")
    if side not in ("1", "2"):
        return None
    told["knee_side"] = SIDES[int(side) - 1]
    scan = scan_from_image_path(_image_path(told))
    return told if scan is not None and scan.scan_id == scan_id else None


def _table_rows(tree: Tree, path: str) -> Iterator[dict[str, Any]]:
    with fsspec.open(tree.url(path), "rb") as stream, pq.ParquetFile(stream) as file:
        beside = [name for name in file.schema_arrow.names if name.endswith(("_file", "_url"))]
        yield from file.read(columns=["scan_id", *_SCAN, *beside]).to_pylist()


def _image_path(row: Mapping[str, Any]) -> str:
    side = row["knee_side"]
    digit = 1 + (SIDES.index(side) if isinstance(side, str) else side)
    return f"/data/images/{row['patient_id']}/{row['visit']}/{row['study']}_{row['series']}_{digit}.nii.gz"


def _records(tree: Tree, paths: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
    """The path of the volume, the prompt and the record, as JSON, of each row of some tables."""
    for path in paths:
        with pq.ParquetFile(pa.BufferReader(tree.read(path))) as file:
            names = file.schema_arrow.names
            kept = [
                name
                for name in ("image", "prompt", "cot", "answer", "final_diagnosis", "other")
                if name in names
            ]
            scan = [name for name in _SCAN if name in names]
            for batch in file.iter_batches(columns=[*kept, *scan], batch_size=4096):
                for row in batch.to_pylist():
                    image = row["image"] if "image" in row else _image_path(row)
                    yield str(image), row.get("prompt"), _record(row | {"image": image})


def _record(row: Mapping[str, Any]) -> str:
    texts = (name for name in ("image", "prompt", "cot", "answer") if row.get(name) is not None)
    members = [f'"{name}": {_as_json(row[name])}' for name in texts]
    if row.get("final_diagnosis") is not None:
        members.append(f'"final_diagnosis": {row["final_diagnosis"]}')
    if row.get("other") is not None:
        members.append(row["other"].strip()[1:-1])
    return "{" + ", ".join(members) + "}"
