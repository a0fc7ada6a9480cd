"""`reasonknee croissant`: describes a release in Croissant 1.1 (JSON-LD), for tools of any kind."""

from __future__ import annotations

import argparse
import json
import sys

from reasonknee_hf.cli.source_options import add_source_options, open_chosen_release


def configure(parser: argparse.ArgumentParser) -> None:
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.knee.release_croissant import release_croissant

    json.dump(release_croissant(open_chosen_release(args)), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    return 0
