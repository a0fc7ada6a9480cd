"""`reasonknee doctor`: which endpoints a run could use, and who would get a token."""

from __future__ import annotations

import argparse
import dataclasses
import json

from reasonknee_hf import environment
from reasonknee_hf.hub.wire.doctor import Finding, doctor
from reasonknee_hf.knee.layout import DEFAULT_REVISION, DEFAULT_SOURCE


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument(
        "--source", help="dataset id (default: $REASONKNEE_SOURCE, else the published dataset)"
    )
    parser.add_argument("--revision", help="branch, tag or full commit sha (default: main)")
    parser.add_argument(
        "--endpoint", action="append", help="base URL; repeat it for several (default: as a run would choose)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the findings. Returns 0 if a run could read from at least one endpoint, else 1."""
    source = args.source or environment.source() or DEFAULT_SOURCE
    revision = args.revision or (DEFAULT_REVISION if source == DEFAULT_SOURCE else "main")
    findings = doctor(source, revision, args.endpoint)
    usable = any(finding.usable for finding in findings)
    if args.json:
        rows = [{**dataclasses.asdict(finding), "usable": finding.usable} for finding in findings]
        answer = {"source": source, "revision": revision, "usable": usable, "endpoints": rows}
        print(json.dumps(answer, indent=2))
        return 0 if usable else 1
    print(f"{source} at {revision}, {environment.timeout():g} s for each wait\n")
    print(_table(findings))
    for finding in findings:
        if finding.problem is not None:
            print(f"\n{finding.url}: {finding.problem}")
    if not usable:
        print("\nA run could read from no endpoint. Name another one by --endpoint, HF_ENDPOINT or a proxy.")
    return 0 if usable else 1


def _table(findings: list[Finding]) -> str:
    rows = [("endpoint", "reachable", "sha", "lag", "ranges", "large file", "token")]
    for finding in findings:
        answered = f"{finding.seconds:.2f} s" if finding.seconds is not None else "yes"
        rows.append(
            (
                finding.url,
                answered if finding.reachable else "no",
                finding.sha[:12] if finding.sha else "-",
                finding.lag or "-",
                "yes" if finding.ranges else "no",
                finding.file or "-",
                finding.token,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
