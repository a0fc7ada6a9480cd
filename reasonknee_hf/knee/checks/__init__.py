"""The checks of a release of 3DReasonKnee, for `verify`."""

from __future__ import annotations

from reasonknee_hf.knee.checks.annotation_checks import Digests, check_annotations, questions_of_scans
from reasonknee_hf.knee.checks.box_evidence import BoxEvidence
from reasonknee_hf.knee.checks.file_checks import check_contents, check_files
from reasonknee_hf.knee.checks.image_checks import check_images
from reasonknee_hf.knee.checks.table_checks import PAPER_SCANS, PUBLISHED_SCANS, Tables, check_tables
from reasonknee_hf.knee.checks.volume_checks import check_volumes
from reasonknee_hf.knee.release import Release
from reasonknee_hf.verify.findings import Findings
from reasonknee_hf.verify.verify_report import SplitCounts


def check(
    release: Release, deep: bool, limit_scans: int | None, found: Findings
) -> tuple[tuple[SplitCounts, ...], int, BoxEvidence | None]:
    """Looks for defects; see `verify`.

    Returns:
        The counts of each split, how many scans were read, and the evidence about boxes if some were.
    """
    unusable = check_contents(release, found)
    tables = check_tables(release, unusable, found)
    files = check_files(release, tables, unusable, found)
    if release.image_folder is not None:
        check_images(tables, files, deep, found)
    digests = check_annotations(release, tables, unusable, found)
    scans_read, evidence = 0, None
    if deep:
        scans_read, evidence = check_volumes(release, tables, files, digests, limit_scans, found)
    counts = tuple(_counts(split, tables, digests.get((split, "all"))) for split in tables.scans)
    return counts, scans_read, evidence


def _counts(split: str, tables: Tables, digests: Digests | None) -> SplitCounts:
    return SplitCounts(
        split=split,
        scans=len(tables.scans[split]),
        scans_with_records=0 if digests is None else len(questions_of_scans(digests)),
        records=0 if digests is None else len(digests),
        published_scans=PUBLISHED_SCANS[split],
        paper_scans=PAPER_SCANS[split],
    )
