"""Known defects of the very release that a version is made from, for its card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.errors import OptionError

if TYPE_CHECKING:
    from reasonknee_hf.verify import Report


def defect_lines(verify: bool | Report, release: Release) -> list[str] | None:
    """One line for each kind of defect, without examples: those may name paths of this machine.

    Args:
        verify: `True` to look now, without reading volumes; a report that was made before; `False` not to.
        release: The release.

    Returns:
        `None` if the release was not verified.

    Raises:
        OptionError: The report is about another release.
    """
    if verify is False:
        return None
    from reasonknee_hf.verify import verify as verify_release

    report = verify_release(release) if verify is True else verify
    if (report.release, report.sha) != (release.tree.name, release.sha):
        raise OptionError(
            f"The report is about {report.release}, the rows come from {release.tree.name}. Verify that."
        )
    return [
        f"{finding.count:,} {finding.title}"
        + (f" ({finding.part})" if finding.part else "")
        + f" [{finding.level}]"
        for finding in report.findings
    ]
