"""The arguments of `convert` and `push`, made of their options, and how both tell what they did."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from typing import Any

from reasonknee_hf.errors import OptionError
from reasonknee_hf.publish.config_facts import Conversion
from reasonknee_hf.publish.options import VersionOptions


def add_publish_options(parser: argparse.ArgumentParser, kind: type[VersionOptions]) -> None:
    """Adds an argument for each option that has one, and those of every command that publishes."""
    groups: dict[str, Any] = {}
    for one in fields(kind):
        words: dict[str, Any] = dict(one.metadata)
        flags, told, group = words.pop("flags"), words.pop("help"), words.pop("group", None)
        if not flags:
            continue
        if words.pop("many", False):
            words["action"] = "append"
        elif isinstance(one.default, bool) or one.type == "bool | None":
            words |= {"action": "store_const", "const": not one.default}
        elif one.default is not None:
            told += f" (default: {one.default})"
        if group is not None and group not in groups:
            groups[group] = parser.add_argument_group(*group.split(": "))
        groups.get(group, parser).add_argument(*flags, dest=one.name, default=None, help=told, **words)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that make shards (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="say nothing of how far it is")


@contextlib.contextmanager
def chosen_options(args: argparse.Namespace, kind: type[VersionOptions]) -> Iterator[dict[str, Any]]:
    """The given arguments as options, with a pool of processes where one is asked for.

    Raises:
        OptionError: A number of processes, a grade or a filter that cannot be read.
    """
    given: dict[str, Any] = {one.name: getattr(args, one.name, None) for one in fields(kind)}
    given = {name: value for name, value in given.items() if value is not None}
    if "grades" in given:
        given["grades"] = _grades(given["grades"])
    if "where" in given:
        given["where"] = _function(given["where"])
    if args.workers < 1:
        raise OptionError(f"--workers {args.workers}: give a number of processes of at least 1.")
    with contextlib.ExitStack() as stack:
        if not args.quiet:
            stack.enter_context(_progress())
        if args.workers > 1:
            given["executor"] = stack.enter_context(ProcessPoolExecutor(args.workers))
        yield given


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Shows on stderr what is logged about files and tries meanwhile."""
    logger, handler = logging.getLogger("reasonknee_hf.publish"), logging.StreamHandler(sys.stderr)
    level, passed_on = logger.level, logger.propagate
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = passed_on


def tell(done: Conversion, args: argparse.Namespace, further: Mapping[str, Any]) -> None:
    """Prints what was written: a line a split, or JSON."""
    if args.json:
        print(json.dumps({**further, **done.told()}, ensure_ascii=False))
        return
    for config in done.configs:
        for split, facts in config.splits.items():
            print(
                f"{config.name}\t{split}\t{facts.rows} rows\t{facts.file_bytes} bytes\t{len(facts.files)} files"
            )


def _grades(given: list[str]) -> Any:
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


def _function(named: str) -> Any:
    from importlib import import_module

    module, _, name = named.partition(":")
    if os.getcwd() not in sys.path:  # which `python -m` has and the command has not
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"--where {named}: {error}. Give MODULE:FUNCTION, the module in this folder or on the Python path."
        ) from None
