"""`reasonknee app`: look at cases in a browser, and at what two runs answered."""

from __future__ import annotations

import argparse

from reasonknee_hf.cli.source_options import add_source_options, source_options
from reasonknee_hf.errors import ExtraMissingError, OptionError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a prediction file; at most two runs",
    )
    parser.add_argument("--host", default="127.0.0.1", help="where it listens (default: this machine alone)")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    add_source_options(parser, dataset=True)
    parser.set_defaults(source="sample")


def run(args: argparse.Namespace) -> int:
    runs = dict(_named(given) for given in args.run)
    if len(args.run) > 2 or len(runs) < len(args.run):
        raise OptionError(
            "--run takes at most two runs, with names that differ: --run base=a.jsonl --run tuned=b.jsonl"
        )
    try:
        from reasonknee_app import Cases, launch
    except ImportError as error:
        raise ExtraMissingError("the app needs gradio: pip install 'reasonknee_hf[app]'") from error
    launch(Cases(args.dataset, **source_options(args)), runs, host=args.host, port=args.port)
    return 0


def _named(given: str) -> tuple[str, str]:
    name, equals, path = given.partition("=")
    return (name, path) if equals else (given, given)
