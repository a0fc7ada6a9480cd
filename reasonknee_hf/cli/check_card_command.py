"""`reasonknee check-card`: what the Hub or its viewer would refuse about a folder, before it is uploaded."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder with README.md and the tables that it names")
    parser.add_argument("--json", action="store_true", help="say what was found as a JSON list")
    parser.add_argument("--quiet", action="store_true", help="say nothing where nothing would be refused")


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.viewer import check_card

    findings = check_card(args.folder)
    blocking = any(finding.blocking for finding in findings)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
        return int(blocking)
    if args.quiet and not blocking:
        return 0
    for finding in findings:
        print(f"{'error' if finding.blocking else 'note'}: {finding}")
    if not findings:
        print("no problems")
    return int(blocking)
