"""`reasonknee check-card`: what the Hub or its viewer would refuse about a folder, before it is uploaded."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder with README.md and the tables that it names")


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.viewer import check_card

    findings = check_card(args.folder)
    for finding in findings:
        print(f"{'error' if finding.blocking else 'note'}: {finding}")
    if not findings:
        print("no problems")
    return 1 if any(finding.blocking for finding in findings) else 0
