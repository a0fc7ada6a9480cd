"""A version that was written of a dataset, as a source again: its manifests, and what is kept of its tables.

Manifests say which tables hold what, and where in a table the bytes of each volume lie. Tables of questions are read
once, into files of records in the cache of assets; volumes stay where they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path, PurePosixPath
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

_FORMAT = 4  # of what lies in the cache

Manifest = Mapping[str, Any]
Place = tuple[str, int | None, int | None, str]
"""File, where in it, bytes, name; or a URL alone."""


@dataclass(frozen=True)
class Version:
    """A published version, and the files of records that were made of its tables.

    Args:
        tree: Where it lies.
        fs: Filesystem over those files.
        identity: The same on every machine, wherever they are kept there.
        places: Scan -> where its volume and its mask lie.
        kept: What else was kept.
    """

    tree: Tree
    fs: ReasonKneeFileSystem
    identity: str
    places: Mapping[str, Sequence[Place | None]]
    kept: Mapping[str, Any]

    def urls(self) -> dict[str, list[str | None]]:
        """Scan -> URLs of its volume and its mask."""
        return {
            scan: [None if one is None else _url(self.tree, *one) for one in both]
            for scan, both in self.places.items()
        }


def is_published(tree: Tree, of_releases: Collection[str]) -> bool:
    """Whether a place holds versions that this package wrote, and none of the files that releases have."""
    paths = tree.entries()
    return any(map(MANIFEST.fullmatch, paths)) and not any(path in paths for path in of_releases)


def open_version(
    dataset: Description,
    tree: Tree,
    write: Callable[[Tree, Sequence[Manifest], Path], dict[str, Any]],
) -> Version:
    """Opens a published version.

    Args:
        dataset: What it is a version of.
        tree: Its files.
        write: Writes files of records into a folder, from some manifests; called once, where nothing is kept. Gives
            plain JSON values to keep, among them `places`.

    Raises:
        ReleaseError: It is a version of another dataset, its card names nothing that a manifest tells, or a table is
            not the file that its manifest tells.
        OptionError: The cache of assets cannot be written to.
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
            f"{tree.name}: the card names no table of {dataset.title} that a manifest tells. Push or convert it again,"
            " or load it by the name of the dataset that it is a version of."
        )
    for one in told:
        for _, path, part in tables_of(one):
            if path in tree.entries() and tree.size(path) != part["bytes"]:
                raise _other_file(tree, path)
    key = sha256(repr((_FORMAT, tree.identity, sorted(texts.items()), card)).encode()).hexdigest()[:24]
    folder = our_folder("published", key)
    kept = _kept(folder)
    if kept is None:
        with must_be_kept(folder, f"the tables of {tree.name}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as temporary:
                _write(tree, told, Path(temporary), write)
                with contextlib.suppress(OSError):  # another process was faster
                    shutil.rmtree(folder, ignore_errors=True)
                    os.rename(temporary, folder)
                    os.mkdir(temporary)
        kept = _kept(folder)
        if kept is None:
            raise ReleaseError(f"the tables of {tree.name} could not be kept in {folder}. Try again.")
    fs = ReasonKneeFileSystem(source=str(folder), skip_instance_cache=True)
    assert isinstance(fs.tree, FsspecTree)
    fs.tree.name = tree.name  # what messages speak of is what was asked for, not where its tables are kept
    return Version(tree, fs, f"{tree.identity}#{key}", kept["places"], kept)


def _other_file(tree: Tree, path: str) -> ReleaseError:
    return ReleaseError(
        f"{path} of {tree.name} is not the file that its manifest tells: it was cut, or written by something else. Push"
        " or convert it again, or load it by plain `datasets`."
    )


def _kept(folder: Path) -> dict[str, Any] | None:
    """What was written of a version; `None` if it is not there, or not all of it any more."""
    try:
        kept: dict[str, Any] = json.loads((folder / "places.json").read_text("utf-8"))
        whole = all((folder / path).stat().st_size == size for path, size in kept["files"].items())
        return kept if whole else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(
    tree: Tree,
    told: Sequence[Manifest],
    out: Path,
    write: Callable[[Tree, Sequence[Manifest], Path], dict[str, Any]],
) -> None:
    kept = write(tree, told, out)
    files = (path for path in out.rglob("*") if path.is_file())
    kept["files"] = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
    (out / "places.json").write_text(json.dumps(kept), "utf-8")


def _url(tree: Tree, path: str, start: int | None, size: int | None, name: str) -> str:
    if "://" in path or os.path.isabs(path):
        return path
    return tree.url(path) if start is None or size is None else stretch_url(tree.url(path), start, size, name)


# --- manifests and tables ----------------------------------------------------------------------------------------


def config_of(manifest: Manifest) -> str:
    """The config that it was written of."""
    return str(manifest["provenance"]["options"]["config"])


def tables_of(manifest: Manifest) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Split, path and part of the tables that have rows, in order."""
    for path, part in sorted(manifest["files"].items()):
        if part["rows"]:
            yield re.sub(r"-\d{5}-of-\d{5}-.*", "", path.rpartition("/")[2]), path, part


def volume_places(path: str, part: Mapping[str, Any], row: Mapping[str, Any]) -> list[Place | None]:
    """Where volume and mask of a row of a table of volumes lie: in it, or where the row says."""
    span = (part.get("spans") or {}).get(row["scan_id"], {})
    places: list[Place | None] = []
    for column in ("image", "mask"):
        other = row.get(f"{column}_file") or row.get(f"{column}_url")
        if other is not None:
            places.append((other, None, None, other.rpartition("/")[2]))
        else:
            places.append((path, *span[column]) if column in span else None)
    return places


def volume_rows(tree: Tree, path: str, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Ids of a table of volumes, where those lie that are not in it, and some columns."""
    with fsspec.open(tree.url(path), "rb") as stream, pq.ParquetFile(stream) as file:
        beside = [name for name in file.schema_arrow.names if name.endswith(("_file", "_url"))]
        yield from file.read(columns=["scan_id", *columns, *beside]).to_pylist()


def question_rows(
    tree: Tree, path: str, part: Mapping[str, Any], columns: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Those of some columns that a table of questions has, row by row.

    Raises:
        ReleaseError: It is not the file that the manifest tells.
    """
    data = tree.read(path)
    if sha256(data).hexdigest() != part["sha256"]:
        raise _other_file(tree, path)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        held = [name for name in file.schema_arrow.names if name in columns]
        for batch in file.iter_batches(columns=held, batch_size=4096):
            yield from batch.to_pylist()


# --- datasets whose rows hold the record -------------------------------------------------------------------------


def open_records(
    dataset: Description, tree: Tree, files: Mapping[str, Mapping[str, str]]
) -> tuple[Version, dict[str, dict[str, str]]]:
    """Opens a version of a dataset whose rows have the published record as JSON, in the column `record`.

    Args:
        dataset: The dataset.
        tree: Where its version lies.
        files: Kind of annotations -> split -> path of its file in a release.

    Returns:
        The version, and the files of records in it by kind and split.
    """
    named = {
        kind: {split: str(PurePosixPath(path).with_suffix(".jsonl")) for split, path in some.items()}
        for kind, some in files.items()
    }

    def write(tree: Tree, told: Sequence[Manifest], out: Path) -> dict[str, Any]:
        asked = [one for one in told if one["kind"] == "questions"]
        if not asked:
            raise ReleaseError(f"{tree.name} holds volumes and no questions: plain `datasets` loads it.")
        for path in {path for some in named.values() for path in some.values()}:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
        seen: set[bytes] = set()  # rows of several versions are put together, each once
        for one in asked:
            kind = dataset.configs[config_of(one)].kind or dataset.annotations[0]
            mine: set[bytes] = set()
            for split, path, part in tables_of(one):
                with (out / named[kind][split]).open("a", encoding="utf-8") as file:
                    for record in _records(tree, path, part):
                        key = blake2b(f"{split} {kind} {record}".encode(), digest_size=16).digest()
                        mine.add(key)
                        file.write(record + "\n" if key not in seen else "")
            seen |= mine
        tables = [table for one in told if one["kind"] == "volumes" for table in tables_of(one)]
        found = ((path, part, row) for _, path, part in tables for row in volume_rows(tree, path))
        return {"places": {row["scan_id"]: volume_places(path, part, row) for path, part, row in found}}

    return open_version(dataset, tree, write), named


def _records(tree: Tree, path: str, part: Mapping[str, Any]) -> Iterator[str]:
    for row in question_rows(tree, path, part, ("record",)):
        if row.get("record") is None:
            raise ReleaseError(
                f"{path} of {tree.name} has no column `record` to make records of: plain `datasets` loads it."
            )
        yield row["record"]
