"""The kinds of defects that are looked for, and what was found of each."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES = 5
"""How many examples of each kind are kept; counts are always complete."""

LEVELS = ("error", "warning", "note")
"""`error`: rows cannot be had, contradict each other, or leak between splits. `warning`: something is absent
or left over, and what is there can be used. `note`: worth knowing."""

# Kind -> (level, what its count counts). The order is that of the report.
KINDS: dict[str, tuple[str, str]] = {
    # tables
    "table-missing": ("warning", "split tables that the release lacks"),
    "table-broken": ("error", "tables that cannot be read"),
    "scan-twice": ("error", "scans that one split table lists more than once"),
    "table-path": ("error", "rows of tables whose volume path names another scan than their columns"),
    "file-of-two-scans": ("error", "files that several scans name as theirs"),
    "patient-in-two-splits": ("error", "patients that several splits list"),
    "ids-alike": ("error", "ids or paths that differ only in zeros or case"),
    "studies-differ": ("warning", "scans that either all_studies.csv or the split tables leave out"),
    "split-size": ("note", "splits with another number of scans than the published table"),
    # files
    "volumes-absent": ("warning", "listed scans; not one has its volume in the release or under images="),
    "volume-missing": ("error", "listed scans without their volume"),
    "masks-absent": ("warning", "listed scans that name a mask; the release holds none at all"),
    "mask-missing": ("error", "listed scans without the mask that they name"),
    "mask-unnamed": ("warning", "listed scans that name no mask"),
    "path-ambiguous": ("error", "published paths that fit several files, or climb out of the release"),
    "archive-broken": ("error", "archives that cannot be opened"),
    "empty-file": ("error", "files of 0 bytes"),
    "pointer-file": ("error", "files that hold a git-LFS pointer text instead of data"),
    "file-unreadable": ("error", "files whose content is not what the listing announces"),
    "file-unlisted": ("warning", "volumes, masks and expert segmentations that no split table lists"),
    "identical-in-two-splits": ("error", "groups of identical files that belong to scans of several splits"),
    "identical-files": ("warning", "groups of identical files that belong to scans of one split"),
    # records
    "annotations-missing": ("warning", "splits without an annotation file"),
    "annotation-broken": ("error", "places where an annotation file is not the JSON it should be"),
    "record-without-scan": ("error", "records that name no scan of any split table"),
    "record-of-other-split": ("error", "records that name a scan of another split"),
    "record-unfit": ("error", "records that do not fit the row schema"),
    "grade-outside": ("error", "records with a grade outside its space"),
    "record-conflict": ("error", "scans and questions with records that contradict each other"),
    "record-duplicate": ("warning", "records that repeat another one of the same scan and question"),
    "prompt-unknown": ("warning", "records whose prompt is none of the known questions"),
    "prompt-empty": ("error", "records whose prompt is empty"),
    "grade-other": ("warning", "grades that the source tables do not give"),
    "grade-unsourced": ("warning", "grades whose cells in the source tables are all empty"),
    "grades-missing": ("warning", "records without grades"),
    "grades-partial": ("warning", "records without some of the attributes that their question asks for"),
    "lesion-unknown": ("warning", "records whose lesion is not the one of their question"),
    "attribute-unknown": ("warning", "records with an attribute that their question does not have"),
    "answer-missing": ("warning", "records without an answer"),
    "answer-unmarked": ("warning", "records whose answer lacks the marker in front of the diagnosis"),
    "answer-contradicts": ("error", "records whose answer ends in another diagnosis than final_diagnosis"),
    "box-missing": ("note", "records without a box"),
    "types-mixed": ("note", "columns of records whose values are of several types"),
    "path-absent": ("warning", "paths in records to files that the release does not hold"),
    "shared-with-pool": (
        "warning",
        "records of the benchmark that stand in the pool too, or volumes that both have",
    ),
    "count-differs": ("note", "counts that differ from the published ones"),
    "checksum-differs": ("error", "files that differ from the manifest of the release"),
    "scan-without-records": ("warning", "listed scans without a record"),
    "records-per-scan": ("warning", "scans with records to another number of questions than 62"),
    "balanced-differs": ("warning", "records of balanced files that are not in the full file as they are"),
    # volumes
    "volume-broken": ("error", "volumes that cannot be read"),
    "volume-placeless": ("error", "volumes under images= whose header says nothing about where they lie"),
    "volume-other-side": ("error", "volumes under images= that are of the other side"),
    "volume-other-series": ("error", "volumes under images= that are of another series than 3D DESS"),
    "volume-float64": ("warning", "volumes under images= stored as float64, in four times the room"),
    "volume-axes": (
        "note",
        "volumes under images= with other axes than their mask, by a known converter or none",
    ),
    "header-note": ("warning", "headers of volumes and masks that contradict themselves"),
    "volume-empty": ("error", "volumes whose voxels are all zero, or all equal"),
    "mask-broken": ("error", "masks that cannot be read"),
    "mask-empty": ("error", "masks without a single label"),
    "grid-mismatch": ("error", "scans whose mask lies on another grid than their volume"),
    "label-unnamed": ("warning", "masks with labels that labels.json does not name"),
    "box-outside": ("error", "boxes that leave the volume"),
    "box-convention": ("error", "boxes that fit the masks, by another reading than that of the rows"),
    "box-not-structure": ("warning", "boxes that differ from the box of their structure in the mask"),
    "structure-absent": ("warning", "boxes whose structure the mask lacks"),
}


@dataclass(frozen=True)
class Finding:
    """All defects of one kind.

    Args:
        kind: Key of [`KINDS`], e.g. `"volume-missing"`.
        level: `"error"`, `"warning"` or `"note"`.
        title: What `count` counts, e.g. `"listed scans without their volume"`.
        part: Splits a kind further where one is not enough: the column of `record-unfit`; empty elsewhere.
        count: How many there are.
        examples: The first few, each with id, file and byte offset as far as they apply.

    Examples:
        >>> finding = rk.verify_release(rk.open_release("sample")).level("error")[0]
        >>> finding.kind, finding.count
        ('volume-missing', 1)
    """

    kind: str
    level: str
    title: str
    part: str
    count: int
    examples: tuple[str, ...]


class Findings:
    """Collects defects: counts all, keeps a few examples of each kind."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._examples: dict[tuple[str, str], list[str]] = {}
        self.not_checked: list[str] = []
        """What could not be compared, and why, one sentence each."""

    def add(self, kind: str, example: str, *, part: str = "", count: int = 1) -> None:
        """Counts `count` defects of a kind, and keeps the example if there are few so far."""
        key = kind, part
        self._counts[key] = self._counts.get(key, 0) + count
        examples = self._examples.setdefault(key, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def all(self) -> tuple[Finding, ...]:
        """One [`Finding`] for each kind that occurred: errors first, then in the order of [`KINDS`]."""
        places = {kind: place for place, kind in enumerate(KINDS)}
        found = [
            Finding(kind, *KINDS[kind], part, count, tuple(self._examples[kind, part]))
            for (kind, part), count in self._counts.items()
        ]
        return tuple(sorted(found, key=lambda f: (LEVELS.index(f.level), places[f.kind], f.part)))
