"""`reasonknee rows`: rows as JSON lines, volumes and masks by their path."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, get_args

from reasonknee_hf.cli.source_options import add_source_options, source_options
from reasonknee_hf.config_names import OwnConfig
from reasonknee_hf.dataset.joining import OnError
from reasonknee_hf.errors import OptionError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", default="full", help="config, or dataset/config (default: full)")
    parser.add_argument("--split", default="test", help="train, validation or test (default: test)")
    parser.add_argument("--limit", type=int, help="stop after this many rows")
    parser.add_argument("--no-masks", action="store_true", help="leave the mask column out")
    parser.add_argument("--annotations", choices=("all", "balanced"), default="all")
    parser.add_argument("--on-error", choices=get_args(OnError), default="raise")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    options = {"masks": not args.no_masks, "annotations": args.annotations, "on_error": args.on_error}
    for row in json_rows(args.config, args.split, args.limit, options | source_options(args)):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 0


def json_rows(
    config: str, split: str, limit: int | None, options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of one split as plain JSON values: class labels by name, volumes and masks by path."""
    if limit is not None and limit < 0:
        raise OptionError(f"--limit is a number of rows, 0 or more, not {limit}.")
    import datasets

    from reasonknee_hf.dataset.loading import load_dataset

    stream = load_dataset(OwnConfig(config), split=split, streaming=True, **options)
    labels = {k: f for k, f in stream.features.items() if isinstance(f, datasets.ClassLabel)}
    for row in islice(stream, limit):
        for column, value in row.items():
            if column in labels and value is not None:
                row[column] = labels[column].int2str(value)
            elif column in ("image", "mask") and value is not None:
                row[column] = value.path
        yield row
