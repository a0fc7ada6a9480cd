"""Options that the kinds of `reasonknee bench` share, and what they mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee_hf.cli.source_options import add_source_options, open_chosen_release
from reasonknee_hf.errors import OptionError, PredictionError

if TYPE_CHECKING:
    from reasonknee_hf.bench import Report


def add_references(parser: argparse.ArgumentParser, *, dataset: bool = False) -> None:
    parser.add_argument(
        "--split", default="test", help="test is the benchmark; any other is reported as a subset"
    )
    parser.add_argument("--scans", type=int, metavar="N", help="the first N scans only; reported as a subset")
    parser.add_argument(
        "--annotations", choices=("all", "balanced"), default="all", help="balanced is a subset too"
    )
    add_source_options(parser, dataset=dataset)


def add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="no repair of answers")
    parser.add_argument("--free-digits", action="store_true", help="let `grade N` in prose answer (a guess)")
    parser.add_argument(
        "--conflicts",
        choices=("raise", "invalid"),
        default="raise",
        help="differing repeats: an error, or invalid",
    )
    parser.add_argument("--id-column", metavar="NAME", help="column of the ids (default: id, custom_id, …)")
    parser.add_argument("--answer-column", metavar="NAME", help="column of the answers (default: found)")
    parser.add_argument("--box-ends", choices=("inclusive", "continuous"), default="inclusive")
    parser.add_argument("--box-order", default="ssxxyy", help="what the six numbers are (default: ssxxyy)")
    parser.add_argument(
        "--box-grid", metavar="S,X,Y", help="grid of the answers: 1,1,1 for fractions, 32,224,224, ..."
    )
    parser.add_argument(
        "--volume-shape", metavar="S,X,Y", help="size of the volumes in voxels, with --box-grid"
    )
    parser.add_argument(
        "--spacing", metavar="S,X,Y", help="voxel size in mm (default: OAI DESS, 0.7,0.3646,0.3646)"
    )
    parser.add_argument(
        "--iou-threshold", type=float, default=0.25, help="least IoU of a right place (default: 0.25)"
    )


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1000, help="bootstrap rounds; 0 for no intervals")
    parser.add_argument("--seed", type=int, default=0)


def chosen_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the chosen part of the benchmark."""
    from reasonknee_hf.knee.scoring.reference_reading import release_rows

    release = open_chosen_release(args)
    return release_rows(release, args.split, annotations=args.annotations, scans=args.scans)


def subset_of(args: argparse.Namespace) -> str | None:
    parts = [
        "synthetic sample" if args.source == "sample" else "",
        "" if args.split == "test" else f"{args.split} split, not the test split",
        "" if args.annotations == "all" else f"{args.annotations} annotations",
        "" if args.scans is None else f"first {args.scans} scans",
    ]
    return ", ".join(filter(None, parts)) or None


def _triple(text: str | None, option: str) -> tuple[float, float, float] | None:
    from reasonknee_hf.bench.box_geometry import check_sizes

    if text is None:
        return None
    try:
        first, second, third = (float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(
            f"{option} takes three numbers with commas, as 160,384,384, not {text!r}."
        ) from None
    check_sizes(option, (first, second, third))
    return first, second, third


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    from reasonknee_hf.bench import BoxConvention

    shape = _triple(args.volume_shape, "--volume-shape")
    if shape is not None and any(size % 1 for size in shape):
        raise OptionError(f"--volume-shape takes whole numbers of voxels, not {args.volume_shape!r}.")
    return {
        "convention": BoxConvention(
            ends=args.box_ends,
            order=args.box_order,
            grid=_triple(args.box_grid, "--box-grid"),
            shape=None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2])),
        ),
        "strict": args.strict,
        "free_digits": args.free_digits,
        "conflicts": args.conflicts,
        "iou_threshold": args.iou_threshold,
        "spacing": _triple(args.spacing, "--spacing"),
        "id_column": args.id_column,
        "answer_column": args.answer_column,
    }


def check_files(paths: list[str]) -> None:
    """Before the references are read, which may take long."""
    absent = [path for path in paths if not Path(path).is_file()]
    if absent:
        folders = " (a folder; name its files)" if any(Path(path).is_dir() for path in absent) else ""
        raise PredictionError(f"No such prediction file: {', '.join(absent)}{folders}.")


def matched(report: Report, paths: list[str]) -> Report:
    """The report, if any prediction is for an item of the references.

    Raises:
        PredictionError: None is; its message shows ids of both sides.
    """
    inputs = report.data["inputs"]
    if inputs["answered_items"] or not report.data["count"]["items"]:
        return report
    raise PredictionError(
        f"{', '.join(paths)}: none of {inputs['entries']} predictions is for an item of these references. Ids there: "
        f"{', '.join(inputs['unknown_ids'][:2])}; ids wanted: {report.outcome.references.ids[0]}, ... "
        "Check --source, --split and --scans."
    )


def save_text(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    print(f"written: {path}", file=sys.stderr)
