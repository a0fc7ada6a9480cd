"""`reasonknee bench`: score runs, write the items to answer, look at one item, count the priors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee_hf.cli.bench_comparison import add_compare, run_compare
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
from reasonknee_hf.cli.bench_run import add_run, run_run
from reasonknee_hf.cli.source_options import (
    add_source_options,
    check_picture,
    check_target,
    open_chosen_release,
    source_options,
)
from reasonknee_hf.dataset.contract import known_names
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.scoring.settings import SETTINGS

if TYPE_CHECKING:
    from reasonknee_hf.bench import Priors, Report

_PRED = "prediction file, or SETTING=FILE; files of one setting are parts of one run"


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    for name, add in (
        ("run", add_run),
        ("score", _add_score),
        ("compare", add_compare),
        ("prompts", _add_prompts),
        ("item", _add_item),
        ("priors", _add_priors),
    ):
        add(kinds.add_parser(name, help=_HELP[name], description=_HELP[name]))


_HELP = {
    "run": "ask a model all questions, from its name to a file that can be scored",
    "score": "score one run, or several settings of one model with their attribution table",
    "compare": "compare models item by item: differences, intervals, p values",
    "prompts": "write what a model must answer in one setting, as JSON lines",
    "item": "show one item: question, answer, what was read of it, and a picture",
    "priors": "count the grades of the training split, so that `score --priors FILE` need not",
}


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("predictions", nargs="+", metavar="PRED", help=_PRED)
    parser.add_argument("--name", help="what to call the run in tables (default: the file's name)")
    other = parser.add_argument_group("benchmarks of options and free answers")
    other.add_argument("--form", help="mc (letters, the default) or freeform")
    other.add_argument("--mode", help="tools that the model had, as direct, oracle, predicted, vision")
    other.add_argument("--input", help="what it saw, as 3d_volume, 2d_image, 2d_video")
    other.add_argument("--tolerance", type=float, help="share of the truth by which a number may be off")
    parser.add_argument(
        "--priors", metavar="train|FILE", help="grade counts: of the source's training split, or a file"
    )
    parser.add_argument(
        "--only-answered", action="store_true", help="answered items only; reported as a subset"
    )
    add_bootstrap(parser)
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
    add_reading(parser)
    add_references(parser, dataset=True)
    parser.set_defaults(default_of=parser.get_default)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--setting", choices=SETTINGS, required=True)
    parser.add_argument(
        "--questions", metavar="FILE", help="a published question file instead of the rows' prompts"
    )
    parser.add_argument("--ask-box", action="store_true", help="ask for a box where the prompt does not")
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    add_references(parser)


def _add_item(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="id of the item")
    parser.add_argument("predictions", nargs="*", metavar="PRED", help="prediction files")
    parser.add_argument("--out", metavar="OUT.png", help="draw the item")
    add_reading(parser)
    add_references(parser)


def _add_priors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT.json")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    kinds = {
        "run": run_run,
        "score": _score,
        "compare": run_compare,
        "prompts": _prompts,
        "item": _item,
        "priors": _priors,
    }
    return kinds[args.bench](args)


# --- score ----------------------------------------------------------------------------------------


def _score(args: argparse.Namespace) -> int:
    if args.dataset not in (None, known_names()[0]):
        return _score_elsewhere(args)
    _refuse_unheeded(args, _ELSEWHERE)
    from reasonknee_hf.bench import read_references, score
    from reasonknee_hf.bench.setting_pairs import attribution, attribution_table

    runs = _runs(args.predictions)
    if len(runs) > 1 and args.eval_results:
        raise OptionError("--eval-results is for one run; score the setting that you report alone.")
    _check_targets(args, runs)
    reading = reading_options(args)
    references = read_references(chosen_rows(args))
    priors = _read_priors(args)
    options = reading | {
        "source": _source(args),
        "priors": priors,
        "rounds": args.rounds,
        "seed": args.seed,
        "subset": subset_of(args),
        "only_answered": args.only_answered,
    }
    reports: dict[str, Report] = {}
    for setting, paths in runs.items():
        name = ": ".join(filter(None, (args.name or ("" if setting else Path(paths[0]).stem), setting)))
        reports[setting] = matched(score(paths, references, name=name, **options), paths)
    effects = attribution(reports) if len(reports) > 1 else None
    _write(args, reports, effects)  # before anything is printed: a closed pipe must not cost the files
    for report in reports.values():
        print(report.text(compare_paper=args.compare == "paper"))
    if effects:
        print(attribution_table(effects).text())
    return 0


def _score_elsewhere(args: argparse.Namespace) -> int:
    """By the benchmark of another dataset, which brings its own report."""
    from reasonknee_hf.bench.runner_rows import Columns
    from reasonknee_hf.bench.scorer import offered_by

    _refuse_unheeded(args, _HERE)
    check_files(args.predictions)
    for target in filter(None, (args.json, args.items)):
        check_target(target)
    text, report = offered_by(args.dataset, "score_files")(
        args.predictions,
        opening=source_options(args),
        settings={name: getattr(args, name) for name in _ELSEWHERE if getattr(args, name) is not None},
        paper=args.compare == "paper",
        conflicts=args.conflicts,
        rounds=args.rounds,
        seed=args.seed,
        name=args.name or Path(args.predictions[0]).stem,
        columns=Columns(args.id_column, args.answer_column),
    )
    if args.json:
        save_text(args.json, json.dumps(report.data, indent=1, ensure_ascii=False) + "\n")
    if args.items:
        save_text(
            args.items, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in report.records())
        )
    print(text, end="")
    return 0


_ELSEWHERE = ("form", "mode", "input", "tolerance")
_HERE = (
    "priors", "only_answered", "markdown", "plot", "eval_results", "strict", "free_digits", "box_ends", "box_order",
    "box_grid", "volume_shape", "spacing", "iou_threshold", "split", "scans", "annotations",
)  # fmt: skip


def _refuse_unheeded(args: argparse.Namespace, names: Sequence[str]) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != args.default_of(name)]
    if given:
        whose = args.dataset or known_names()[0]
        raise OptionError(f"{', '.join(given)}: the benchmark of {whose} knows no such option.")


def _runs(predictions: list[str]) -> dict[str, list[str]]:
    """Prediction files by setting, `""` for files without one."""
    runs: dict[str, list[str]] = {}
    for argument in predictions:
        setting, equals, path = argument.partition("=")
        known = bool(equals) and setting in SETTINGS
        runs.setdefault(setting if known else "", []).append(path if known else argument)
    if "" in runs and len(runs) > 1:
        raise OptionError("Give a setting to all prediction files (SETTING=FILE) or to none.")
    check_files([path for paths in runs.values() for path in paths])
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
    from reasonknee_hf.knee.scoring.reference_reading import release_rows

    rows = release_rows(open_chosen_release(args), "train")
    priors: Priors = count_grades(rows, f"the training split of {args.source or 'the release'}")
    return priors


def _write(args: argparse.Namespace, reports: dict[str, Report], effects: dict[str, Any] | None) -> None:
    from reasonknee_hf.bench.setting_pairs import attribution_table

    compare = args.compare == "paper"
    if args.json:
        several = {"runs": {name: report.data for name, report in reports.items()}, "attribution": effects}
        content = several if effects else next(iter(reports.values())).data
        save_text(args.json, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    if args.markdown:
        parts = [report.markdown(compare_paper=compare) for report in reports.values()]
        if effects:
            parts.append(attribution_table(effects).markdown() + "\n")
        save_text(args.markdown, "\n".join(parts))
    if args.items:
        records = [
            {"run": name or report.data["name"], **item}
            for name, report in reports.items()
            for item in report.items()
        ]
        save_text(args.items, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    if args.eval_results:
        save_text(args.eval_results, next(iter(reports.values())).eval_results())
    if args.plot:
        from reasonknee_hf.bench.plots import draw

        for setting, report in reports.items():
            print(f"written: {draw(report, _plot_target(args, setting, reports))}", file=sys.stderr)


def _source(args: argparse.Namespace) -> dict[str, Any]:
    """What was scored: the Hub id and commit, or what is no release on a Hub under its own name."""
    from reasonknee_hf import environment
    from reasonknee_hf.knee.layout import DEFAULT_SOURCE

    release = open_chosen_release(args)
    name = args.source or environment.source() or DEFAULT_SOURCE
    if release.sha is not None:
        return {"id": name, "revision": release.sha}
    return {"id": "synthetic sample" if name == "sample" else f"local folder {Path(name).name}"}


# --- the rest -------------------------------------------------------------------------------------


def _prompts(args: argparse.Namespace) -> int:
    from reasonknee_hf.knee.scoring.settings import bench_items, read_questions

    if args.out:
        check_target(args.out)
    questions = read_questions(args.questions) if args.questions else None
    subset = subset_of(args)
    items = bench_items(
        chosen_rows(args), args.setting, questions=questions, ask_box=args.ask_box, subset=subset
    )
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
    reading = reading_options(args)
    row = next((row for row in chosen_rows(args) if row["id"] == args.id), None)
    if row is None:
        raise OptionError(
            f"No item {args.id!r} among the chosen rows. Ids are PATIENT_VISIT_STUDY_SERIES_SIDE_QUESTION."
        )
    report = score(args.predictions, [row], rounds=0, subset=subset_of(args), **reading)
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
