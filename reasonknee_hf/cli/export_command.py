"""`reasonknee export`: chats and pictures as files, for training programs that read no streams."""

from __future__ import annotations

import argparse
from typing import get_args

from reasonknee_hf.cli.source_options import add_source_options, source_options


def configure(parser: argparse.ArgumentParser) -> None:
    from reasonknee_hf.prompting.recipes import RECIPES
    from reasonknee_hf.train.export_files import Format, FrameFiles

    parser.add_argument(
        "out", metavar="OUT", help="folder for data.jsonl and pictures; a stopped run goes on there"
    )
    parser.add_argument("config", nargs="?", default="full", help="config, or dataset/config (default: full)")
    parser.add_argument("--split", default="train", help="default: train")
    parser.add_argument("--format", choices=get_args(Format), default="messages", help="default: messages")
    parser.add_argument("--frames", choices=get_args(FrameFiles), default="png", help="default: png")
    parser.add_argument(
        "--view", choices=list(RECIPES), default="o1", help="what is shown of a volume (default: o1)"
    )
    parser.add_argument("--setting", default="zero_shot", help="what it is told (default: zero_shot)")
    parser.add_argument("--target", help="what it is to say (default: grades, or the first of the dataset)")
    parser.add_argument("--limit", type=int, help="stop after this many rows")
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help="rows that do not fit")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.dataset.loading import load_dataset
    from reasonknee_hf.prompting.lessons import lessons_of
    from reasonknee_hf.train.export_files import export

    rows = load_dataset(
        args.config, split=args.split, streaming=True, on_error=args.on_error, **source_options(args)
    )
    dataset = args.config.partition("/")[0] if "/" in args.config else None
    lines = export(
        rows,
        args.out,
        format=args.format,
        frames=args.frames,
        limit=args.limit,
        view=args.view,
        setting=args.setting,
        target=args.target or lessons_of(dataset).targets[0],
        dataset=dataset,
    )
    print(f"{args.out}: {lines:,} rows")
    return 0
