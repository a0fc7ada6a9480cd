"""The `reasonknee` command. Data goes to stdout, warnings to stderr; errors end with one line and exit code 1."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from reasonknee_hf import environment
from reasonknee_hf.errors import ReasonKneeError

# Command name -> (module, one-line help). A module is imported only when its command is asked for; it offers
# `configure(parser)` and `run(args) -> int`.
COMMANDS: dict[str, tuple[str, str]] = {
    "app": ("reasonknee_hf.cli.app_command", "look at cases in a browser, and at what two runs answered"),
    "bench": (
        "reasonknee_hf.cli.bench_command",
        "ReasonKnee-Bench: score a run, write its items, look at one",
    ),
    "cache": ("reasonknee_hf.cli.cache_command", "what is kept on this disk, and how it is made less"),
    "check-card": (
        "reasonknee_hf.cli.check_card_command",
        "what the Hub or its viewer would refuse about a folder",
    ),
    "convert": ("reasonknee_hf.cli.convert_command", "write a version that plain `datasets` loads"),
    "croissant": ("reasonknee_hf.cli.croissant_command", "describe a release in Croissant (JSON-LD)"),
    "demo": ("reasonknee_hf.cli.demo_command", "the main job on the built-in sample: rows, and a picture"),
    "doctor": (
        "reasonknee_hf.cli.doctor_command",
        "which endpoints a run could use, and who would get a token",
    ),
    "env": ("reasonknee_hf.cli.env_command", "versions and settings, for reports of faults"),
    "download": (
        "reasonknee_hf.cli.download_command",
        "fetch what a config needs, to be used without a network",
    ),
    "export": (
        "reasonknee_hf.cli.export_command",
        "chats and pictures as files, for LLaMA-Factory, ms-swift, axolotl",
    ),
    "images": (
        "reasonknee_hf.cli.images_command",
        "volumes out of a download from the OAI: what it holds, and in the release's layout",
    ),
    "masks": ("reasonknee_hf.cli.masks_command", "list, get or join the members of the cut mask archive"),
    "push": ("reasonknee_hf.cli.push_command", "write such a version and push it to a repository"),
    "rows": ("reasonknee_hf.cli.rows_command", "rows of one config as JSON lines"),
    "sample": ("reasonknee_hf.cli.sample_command", "write a synthetic release to a folder"),
    "show": ("reasonknee_hf.cli.show_command", "look at one row or scan, as a picture or a page"),
    "verify": ("reasonknee_hf.cli.verify_command", "what does not fit together in a release"),
}


_EXIT_CODES = "Exit code: 0 if done, 1 for an error, 2 for a wrong command line, 130 if interrupted."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="reasonknee", description="3DReasonKnee for the Hugging Face ecosystem."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = None
    completes = environment.is_completing()
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, epilog=_EXIT_CODES)
        if name == chosen or completes:
            module = importlib.import_module(module_name)
            module.configure(command)
            _add_quiet(command)
            run = module.run
    if completes:
        importlib.import_module("argcomplete").autocomplete(parser)  # prints, and ends the program
    args = parser.parse_args(arguments)
    assert run is not None
    environment.choose_cache(getattr(args, "cache", None), getattr(args, "cache_size", None))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Answers of models may hold halves of characters, which no encoding has.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _quiet() if args.quiet else nullcontext():
            code = int(run(args) or 0)
        sys.stdout.flush()  # here, where a full disk is told like any other error
        return code
    except ReasonKneeError as error:
        print(f"reasonknee: {_as_typed(str(error), args)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"reasonknee: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130  # as a shell has it
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that cannot be read or written; the message names it
        print(f"reasonknee: {error}", file=sys.stderr)
        _give_up_stdout()
        return 1


def _as_typed(text: str, args: argparse.Namespace) -> str:
    """A message with options as this command has them: `on_error='skip'` is `--on-error skip`."""

    def option(found: re.Match[str]) -> str:
        if not hasattr(args, found[1]):
            return found[0]
        return f"--{found[1].replace('_', '-')}" + (f" {found[2]}" if found[2] else "")

    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)=(?:'([^']*)'|(?=[\s,.;:)]|$))", option, text)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    """Gives a command and the commands below it the option `--quiet`, where they have none of their own."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for command in action.choices.values():
            command.epilog = command.epilog or _EXIT_CODES
            _add_quiet(command)
    if not below and "--quiet" not in parser._option_string_actions:
        parser.add_argument("--quiet", action="store_true", help="no progress bars and no warnings")


@contextmanager
def _quiet() -> Iterator[None]:
    """Shows neither progress bars nor warnings, for one command: `main` may be called by a program."""
    import datasets

    ours, bars = logging.getLogger("reasonknee_hf"), datasets.are_progress_bars_disabled()
    level = ours.level
    datasets.disable_progress_bars()
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _give_up_stdout() -> None:
    """Closes stdout if nothing can be written there, so that the end of the program does not try again."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
