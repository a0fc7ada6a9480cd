"""`reasonknee bench run`: a model's name in, a table out."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from reasonknee_hf.cli.bench_options import check_files
from reasonknee_hf.cli.source_options import add_source_options, source_options
from reasonknee_hf.dataset.joining import OnError
from reasonknee_hf.errors import OptionError


def add_run(parser: argparse.ArgumentParser) -> None:
    from reasonknee_hf.running.backends import BACKENDS

    parser.add_argument("--model", required=True, help="name of the model, or module:function")
    parser.add_argument("--backend", choices=BACKENDS, default="transformers", help="default: transformers")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder of the run; a stopped run goes on there"
    )
    parser.add_argument("--config", default="bench", help="bench, or dataset/config (default: bench)")
    parser.add_argument("--split", default="test", help="default: test")
    parser.add_argument("--setting", default="zero_shot", help="how it is asked (default: zero_shot)")
    parser.add_argument("--target", help="what is asked for, as box_grades, option, answer")
    parser.add_argument(
        "--view", help="what is shown of a volume (default: what the family of the model takes)"
    )
    parser.add_argument("--size", type=int, help="height and width of frames in pixels")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N questions")
    parser.add_argument("--on-error", choices=get_args(OnError), default="raise", help="unfit records")
    parser.add_argument("--generation", type=_json, default={}, metavar="JSON", help="options of generation")
    parser.add_argument("--seed", type=int, help="where answers are sampled")
    parser.add_argument(
        "--model-revision", metavar="REV", help="transformers: branch, tag or commit of the model"
    )
    parser.add_argument("--device", help="transformers: as torch names it")
    parser.add_argument("--dtype", help="transformers: as torch names it, e.g. bfloat16")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="transformers: questions answered together"
    )
    parser.add_argument("--url", help="openai: address of the server, up to /v1")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="openai: questions at the same time (default: 8)"
    )
    parser.add_argument("--score", action="store_true", help="score the run when it is done, into DIR")
    parser.add_argument(
        "--compare-with",
        nargs="+",
        default=[],
        metavar="RUN",
        help="other runs: folders, or prediction files",
    )
    add_source_options(parser)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text}") from error


def run_run(args: argparse.Namespace) -> int:
    from reasonknee_hf.running import run

    if args.limit is not None and args.limit < 1:
        raise OptionError(f"--limit is a number of questions, 1 or more, not {args.limit}.")
    others = [_predictions(given) for given in args.compare_with]
    if others and "/" in args.config:
        raise OptionError("--compare-with is for runs of 3DReasonKnee: those are compared item by item.")
    check_files([other.rpartition("=")[2] for other in others])
    backend = {"device": args.device, "dtype": args.dtype, "batch_size": args.batch_size}
    backend |= {"url": args.url, "concurrency": args.concurrency, "seed": args.seed}
    done = run(
        args.model,
        out=args.out,
        backend=args.backend,
        config=args.config,
        split=args.split,
        setting=args.setting,
        target=args.target,
        view=args.view,
        view_options={} if args.size is None else {"size": args.size},
        limit=args.limit,
        on_error=args.on_error,
        generation=args.generation,
        opening=source_options(args),
        **backend,
        revision=args.model_revision,
    )
    print(f"{done.predictions}: {done.answered:,} answered, {done.failed:,} ended in errors")
    code = int(done.failed > 0)
    if args.score:
        code = max(code, _score(args, done.predictions))
    if others:
        words = ["bench", "compare", _predictions(args.out), *others, *_opened(args)]
        code = max(code, _again(words + _files(args.out, "comparison")))
    return code


def _files(out: str | Path, name: str) -> list[str]:
    """Options that write what is said as JSON and Markdown, and as a plot where those can be drawn."""
    kinds = {"--json": "json", "--markdown": "md"} | ({"--plot": "png"} if find_spec("matplotlib") else {})
    return [word for option, kind in kinds.items() for word in (option, str(Path(out) / f"{name}.{kind}"))]


def _predictions(given: str) -> str:
    path = Path(given)
    return f"{path.name}={path / 'predictions.jsonl'}" if path.is_dir() else given


def _opened(args: argparse.Namespace) -> list[str]:
    """The options that open the same release, for another command."""
    words: list[str] = []
    for name, value in source_options(args).items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name}", str(each)]
    return words


def _score(args: argparse.Namespace, predictions: Path) -> int:
    out = predictions.parent
    words = ["bench", "score", str(predictions), *_opened(args)]
    if "/" in args.config:
        words += ["--json", str(out / "report.json"), "--dataset", args.config.partition("/")[0]]
        words += ["--form", "mc" if "option" in (args.target or "") else "freeform"]
    else:
        words += [*_files(out, "report"), "--compare", "paper", "--split", args.split]
        words += ["--only-answered"] if args.limit else []
    return _again(words)


def _again(words: list[str]) -> int:
    from reasonknee_hf import cli

    code: Any = cli.main(words)
    return int(code)
