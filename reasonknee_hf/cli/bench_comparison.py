"""`reasonknee bench compare`: models against each other, item by item."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reasonknee_hf.cli.bench_options import (
    add_bootstrap,
    add_reading,
    add_references,
    check_files,
    chosen_rows,
    matched,
    reading_options,
    save_text,
    subset_of,
)
from reasonknee_hf.cli.source_options import check_picture, check_target
from reasonknee_hf.errors import OptionError


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "predictions",
        nargs="+",
        metavar="PRED",
        help="one run each: FILE, or NAME=FILE, parts of a run as FILE,FILE; runs of one NAME are averaged",
    )
    parser.add_argument("--json", metavar="OUT", help="all figures")
    parser.add_argument("--markdown", metavar="OUT", help="the tables as Markdown")
    parser.add_argument("--plot", metavar="OUT.png", help="a forest plot of the differences")
    add_bootstrap(parser)
    add_reading(parser)
    add_references(parser)


def run_compare(args: argparse.Namespace) -> int:
    from reasonknee_hf.bench import read_references, score
    from reasonknee_hf.bench.comparison import compare, comparison_json, comparison_text

    models = _models(args.predictions)
    for target in filter(None, (args.json, args.markdown)):
        check_target(target)
    if args.plot:
        check_picture(args.plot)
    options = reading_options(args) | {"rounds": args.rounds, "seed": args.seed, "subset": subset_of(args)}
    references = read_references(chosen_rows(args))
    reports = {
        name: [matched(score(paths, references, name=name, **options), paths) for paths in runs]
        for name, runs in models.items()
    }
    data = compare(reports)
    if args.json:
        save_text(args.json, comparison_json(data))
    if args.markdown:
        save_text(args.markdown, comparison_text(data, markdown=True))
    if args.plot:
        from reasonknee_hf.bench.forest_plot import draw_forest

        print(f"written: {draw_forest(data, args.plot)}", file=sys.stderr)
    print(comparison_text(data), end="")
    return 0


def _models(predictions: list[str]) -> dict[str, list[list[str]]]:
    """The runs of each model, each with the files of its parts."""
    models: dict[str, list[list[str]]] = {}
    for argument in predictions:
        name, equals, given = argument.partition("=")
        if not equals or Path(argument).is_file():
            name, given = Path(argument.split(",")[0]).stem, argument
            if name in models:
                raise OptionError(
                    f"Two files are called {name}. Runs of one model: {name}=FILE each; others: NAME=FILE."
                )
        models.setdefault(name, []).append([given] if Path(given).is_file() else given.split(","))
    check_files([path for runs in models.values() for paths in runs for path in paths])
    return models
