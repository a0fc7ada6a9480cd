"""Compares the tables, files, annotations and volumes of a release with each other. Changes nothing."""

from __future__ import annotations

from reasonknee_hf.dataset.contract import Release, imported
from reasonknee_hf.errors import OptionError
from reasonknee_hf.verify.findings import Finding, Findings
from reasonknee_hf.verify.verify_report import Report, SplitCounts

__all__ = ["Finding", "Report", "SplitCounts", "verify", "verify_release"]


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
        OptionError: `limit_scans` is below 1, or given without `deep`; or nobody wrote checks for the dataset.
        EndpointError: Bytes that are needed cannot be had from any endpoint. That a file is broken is no
            error but a finding.

    Examples:
        >>> from reasonknee_hf.verify import verify
        >>> report = verify(rk.open_release("sample"))
        >>> report.exit_code  # a volume of the sample is missing on purpose
        1
    """
    if limit_scans is not None and (limit_scans < 1 or not deep):
        raise OptionError(f"limit_scans={limit_scans} must be at least 1, and needs deep=True")
    if release.dataset.checks is None:
        raise OptionError(f"there are no checks of releases of {release.dataset.title}.")
    found = Findings()
    splits, scans_read, evidence = imported(release.dataset.checks)(release, deep, limit_scans, found)
    return Report(
        release=release.tree.name,
        sha=release.sha,
        deep=deep,
        scans_read=scans_read,
        splits=splits,
        findings=found.all(),
        boxes=evidence,
        not_checked=tuple(found.not_checked),
    )


verify_release = verify
"""The name under which the package offers [`verify`]."""
