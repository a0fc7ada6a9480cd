"""Options that `convert` and `push` share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from reasonknee_hf.errors import OptionError

_SELECTION = ("splits", "categories", "structures", "patients", "visits")


def add_publish_options(parser: argparse.ArgumentParser) -> None:
    """Adds what is chosen, how volumes are kept, and what is derived."""
    parser.add_argument(
        "--config", default="full", help="full, high_fidelity, bench, scans or records (default: full)"
    )
    parser.add_argument("--name", help="name of the written config (default: the same)")
    chosen = parser.add_argument_group("selection", "what is not given does not restrict")
    chosen.add_argument(
        "--split", dest="splits", action="append", help="may be given several times, as the next four"
    )
    chosen.add_argument("--category", dest="categories", action="append", help="e.g. BML")
    chosen.add_argument("--structure", dest="structures", action="append", help="e.g. 'medial meniscus'")
    chosen.add_argument("--patient", dest="patients", action="append")
    chosen.add_argument("--visit", dest="visits", action="append", help="e.g. 00M")
    chosen.add_argument("--grade", dest="grades", action="append", help="2, or of one attribute: size=2")
    chosen.add_argument(
        "--where", metavar="MODULE:FUNCTION", help="a Python function of a row that says whether to keep it"
    )
    chosen.add_argument("--limit", type=int, help="rows a split")
    chosen.add_argument("--annotations", choices=("all", "balanced"), default="all")
    chosen.add_argument("--on-error", choices=("raise", "skip", "null"), default="raise")
    made = parser.add_argument_group("volumes and derived columns")
    made.add_argument("--volumes", choices=("embed", "files", "reference", "none"), default="embed")
    made.add_argument("--no-masks", dest="masks", action="store_false", help="leave the masks out")
    made.add_argument("--previews", action="store_true", help="a PNG of three planes with the box")
    made.add_argument("--frames", type=int, default=0, metavar="N", help="N PNG slices of the box")
    made.add_argument("--crops", action="store_true", help="a config of the boxes' regions as NIfTI")
    made.add_argument("--crop-margin", type=float, default=0.0, metavar="MM")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that make shards (default: 1)"
    )


def publish_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as keywords of `convert` and `push`.

    Raises:
        OptionError: A grade or filter that cannot be read.
    """
    names = (
        *_SELECTION, "name", "limit", "annotations", "on_error", "volumes", "masks", "previews", "frames", "crops",
        "crop_margin",
    )  # fmt: skip
    options = {name: getattr(args, name) for name in names}
    return options | {"grades": _grades(args.grades), "where": _function(args.where)}


@contextlib.contextmanager
def chosen_executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    """A pool of processes, or none."""
    if args.workers < 1:
        raise OptionError(f"--workers {args.workers}: give a number of processes of at least 1.")
    if args.workers == 1:
        yield None
        return
    with ProcessPoolExecutor(args.workers) as pool:
        yield pool


def _grades(given: list[str] | None) -> Any:
    if given is None:
        return None
    named = [word.partition("=")[::2] for word in given]
    try:
        if all(not value for _, value in named):
            return [int(number) for number, _ in named]
        grades: dict[str, list[int]] = {}
        for attribute, value in named:
            grades.setdefault(attribute, []).append(int(value))
    except ValueError:
        raise OptionError(
            f"--grade {' '.join(given)}: give whole numbers, or all as ATTRIBUTE=NUMBER."
        ) from None
    return grades


def _function(named: str | None) -> Any:
    if named is None:
        return None
    from importlib import import_module

    module, _, name = named.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"--where {named}: {error}. Give MODULE:FUNCTION, the module on the Python path."
        ) from None
