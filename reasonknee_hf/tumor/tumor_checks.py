"""What `verify` looks for in a release of DeepTumorVQA 2.0."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from datasets.utils import tqdm

from reasonknee_hf.dataset.joining import BROKEN
from reasonknee_hf.dataset.record_forms import records_of
from reasonknee_hf.errors import AnnotationError, IntegrityError, ReasonKneeError
from reasonknee_hf.tumor import tumor_files as files
from reasonknee_hf.tumor.question_types import QUESTIONS, subtype_of
from reasonknee_hf.tumor.tumor_release import TumorRelease, scan_named
from reasonknee_hf.tumor.tumor_rows import to_row, turns_row
from reasonknee_hf.verify.findings import Findings
from reasonknee_hf.verify.verify_report import SplitCounts
from reasonknee_hf.volumes.volume import KneeVolume

PUBLISHED_SCANS = {"test": 991, "train": 8334, "val_pool": 8334}
PUBLISHED_RECORDS = {"test": 10_000, "train": 428_050, "val_pool": 47_933}
"""By the card and the public repository."""
_MANIFEST = "MANIFEST.sha256"
_PATHS = ("slice_path", "video_path", "whole_slice_path", "whole_video_path")


def check(
    release: TumorRelease, deep: bool, limit_scans: int | None, found: Findings
) -> tuple[tuple[SplitCounts, ...], int, None]:
    """Looks for defects; see `verify`. With `deep`, volumes are opened and compared with what records say of them.

    Returns:
        The counts of each split, how many volumes were read, and `None`: there are no boxes.
    """
    _check_manifest(release, deep, found)
    asked: dict[str, set[Any]] = {}
    counts = []
    for split, path in ((s, p) for kind in ("benchmark", "train") for s, p in release.files[kind].items()):
        told = list(_records(release, split, path, found))
        asked[split] = {record.get("question") for record in told}
        scans = {record.get("image_id") for record in told}
        listed = {scan.scan_id for scan in release.scans(split)}
        counts.append(
            SplitCounts(
                split,
                len(listed),
                len(scans & listed),
                len(told),
                PUBLISHED_SCANS[split],
                PUBLISHED_SCANS[split],
            )
        )
        _check_records(release, split, told, found)
    for split, path in release.files["agent_sft"].items():
        for record in _records(release, split, path, found, agents=True):
            for problem in turns_row(record, None, None, None)[1]:
                found.add("record-unfit", f"{path}: {problem}", part=problem.column)
    if {"test", "val_pool"} <= asked.keys():
        _check_shared(release, found)
    read = _check_volumes(release, limit_scans, found) if deep else 0
    return tuple(counts), read, None


def _records(
    release: TumorRelease, split: str, path: str, found: Findings, agents: bool = False
) -> Iterator[dict[str, Any]]:
    try:
        for record in tqdm(records_of(release, path), desc=path, unit="record", leave=False):
            yield record.value
    except AnnotationError as error:
        found.add("annotation-broken", str(error))
    except IntegrityError as error:
        found.add("file-unreadable", str(error))


def _check_records(release: TumorRelease, split: str, told: list[dict[str, Any]], found: Findings) -> None:
    types: dict[str, set[str]] = defaultdict(set)
    subtypes: Counter[int] = Counter()
    ids = Counter(record.get("qid") for record in told)
    for name, count in ids.items():
        if count > 1 and name is not None:
            found.add("record-duplicate", f"{name} ({split})", count=count - 1)
    for record in told:
        name = record.get("qid") or record.get("image_id")
        scan = release.scan_of(record.get("image_id"), split) or scan_named(record.get("image_id"), split)
        for problem in to_row(record, scan, None, None)[1]:
            found.add("record-unfit", f"{name} ({split}): {problem}", part=problem.column)
        if (subtype := subtype_of(record.get("question_subtype"))) is not None:
            subtypes[subtype.id] += 1
        for member, value in record.items():
            if value is not None and value == value:  # NaN stands for null
                types[member].add(type(value).__name__)
        if split == "test":
            if scan.scan_id not in release.own_volumes:
                found.add("volume-missing", f"{name}: benchmark/ct/{scan.scan_id}/ct.nii.gz")
            for member in _PATHS:
                path = record.get(member)
                if isinstance(path, str) and path not in release.tree.entries():
                    found.add("path-absent", f"{name}: {member} {path}", part=member)
    for member, kinds in types.items():
        if len(kinds) > 1:
            found.add("types-mixed", f"{split}: {member} is {', '.join(sorted(kinds))}", part=member)
    if len(told) != PUBLISHED_RECORDS[split]:
        found.add(
            "count-differs", f"{split}: {len(told):,} records, {PUBLISHED_RECORDS[split]:,} are published"
        )
    if split == "test":
        for number, subtype in QUESTIONS.items():
            if subtypes[number] != subtype.benchmark:
                found.add(
                    "count-differs",
                    f"{subtype.name}: {subtypes[number]:,} questions, {subtype.benchmark:,} are published",
                    part="subtype",
                )


def _check_shared(release: TumorRelease, found: Findings) -> None:
    """The benchmark was drawn from the pool: whoever trains on the pool has no outside test."""
    keys: dict[str, set[tuple[Any, Any]]] = {}
    for split, kind in (("test", "benchmark"), ("val_pool", "train")):
        records = _records(release, split, release.files[kind][split], Findings())
        keys[split] = {(record.get("image_id"), record.get("question")) for record in records}
    for image, question in sorted(keys["test"] & keys["val_pool"], key=str):
        found.add("shared-with-pool", f"{image}: {str(question)[:60]}", part="question")
    for image in sorted({i for i, _ in keys["test"]} & {i for i, _ in keys["val_pool"]}, key=str):
        found.add("shared-with-pool", str(image), part="volume")


def _check_manifest(release: TumorRelease, deep: bool, found: Findings) -> None:
    """Sizes cannot be told from hashes: files of questions are read, all others only with `deep`."""
    if _MANIFEST not in release.tree.entries():
        found.not_checked.append(f"hashes of files: the release has no {_MANIFEST}")
        return
    for line in release.tree.read(_MANIFEST).decode("utf-8", "replace").splitlines():
        digest, _, path = line.partition("  ")
        if path == _MANIFEST:
            continue
        if path not in release.tree.entries():
            found.add("file-unreadable", f"{path} is listed in {_MANIFEST} and absent")
        elif (deep or not path.startswith(("benchmark/ct/", "train/images", "train/videos"))) and (
            hashlib.sha256(release.tree.read(path)).hexdigest() != digest
        ):
            found.add("checksum-differs", path)


def _check_volumes(release: TumorRelease, limit: int | None, found: Findings) -> int:
    scans = list(release.scans("test"))
    if limit is not None and limit < len(scans):
        found.not_checked.append(f"volumes of {len(scans) - limit:,} of {len(scans):,} scans: by request")
        scans = scans[:limit]
    stated = {}
    for record in _records(release, "test", release.files["benchmark"]["test"], Findings()):
        row = to_row(record, scan_named(record.get("image_id")), None, None)[0]
        stated[row["scan_id"]] = row["shape"], row["spacing"]
    for scan in tqdm(scans, desc="volumes", unit="scan", leave=False):
        url = release.find_image(scan)
        if url is None:
            continue
        volume = KneeVolume(url, label=scan.scan_id, across="S")
        volume.stated = stated.get(scan.scan_id)
        try:
            array = volume.array()
        except (*BROKEN, ReasonKneeError) as error:
            found.add("volume-broken", str(error))
        else:
            if array.min() == array.max():
                found.add("volume-empty", f"{scan.scan_id}: {files.SOURCE}")
    return len(scans)
