"""One pass over each annotation file. Of a record stays a digest of a few bytes, not the record."""

from __future__ import annotations

import json
from array import array
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from datasets.utils import tqdm

from reasonknee_hf.dataset.json_array import iter_records, iter_share
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.errors import AmbiguousPathError, AnnotationError, IntegrityError, ReleaseError
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.checks.table_checks import Tables, fold_id
from reasonknee_hf.knee.moaks import QUESTIONS, fold
from reasonknee_hf.knee.records import MARKER, to_row
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import Scan, scan_from_image_path, unlisted_scan
from reasonknee_hf.knee.source_grades import FOLDER, SourceGrades
from reasonknee_hf.verify.findings import Findings

QUESTIONS_PER_SCAN = 62
"""Records of each scan in the published files: the 69 prompts without the seven periarticular ones."""

_UNKNOWN = 1 << 31  # set in the question of a digest where it is a checksum of a prompt that is not known
_MAX_BREAKS = 100


@dataclass(frozen=True)
class Digests:
    """What is kept of the records of one file whose scan is listed; all arrays have one entry a record.

    Args:
        path: The file.
        split: Its split.
        scans: The scans of the release; `keys` count in this list.
        keys: `scan << 32 | question`, the question being its id, or `2**31 |` a checksum of its prompt.
        contents: A hash of prompt, reasoning, answer and diagnosis.
        offsets: Where the record begins in the file.
        boxes: Six numbers each as published, all -1 where there is no box.
    """

    path: str
    split: str
    scans: list[Scan]
    keys: npt.NDArray[np.uint64]
    contents: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.keys)

    def scan(self, place: int) -> Scan:
        """The scan of a record."""
        return self.scans[int(self.keys[place]) >> 32]

    def question(self, place: int) -> int | None:
        """The question of a record; `None` if its prompt is not known."""
        question = int(self.keys[place]) & 0xFFFFFFFF
        return None if question & _UNKNOWN else question

    def name(self, place: int) -> str:
        """The id of a record's row, as far as it is known."""
        return f"{self.scan(place).scan_id}_{self.question(place) or 'x'}"


def check_annotations(
    release: Release, tables: Tables, unusable: set[str], found: Findings
) -> dict[tuple[str, str], Digests]:
    """Reads every annotation file of the release once.

    Args:
        release: Where they lie.
        tables: The scans that they may name.
        unusable: Paths of files that were reported as empty or as pointers; they are not read.
        found: Where defects go.

    Returns:
        Digests by split and kind (`"all"` or `"balanced"`).
    """
    digests: dict[tuple[str, str], Digests] = {}
    scans, sources = list(tables), _source_grades(release, found)
    for split in layout.SPLITS:
        for kind in ("all", "balanced"):
            path = layout.annotation_file(split, kind)
            if path not in release.tree.entries():
                if kind == "all" and split in tables.scans:
                    found.add("annotations-missing", f"{split}: there is no {path}")
            elif split not in tables.scans:
                found.not_checked.append(f"{path}: its split table could not be read")
            elif path not in unusable:
                digests[split, kind] = _Pass(
                    release, tables, scans, split, path, sources if kind == "all" else None, found
                ).run()
    for (split, kind), digest in digests.items():
        _check_repeats(digest, found)
        if kind == "all":
            _check_counts(digest, tables.scans[split], found)
        elif (split, "all") in digests:
            _check_balanced(digest, digests[split, "all"], found)
    return digests


def _source_grades(release: Release, found: Findings) -> SourceGrades | None:
    try:
        sources = SourceGrades(release.tree)
    except (ReleaseError, IntegrityError) as error:
        found.add("table-broken", str(error))
        return None
    if not sources:
        found.not_checked.append(f"grades against their sources: the release has no tables in {FOLDER}")
    return sources or None


class _Pass:
    """One pass over one annotation file."""

    def __init__(
        self,
        release: Release,
        tables: Tables,
        scans: list[Scan],
        split: str,
        path: str,
        sources: SourceGrades | None,
        found: Findings,
    ) -> None:
        self._sources = sources
        self._release, self._tables, self._split, self._path = release, tables, split, path
        self._scans, self._found = scans, found
        self._numbers = {scan.scan_id: number for number, scan in enumerate(scans)}
        self._folded = {fold_id(scan_id): scan_id for scan_id in self._numbers}
        # Arrays of machine words: 24 bytes a record, and 24 for its box.
        self._keys, self._contents, self._offsets = array("Q"), array("q"), array("q")
        self._boxes = array("i")

    def run(self) -> Digests:
        last: tuple[Any, Scan | None] = (None, None)  # records of a scan lie together
        for record in _records(self._release.tree, self._path, self._found):
            image = record.value.get("image")
            if not isinstance(image, str) or image != last[0]:
                last = (image, self._scan_of(image, record))
            elif last[1] is None:
                self._scan_of(image, record)
            self._take(record, last[1])
        return Digests(
            self._path,
            self._split,
            self._scans,
            np.array(self._keys, np.uint64),
            np.array(self._contents, np.int64),
            np.array(self._offsets, np.int64),
            np.array(self._boxes, np.int32).reshape(-1, 6),
        )

    def _where(self, record: RawRecord) -> str:
        return f"{self._path}, byte {record.offset}"

    def _scan_of(self, image: object, record: RawRecord) -> Scan | None:
        """The listed scan of a record; reports why there is none."""
        where = self._where(record)
        if not isinstance(image, str):
            self._found.add("record-unfit", f"{where}: image is {image!r}, not a path", part="image")
            return None
        try:
            scan = self._release.scan_of(image, self._split)
            if scan is not None:
                return scan
            for other in self._tables.scans:
                if other != self._split and self._release.scan_of(image, other) is not None:
                    self._found.add("record-of-other-split", f"{where}: {image} ({other})")
                    return None
        except AmbiguousPathError as error:
            self._found.add("path-ambiguous", f"{where}: {error}")
            return None
        named = scan_from_image_path(image)
        alike = self._folded.get(fold_id(named.scan_id)) if named else None
        if alike is not None:
            self._found.add("ids-alike", f"{where}: {image} is not listed, {alike} is")
        elif self._tables.complete:
            self._found.add("record-without-scan", f"{where}: {image}")
        return None

    def _take(self, record: RawRecord, scan: Scan | None) -> None:
        known = scan or unlisted_scan(record.value.get("image"))
        row, problems = to_row(record.value, known, None, None)
        name = f"{row['id']} ({self._where(record)})" if problems else ""
        for problem in problems:
            kind, part = ("grade-outside", "") if problem.out_of_range else ("record-unfit", problem.column)
            self._found.add(kind, f"{name}: {problem.text}", part=part)
        unfit = {problem.column for problem in problems}
        if row["question_id"] is None and row["prompt"]:
            self._found.add("prompt-unknown", f"{self._where(record)}: {row['prompt'][:60]!r}…")
        if not row["grades"] and "grades" not in unfit:
            self._found.add("grades-missing", f"{row['id']} ({self._where(record)})")
        defects = [*_grade_defects(row), *_answer_defects(row, record.value, known)]
        if scan is not None and self._sources is not None:
            defects += _source_defects(row, scan, self._sources)
        for kind, told in defects:
            self._found.add(kind, f"{row['id']} ({self._where(record)}){told}")
        if row["bbox"] is None and "bbox" not in unfit:
            self._found.add("box-missing", f"{row['id']} ({self._where(record)})")
        if scan is None:
            return
        prompt = row["prompt"] or ""
        question = row["question_id"] or _UNKNOWN | crc32(prompt.encode())
        self._keys.append(self._numbers[scan.scan_id] << 32 | question)
        self._contents.append(hash((prompt, row["cot"], row["answer"], row["final_diagnosis"])))
        self._offsets.append(record.offset)
        self._boxes.extend(row["bbox"] or _raw_box(record.value) or (-1,) * 6)


def _grade_defects(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of a record's grades against the table of questions."""
    if row["prompt"] == "":
        yield "prompt-empty", ""
    question = QUESTIONS.get(row["question_id"])
    if question is None or not row["grades"]:
        return
    own = {fold(key) for key in (question.lesion, question.release_key, question.prompt_key)}
    given = {grade["attribute"]: question.attribute(grade["attribute"]) for grade in row["grades"]}
    for lesion in dict.fromkeys(grade["lesion"] for grade in row["grades"]):
        if fold(lesion) not in own:
            yield "lesion-unknown", f": {lesion!r}, and the question is about {question.release_key!r}"
    for name, attribute in given.items():
        if attribute is None:
            yield "attribute-unknown", f": {name!r}"
    lacking = [attribute.name for attribute in question.attributes if attribute not in given.values()]
    if lacking:
        yield "grades-partial", f": without {', '.join(lacking)}"


def _source_defects(row: Mapping[str, Any], scan: Scan, sources: SourceGrades) -> Iterator[tuple[str, str]]:
    """Grades of a record against those of the tables that they were made from."""
    question = QUESTIONS.get(row["question_id"])
    if question is None:
        return
    for given in row["grades"] or ():
        attribute = question.attribute(given["attribute"])
        known = None if attribute is None else sources.of(scan, question.id, attribute.name)
        if known is not None and given["grade"] not in known:
            told = f": {given['attribute']} {given['grade']}, the tables have {sorted(known) or 'none'}"
            yield "grade-other" if known else "grade-unsourced", told


def _answer_defects(
    row: Mapping[str, Any], record: Mapping[str, Any], scan: Scan
) -> Iterator[tuple[str, str]]:
    """The diagnosis at the end of the answer against that of the record. What is not JSON there is not compared."""
    if not row["answer"]:
        yield "answer-missing", ""
        return
    _, marker, told = row["answer"].rpartition(MARKER)
    if not marker:
        yield "answer-unmarked", ""
        return
    try:
        diagnosis = json.loads(told)
    except ValueError:
        return
    if diagnosis != record.get("final_diagnosis"):
        other, _ = to_row({**record, "final_diagnosis": diagnosis}, scan, None, None)
        # A column that is null does not fit, or is missing, which is told by itself.
        both = [c for c in ("bbox", "grades") if row[c] is not None and other[c] is not None]
        differing = [column for column in both if other[column] != row[column]]
        if differing:
            yield "answer-contradicts", f": in {' and '.join(differing)}"


def _raw_box(record: Mapping[str, Any]) -> list[int] | None:
    """A box that did not fit the schema, if it is six whole numbers: it may be written in another order."""
    diagnosis = record.get("final_diagnosis")
    box = diagnosis.get("bounding_box") if isinstance(diagnosis, dict) else None
    whole = isinstance(box, list) and len(box) == 6 and all(type(n) is int and abs(n) < 2**31 for n in box)
    return box if whole else None


# --- reading -----------------------------------------------------------------------------------------------


def _records(tree: Tree, path: str, found: Findings) -> Iterator[RawRecord]:
    """All records that can be read. Breaks of the file are reported, and reading goes on behind them."""
    size = tree.size(path)
    at = 0
    with tqdm(total=size, unit="B", unit_scale=True, desc=path, leave=False) as bar:
        for _ in range(_MAX_BREAKS):
            last: RawRecord | None = None
            try:
                with closing(_chunks(tree, path, at, bar)) as chunks:
                    if at == 0:
                        records = iter_records(chunks, name=path)
                    else:
                        records = iter_share(chunks, name=path, start=at, stop=size)
                    for last in records:
                        yield last
                return
            except AnnotationError as error:
                found.add("annotation-broken", str(error))
            except IntegrityError as error:
                found.add("file-unreadable", str(error))
                return
            # Behind the last good record, so that the search for the next one steps over the broken one.
            at = at + 1 if last is None else last.offset + last.length
            if at >= size:
                return
            bar.n = at
    found.not_checked.append(f"{path} behind byte {at}: it is broken in {_MAX_BREAKS} places or more")


def _chunks(tree: Tree, path: str, at: int, bar: Any) -> Generator[bytes, None, None]:
    for chunk in tree.stream(path, at) if at else tree.stream(path):
        bar.update(len(chunk))
        yield chunk


# --- after the pass ----------------------------------------------------------------------------------------


def _check_repeats(digests: Digests, found: Findings) -> None:
    """Several records of one scan and question: the same content, or contradictions."""
    order = np.argsort(digests.keys, kind="stable")
    keys = digests.keys[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.empty(0, np.int64)
    stops = np.r_[starts[1:], len(keys)]
    for start, stop in zip(starts[stops - starts > 1], stops[stops - starts > 1], strict=True):
        places = order[start:stop]
        at = ", ".join(str(offset) for offset in digests.offsets[places][:4])
        example = f"{digests.name(places[0])} ({digests.path}, bytes {at})"
        if len(set(digests.contents[places].tolist())) > 1:
            found.add("record-conflict", example)
        else:
            found.add("record-duplicate", example, count=len(places) - 1)


def questions_of_scans(digests: Digests) -> dict[str, int]:
    """Scan id to the number of questions that have a record."""
    numbers, counts = np.unique(np.unique(digests.keys) >> np.uint64(32), return_counts=True)
    pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
    return {digests.scans[number].scan_id: count for number, count in pairs}


def _check_counts(digests: Digests, listed: list[Scan], found: Findings) -> None:
    counts = questions_of_scans(digests)
    for scan in listed:
        count = counts.get(scan.scan_id, 0)
        if count == 0:
            found.add("scan-without-records", f"{scan.scan_id} ({digests.split})")
        elif count != QUESTIONS_PER_SCAN:
            found.add("records-per-scan", f"{scan.scan_id}: {count} ({digests.path})")


def _check_balanced(balanced: Digests, full: Digests, found: Findings) -> None:
    pairs = np.rec.fromarrays([full.keys, full.contents])
    chosen = np.rec.fromarrays([balanced.keys, balanced.contents])
    for place in np.flatnonzero(~np.isin(chosen, pairs)):
        where = f"{balanced.path}, byte {balanced.offsets[place]}"
        found.add("balanced-differs", f"{balanced.name(int(place))} ({where}): not so in {full.path}")
