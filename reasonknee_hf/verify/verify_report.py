"""What `verify` found, as an object, as JSON and as a table for the terminal."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from reasonknee_hf.verify.findings import Finding

FORMAT = 1
"""Version of the JSON form; raised when a field changes its meaning."""


class BoxEvidence(Protocol):
    """What the masks say about the published boxes."""

    def lines(self) -> list[str]:
        """For people, one sentence a line."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""


@dataclass(frozen=True)
class SplitCounts:
    """What one split holds, beside what was published of it.

    Args:
        split: `train`, `validation` or `test`.
        scans: Scans that the table lists.
        scans_with_records: Those of them that the full annotation file has records of.
        records: Records of listed scans in the full annotation file.
        published_scans: Rows of the published table.
        paper_scans: Scans of the split by the paper.

    Examples:
        >>> counts = rk.verify_release(rk.open_release("sample")).splits[0]
        >>> counts.split, counts.scans, counts.records
        ('train', 5, 186)
    """

    split: str
    scans: int
    scans_with_records: int
    records: int
    published_scans: int
    paper_scans: int


@dataclass(frozen=True)
class Report:
    """All that `verify` found. Nothing was changed.

    Args:
        release: Name of the release: id, commit and endpoint, or folder.
        sha: Its commit; `None` for a folder.
        deep: Whether volumes and masks were read.
        scans_read: How many scans' volumes or masks were read.
        splits: Counts of each split.
        findings: One entry for each kind of defect that occurred, errors first.
        boxes: How the six numbers of a box are meant by the evidence of the masks; `None` unless `deep`.
        not_checked: What could not be compared, and why.

    Examples:
        >>> report = rk.verify_release(rk.open_release("sample"))
        >>> [finding.kind for finding in report.level("error")]
        ['volume-missing']
    """

    release: str
    sha: str | None
    deep: bool
    scans_read: int
    splits: tuple[SplitCounts, ...]
    findings: tuple[Finding, ...]
    boxes: BoxEvidence | None
    not_checked: tuple[str, ...]

    def level(self, level: str) -> tuple[Finding, ...]:
        """The findings of a level: `"error"`, `"warning"` or `"note"`."""
        return tuple(finding for finding in self.findings if finding.level == level)

    @property
    def exit_code(self) -> int:
        """0, or 1 if there is a finding of level `error`."""
        return int(bool(self.level("error")))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "format": FORMAT,
            "release": self.release,
            "sha": self.sha,
            "deep": self.deep,
            "scans_read": self.scans_read,
            "splits": [asdict(split) for split in self.splits],
            "findings": [{**asdict(one), "examples": list(one.examples)} for one in self.findings],
            "boxes": None if self.boxes is None else self.boxes.to_dict(),
            "not_checked": list(self.not_checked),
            "exit_code": self.exit_code,
        }

    def to_json(self) -> str:
        """[`to_dict`] as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_text(self, width: int = 100) -> str:
        """A table for the terminal."""
        depth = f"with the volumes of {self.scans_read:,} scans" if self.deep else "without reading volumes"
        lines = [self.release, f"compared {depth}", "", *self._split_lines(), "", *self._finding_lines(width)]
        if self.boxes is not None:
            lines += ["", *(line for text in self.boxes.lines() for line in _wrapped(text, "", width))]
        if self.not_checked:
            lines += ["", "not checked:"]
            lines += [line for text in self.not_checked for line in _wrapped(text, "  ", width)]
        return "\n".join(lines)

    def _split_lines(self) -> list[str]:
        heads = ("split", "scans", "with records", "records", "published scans", "paper's scans")
        rows = [
            (s.split, s.scans, s.scans_with_records, s.records, s.published_scans, s.paper_scans)
            for s in self.splits
        ]
        cells = [heads, *(tuple(c if isinstance(c, str) else f"{c:,}" for c in row) for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
        return [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]

    def _finding_lines(self, width: int) -> list[str]:
        if not self.findings:
            return ["nothing found"]
        digits = max(len(f"{finding.count:,}") for finding in self.findings)
        lines: list[str] = []
        for finding in self.findings:
            kind = f"{finding.kind}: {finding.part}" if finding.part else finding.kind
            lines.append(f"{finding.level:<8} {finding.count:>{digits},}  {finding.title}  [{kind}]")
            indent = " " * (11 + digits)
            for example in finding.examples:
                lines += _wrapped(example, indent, width)
            if finding.count > len(finding.examples):
                lines.append(f"{indent}…")
        counts = [f"{len(self.level(level))} of level {level}" for level in ("error", "warning", "note")]
        return [*lines, "", f"kinds found: {', '.join(counts)}"]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, len(indent) + 40),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
