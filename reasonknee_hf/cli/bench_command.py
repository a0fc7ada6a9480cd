"""`reasonknee bench`: score runs, write the items to answer, look at one item, count the priors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee_hf.bench.settings import SETTINGS
from reasonknee_hf.cli.source_options import (
    add_source_options,
    check_picture,
    check_target,
    open_chosen_release,
)
from reasonknee_hf.errors import OptionError, PredictionError

if TYPE_CHECKING:
    from reasonknee_hf.bench import Priors, Report

_PRED = "prediction file, or SETTING=FILE; files of one setting are parts of one run"


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    for name, add in (
        ("score", _add_score),
        ("prompts", _add_prompts),
        ("item", _add_item),
        ("priors", _add_priors),
    ):
        add(kinds.add_parser(name, help=_HELP[name], description=_HELP[name]))


_HELP = {
    "score": "score one run, or several settings of one model with their attribution table",
    "prompts": "write what a model must answer in one setting, as JSON lines",
    "item": "show one item: question, answer, what was read of it, and a picture",
    "priors": "count the grades of the training split, so that `score --priors FILE` need not",
}


def _add_references(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--split", default="test", help="test is the benchmark; any other is reported as a subset"
    )
    parser.add_argument("--scans", type=int, metavar="N", help="the first N scans only; reported as a subset")
    parser.add_argument(
        "--annotations", choices=("all", "balanced"), default="all", help="balanced is a subset too"
    )
    add_source_options(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="no repair of answers")
    parser.add_argument("--free-digits", action="store_true", help="let `grade N` in prose answer (a guess)")
    parser.add_argument(
        "--conflicts", choices=("first", "invalid", "raise"), default="first", help="differing repeats"
    )
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


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("predictions", nargs="+", metavar="PRED", help=_PRED)
    parser.add_argument("--name", help="what to call the run in tables (default: the file's name)")
    parser.add_argument(
        "--priors", metavar="train|FILE", help="grade counts: of the source's training split, or a file"
    )
    parser.add_argument(
        "--only-answered", action="store_true", help="answered items only; reported as a subset"
    )
    parser.add_argument("--rounds", type=int, default=1000, help="bootstrap rounds; 0 for no intervals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compare", choices=("paper",), help="the paper's published figures beside the run's"
    )
    parser.add_argument("--json", metavar="OUT", help="all figures")
    parser.add_argument("--markdown", metavar="OUT", help="the tables as Markdown")
    parser.add_argument(
        "--items", metavar="OUT", help="one JSON line an item: stage, reason, repairs, grades, boxes"
    )
    parser.add_argument("--plot", metavar="OUT.png")
    parser.add_argument("--eval-results", metavar="OUT.yaml", help="for a model repository's .eval_results/")
    _add_reading(parser)
    _add_references(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--setting", choices=SETTINGS, required=True)
    parser.add_argument(
        "--questions", metavar="FILE", help="a published question file instead of the rows' prompts"
    )
    parser.add_argument("--ask-box", action="store_true", help="ask for a box where the prompt does not")
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    _add_references(parser)


def _add_item(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="id of the item")
    parser.add_argument("predictions", nargs="*", metavar="PRED", help="prediction files")
    parser.add_argument("--out", metavar="OUT.png", help="draw the item")
    _add_reading(parser)
    _add_references(parser)


def _add_priors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT.json")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    return {"score": _score, "prompts": _prompts, "item": _item, "priors": _priors}[args.bench](args)


# --- the rows -------------------------------------------------------------------------------------


def _rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the chosen part of the benchmark."""
    from reasonknee_hf.bench.reference_rows import release_rows

    release = open_chosen_release(args)
    return release_rows(release, args.split, annotations=args.annotations, scans=args.scans)


def _subset(args: argparse.Namespace) -> str | None:
    parts = [
        "synthetic sample" if args.source == "sample" else "",
        "" if args.split == "test" else f"{args.split} split, not the test split",
        "" if args.annotations == "all" else f"{args.annotations} annotations",
        "" if args.scans is None else f"first {args.scans} scans",
    ]
    return ", ".join(filter(None, parts)) or None


def _triple(text: str | None, option: str) -> tuple[float, float, float] | None:
    from reasonknee_hf.bench.box_reading import check_sizes

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


def _reading_options(args: argparse.Namespace) -> dict[str, Any]:
    from reasonknee_hf.bench import BoxConvention
    from reasonknee_hf.bench.box_reading import OAI_DESS_SPACING

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
        "spacing": _triple(args.spacing, "--spacing") or OAI_DESS_SPACING,
    }


# --- score ----------------------------------------------------------------------------------------


def _score(args: argparse.Namespace) -> int:
    from reasonknee_hf.bench import read_references, score
    from reasonknee_hf.bench.setting_pairs import attribution, attribution_table

    runs = _runs(args.predictions)
    if len(runs) > 1 and args.eval_results:
        raise OptionError("--eval-results is for one run; score the setting that you report alone.")
    _check_targets(args, runs)
    reading = _reading_options(args)
    references = read_references(_rows(args))
    priors = _read_priors(args)
    options = reading | {
        "priors": priors,
        "rounds": args.rounds,
        "seed": args.seed,
        "subset": _subset(args),
        "only_answered": args.only_answered,
    }
    reports: dict[str, Report] = {}
    for setting, paths in runs.items():
        name = ": ".join(filter(None, (args.name or ("" if setting else Path(paths[0]).stem), setting)))
        reports[setting] = score(paths, references, name=name, **options)
    effects = attribution(reports) if len(reports) > 1 else None
    _write(args, reports, effects)  # before anything is printed: a closed pipe must not cost the files
    for report in reports.values():
        print(report.text(compare_paper=args.compare == "paper"))
    if effects:
        print(attribution_table(effects).text())
    return 0


def _runs(predictions: list[str]) -> dict[str, list[str]]:
    """Prediction files by setting, `""` for files without one."""
    runs: dict[str, list[str]] = {}
    for argument in predictions:
        setting, equals, path = argument.partition("=")
        known = bool(equals) and setting in SETTINGS
        runs.setdefault(setting if known else "", []).append(path if known else argument)
    if "" in runs and len(runs) > 1:
        raise OptionError("Give a setting to all prediction files (SETTING=FILE) or to none.")
    absent = [path for paths in runs.values() for path in paths if not Path(path).is_file()]
    if absent:  # before the references are read, which may take long
        raise PredictionError(f"No such prediction file: {', '.join(absent)}.")
    return runs


def _check_targets(args: argparse.Namespace, runs: dict[str, list[str]]) -> None:
    """Before the references are read, which may take long."""
    for target in filter(None, (args.json, args.markdown, args.items, args.eval_results)):
        check_target(target)
    for setting in runs if args.plot else ():
        check_picture(_plot_target(args, setting, runs))


def _plot_target(args: argparse.Namespace, setting: str, runs: Mapping[str, Any]) -> Path:
    path = Path(args.plot)
    return path.with_name(f"{path.stem}-{setting}{path.suffix}") if len(runs) > 1 else path


def _read_priors(args: argparse.Namespace) -> Priors | None:
    from reasonknee_hf.bench import load_priors

    if args.priors is None:
        return None
    return _train_priors(args) if args.priors == "train" else load_priors(args.priors)


def _train_priors(args: argparse.Namespace) -> Priors:
    from reasonknee_hf.bench import count_grades
    from reasonknee_hf.bench.reference_rows import release_rows

    rows = release_rows(open_chosen_release(args), "train")
    return count_grades(rows, f"the training split of {args.source or 'the release'}")


def _write(args: argparse.Namespace, reports: dict[str, Report], effects: dict[str, Any] | None) -> None:
    from reasonknee_hf.bench.setting_pairs import attribution_table

    compare = args.compare == "paper"
    if args.json:
        several = {"runs": {name: report.data for name, report in reports.items()}, "attribution": effects}
        content = several if effects else next(iter(reports.values())).data
        _save(args.json, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    if args.markdown:
        parts = [report.markdown(compare_paper=compare) for report in reports.values()]
        if effects:
            parts.append(attribution_table(effects).markdown() + "\n")
        _save(args.markdown, "\n".join(parts))
    if args.items:
        records = [
            {"run": name or report.data["name"], **item}
            for name, report in reports.items()
            for item in report.items()
        ]
        _save(args.items, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    if args.eval_results:
        _save(args.eval_results, next(iter(reports.values())).eval_results(**_dataset(args)))
    if args.plot:
        from reasonknee_hf.bench.plots import draw

        for setting, report in reports.items():
            print(f"written: {draw(report, _plot_target(args, setting, reports))}", file=sys.stderr)


def _dataset(args: argparse.Namespace) -> dict[str, Any]:
    """Which dataset was scored: the Hub id and commit; nothing of them for folders and the sample."""
    from reasonknee_hf import environment
    from reasonknee_hf.knee.layout import DEFAULT_SOURCE

    release = open_chosen_release(args)
    if release.sha is None:
        return {}
    return {"dataset_id": args.source or environment.source() or DEFAULT_SOURCE, "revision": release.sha}


def _save(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    print(f"written: {path}", file=sys.stderr)


# --- the rest -------------------------------------------------------------------------------------


def _prompts(args: argparse.Namespace) -> int:
    from reasonknee_hf.bench.settings import bench_items, read_questions

    if args.out:
        check_target(args.out)
    questions = read_questions(args.questions) if args.questions else None
    subset = _subset(args)
    items = bench_items(_rows(args), args.setting, questions=questions, ask_box=args.ask_box, subset=subset)
    if subset:
        print(f"SUBSET of the benchmark: {subset}.", file=sys.stderr)
    lines = (json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    if args.out is None:
        sys.stdout.writelines(lines)
        return 0
    with open(args.out, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(lines)
    print(f"written: {args.out}", file=sys.stderr)
    return 0


def _item(args: argparse.Namespace) -> int:
    from reasonknee_hf.bench import score
    from reasonknee_hf.bench.item import item_text

    if args.out:
        check_picture(args.out)
    reading = _reading_options(args)
    row = next((row for row in _rows(args) if row["id"] == args.id), None)
    if row is None:
        raise OptionError(
            f"No item {args.id!r} among the chosen rows. Ids are PATIENT_VISIT_STUDY_SERIES_SIDE_QUESTION."
        )
    report = score(args.predictions, [row], rounds=0, subset=_subset(args), **reading)
    print(item_text(row, report))
    if args.out:
        _draw(args, row)
    return 0


def _draw(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """The picture that `reasonknee show` draws of the row."""
    from reasonknee_hf.cli.show_command import draw_row

    release = open_chosen_release(args)
    scan = next((scan for scan in release.scans(args.split) if scan.scan_id == row["scan_id"]), None)
    mask = None if scan is None else release.find_mask(scan)
    features = release.dataset.features("bench", release, mask is not None)
    draw_row(features.decode_example(row | {"mask": mask}), args.out)
    print(f"written: {args.out}", file=sys.stderr)


def _priors(args: argparse.Namespace) -> int:
    check_target(args.out)
    _train_priors(args).save(args.out)
    print(f"written: {args.out}", file=sys.stderr)
    return 0
