"""`reasonknee images`: what a download from the OAI holds, and its volumes in the layout of the release."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from reasonknee_hf.cli.source_options import add_source_options, open_chosen_release

_ORDER = ("found", "made", "kept", "missing", "refused")

if TYPE_CHECKING:
    from reasonknee_hf.knee.images_build import Outcome


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = commands.add_parser("list", help="what of the split tables is in a download, and what to fetch")
    building = commands.add_parser("build", help="write data/images/…nii.gz of every scan in a download")
    building.epilog = (
        "Exit code: 0 if nothing was refused, 1 if something was. Run it again to go on after a stop."
    )
    for command in (listing, building):
        command.add_argument("oai", help="the download: folders or tar.gz files of DICOM")
        command.add_argument("--json", action="store_true", help="print JSON")
        add_source_options(command, images=False)
    listing.add_argument("--index", action="append", help="contents.*.csv or image03.txt; may be repeated")
    listing.add_argument("--fetch", action="store_true", help="print only the missing series, one a line")
    building.add_argument("out", help="folder to write to; give it as images= afterwards")
    building.add_argument("--workers", type=int, default=1, help="processes (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Does one action. Returns the exit code."""
    from datasets.utils import tqdm

    from reasonknee_hf.knee.images_build import build_images, list_images

    release, fetch = open_chosen_release(args), None
    if args.action == "build":
        made = build_images(release, args.oai, args.out, args.workers)
        total = sum(1 for _ in release.all_scans())
        outcomes = list(tqdm(made, total=total, desc="volumes", unit="scan", leave=False))
    else:
        outcomes, fetch = list_images(release, args.oai, args.index or ())
    if args.json:
        counts, scans = Counter(one.state for one in outcomes), [asdict(one) for one in outcomes]
        print(json.dumps({"counts": counts, "scans": scans, "fetch": fetch}, indent=2))
    elif args.action == "list" and args.fetch:
        print("\n".join(fetch or ()))
    else:
        print(_table(outcomes))
    return int(any(one.state == "refused" for one in outcomes))


def _table(outcomes: Sequence[Outcome]) -> str:
    """Counts by split and state, then every scan that was refused and why, and how many grids were not verified."""
    counts = Counter((one.split, one.state) for one in outcomes)
    states = [state for state in _ORDER if any(one.state == state for one in outcomes)]
    lines = [f"{'split':<12}" + "".join(f"{state:>10}" for state in states)]
    lines += [
        f"{split:<12}" + "".join(f"{counts[split, state]:>10,}" for state in states)
        for split in dict.fromkeys(one.split for one in outcomes)
    ]
    lines += [f"refused: {one.note}" for one in outcomes if one.state == "refused"]
    unverified = [one.scan_id for one in outcomes if one.state in ("made", "kept") and one.note]
    if unverified:
        lines.append(f"{len(unverified):,} without a mask to verify their grid against, e.g. {unverified[0]}")
    return "\n".join(lines)
