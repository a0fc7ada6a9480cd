"""`reasonknee convert`: a release, or a selection of it, to a folder of Parquet that plain `datasets` loads."""

from __future__ import annotations

import argparse

from reasonknee_hf.cli.publish_options import add_publish_options, chosen_executor, publish_options
from reasonknee_hf.cli.source_options import add_source_options, source_options


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder; configs that lie there already stay")
    parser.add_argument(
        "--verify", action="store_true", help="look for defects of the release first, for the card"
    )
    add_publish_options(parser)
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.convert import convert

    with chosen_executor(args) as executor:
        done = convert(
            args.out,
            args.config,
            executor=executor,
            verify=args.verify,
            **publish_options(args),
            **source_options(args),
        )
    for config in done.configs:
        for split, facts in config.splits.items():
            print(
                f"{config.name}\t{split}\t{facts.rows} rows\t{facts.file_bytes} bytes\t{len(facts.files)} files"
            )
    return 0
