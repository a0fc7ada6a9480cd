"""`reasonknee verify`: what does not fit together in a release, as a table or as JSON."""

from __future__ import annotations

import argparse
import shutil

from reasonknee_hf.cli.source_options import add_source_options, open_chosen_release


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code: 0 if no finding is of level error, 1 if one is or if the release cannot be opened, "
        "2 for a wrong command line. Nothing is changed."
    )
    add_source_options(parser, dataset=True)
    parser.add_argument("--deep", action="store_true", help="read volumes and masks too")
    parser.add_argument(
        "--limit-scans", type=int, metavar="N", help="with --deep: read N scans only, spread evenly"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.verify import verify

    report = verify(open_chosen_release(args), deep=args.deep, limit_scans=args.limit_scans)
    print(report.to_json() if args.json else report.to_text(shutil.get_terminal_size((100, 24)).columns))
    return report.exit_code
