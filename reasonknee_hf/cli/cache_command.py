"""`reasonknee cache`: what this package keeps on this disk, how much it is, and how it is made less."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path

from reasonknee_hf import environment
from reasonknee_hf.cli.source_options import add_cache_options
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.disk import Entry, chosen_cache, entries, our_folders, prune

_KINDS = tuple(our_folders())


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    texts = {
        "ls": "how much there is of each kind, and where",
        "size": "bytes of all of it",
        "prune": "remove what was used longest ago",
        "clear": "remove all of it",
    }
    for name, text in texts.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument(
            "kind", nargs="*", help=f"only some of: {', '.join(_KINDS)} (default: all of them)"
        )
        if name in ("ls", "size"):
            action.add_argument("--json", action="store_true", help="print JSON")
        if name == "prune":
            action.add_argument("--max-size", required=True, metavar="BYTES", help="keep so much, e.g. 5GB")
        add_cache_options(action)


def run(args: argparse.Namespace) -> int:
    """Does one action. Returns the exit code."""
    folders = _folders(args.kind)
    found = {kind: list(entries(folder)) for kind, folder in folders.items()}
    everything = [entry for some in found.values() for entry in some]
    if args.action in ("ls", "size") and args.json:
        sizes = {kind: sum(size for _, size, _ in some) for kind, some in found.items()}
        told = {k: {"files": len(found[k]), "bytes": sizes[k], "folder": str(folders[k])} for k in found}
        print(json.dumps(told if args.action == "ls" else sum(sizes.values())))
    elif args.action == "ls":
        _list(found, folders)
    elif args.action == "size":
        print(sum(size for _, size, _ in everything))
    else:
        most = environment.as_bytes("--max-size", args.max_size) if args.action == "prune" else 0
        freed = prune(everything, most, None if args.action == "prune" else 0)
        for folder in folders.values():
            _remove_empty(folder)
        print(f"{freed} bytes freed")
    return 0


def _folders(kinds: list[str]) -> dict[str, Path]:
    folders, chosen = our_folders(), chosen_cache()
    if chosen is not None:
        folders |= {"listings": chosen.listings.folder, "pieces": chosen.pieces.folder}
    unknown = [kind for kind in kinds if kind not in folders]
    if unknown:
        raise OptionError(f"nothing is kept under the name {unknown[0]!r}; known: {', '.join(folders)}")
    return {kind: folder for kind, folder in folders.items() if not kinds or kind in kinds}


def _list(found: dict[str, list[Entry]], folders: dict[str, Path]) -> None:
    for kind, some in found.items():
        used = datetime.fromtimestamp(max(some)[0]).isoformat(" ", "minutes") if some else "-"
        size = sum(size for _, size, _ in some)
        print(f"{kind:<12}{len(some):>8} files {size:>15} bytes  {used:<16}  {folders[kind]}")
    print("Whole files of a Hub lie in the Hub's own cache: `hf cache ls`", file=sys.stderr)


def _remove_empty(folder: Path) -> None:
    for below in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not below.name.startswith(".") and not any(below.iterdir()):
            below.rmdir()
