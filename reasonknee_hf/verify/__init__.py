"""Compares the tables, files, annotations and volumes of a release with each other. Changes nothing."""

from __future__ import annotations

from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.release import Release
from reasonknee_hf.verify.annotation_checks import Digests, check_annotations, questions_of_scans
from reasonknee_hf.verify.box_evidence import BoxEvidence
from reasonknee_hf.verify.file_checks import check_contents, check_files
from reasonknee_hf.verify.findings import Finding, Findings
from reasonknee_hf.verify.table_checks import PAPER_SCANS, PUBLISHED_SCANS, Tables, check_tables
from reasonknee_hf.verify.verify_report import Report, SplitCounts
from reasonknee_hf.verify.volume_checks import check_volumes

__all__ = ["BoxEvidence", "Finding", "Report", "SplitCounts", "verify", "verify_release"]


def verify(release: Release, deep: bool = False, *, limit_scans: int | None = None) -> Report:
    """Looks for defects of a release.

    Reads the listing, the tables, the directory of the mask archive and each annotation file once, in bounded
    memory; of volumes nothing, but for the last eight bytes of those that lie in a folder (which has no
    hashes) and are equal in size.

    Args:
        release: From [`open_release`].
        deep: Read volumes and masks too: whether they can be read, are empty, lie on one grid; and which
            reading of the six numbers of a box fits the masks.
        limit_scans: With `deep`, read so many scans only, spread evenly over the tables.

    Returns:
        [`Report`].

    Raises:
        OptionError: `limit_scans` is below 1, or given without `deep`.
        EndpointError: Bytes that are needed cannot be had from any endpoint. That a file is broken is no
            error but a finding.
    """
    if limit_scans is not None and (limit_scans < 1 or not deep):
        raise OptionError(f"limit_scans={limit_scans} must be at least 1, and needs deep=True")
    found = Findings()
    unusable = check_contents(release, found)
    tables = check_tables(release, unusable, found)
    files = check_files(release, tables, unusable, found)
    digests = check_annotations(release, tables, unusable, found)
    scans_read, evidence = 0, None
    if deep:
        scans_read, evidence = check_volumes(release, tables, files, digests, limit_scans, found)
    return Report(
        release=release.tree.name,
        sha=release.sha,
        deep=deep,
        scans_read=scans_read,
        splits=tuple(_counts(split, tables, digests.get((split, "all"))) for split in tables.scans),
        findings=found.all(),
        boxes=evidence,
        not_checked=tuple(found.not_checked),
    )


verify_release = verify
"""The name under which the package offers [`verify`]."""


def _counts(split: str, tables: Tables, digests: Digests | None) -> SplitCounts:
    return SplitCounts(
        split=split,
        scans=len(tables.scans[split]),
        scans_with_records=0 if digests is None else len(questions_of_scans(digests)),
        records=0 if digests is None else len(digests),
        published_scans=PUBLISHED_SCANS[split],
        paper_scans=PAPER_SCANS[split],
    )
