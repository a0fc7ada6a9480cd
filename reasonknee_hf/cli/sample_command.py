"""`reasonknee sample`: writes a synthetic release to a folder."""

from __future__ import annotations

import argparse

from reasonknee_hf.knee.sample import write_sample


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new or empty folder")
    parser.add_argument(
        "--scans", type=int, default=6, metavar="N", help="annotated scans, at least 3 (default: 6)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the same seed gives the same bytes (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    print(write_sample(args.folder, scans=args.scans, seed=args.seed))
    return 0
