"""`reasonknee convert`: a release, or a selection of it, to a folder of Parquet that plain `datasets` loads."""

from __future__ import annotations

import argparse

from reasonknee_hf.cli.publish_options import add_publish_options, chosen_options, tell
from reasonknee_hf.publish.options import ConvertOptions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder, or URL that fsspec writes to; configs there stay")
    add_publish_options(parser, ConvertOptions)


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.convert import convert

    with chosen_options(args, ConvertOptions) as options:
        done = convert(args.out, **options)
    tell(done, args, {"folder": args.out})
    return 0
