"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reasonknee_hf.dataset.contract import described, known_names


def add_source_options(
    parser: argparse.ArgumentParser, *, images: bool = True, dataset: bool = False
) -> None:
    """Adds the options that say which release a command reads, and of which dataset."""
    if dataset:
        parser.add_argument(
            "--dataset", choices=known_names(), help="short name (default: the first of them)"
        )
    parser.add_argument(
        "--source", help="Hub dataset id, folder, fsspec URL or 'sample' (default: the published one)"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub source")
    parser.add_argument(
        "--endpoint", action="append", help="Hub or mirror URL; may be given several times, best first"
    )
    if images:
        parser.add_argument(
            "--images", help="another root for the volumes: folder, URL, download of DICOM, or CSV of paths"
        )
    add_cache_options(parser)


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what is kept on this disk."""
    parser.add_argument(
        "--cache",
        metavar="auto|1|0|DIR",
        help="what of a Hub to keep on this disk (default: $REASONKNEE_CACHE)",
    )
    parser.add_argument("--cache-size", metavar="BYTES", help="at most so much of one repository, e.g. 50GB")


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """The given source options as keywords of `load_dataset` and `open_release`."""
    names = ("source", "revision", "endpoint", "images")
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}


def check_target(path: str | Path) -> None:
    """Makes sure that a file can be written, before the work that fills it; folders above are made.

    Raises:
        OSError: It cannot. A file that is there stays as it is.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.touch()
        target.unlink()
    elif target.is_file() or target.is_dir():  # others, such as pipes, are not opened for nothing
        target.open("ab").close()


def check_picture(path: str | Path) -> None:
    """The same for a picture, whose ending chooses the format.

    Raises:
        OptionError: Pictures are not written in that format.
    """
    from reasonknee_hf.look.figures import picture_format

    picture_format(path)
    check_target(path)


def open_chosen_release(args: argparse.Namespace) -> Any:
    """The release that the source options name."""
    return described(getattr(args, "dataset", None)).open(**source_options(args))
