"""`reasonknee masks`: what the mask archive holds, single members of it, or all of it as one zip."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reasonknee_hf.cli.source_options import add_source_options
from reasonknee_hf.errors import ArchiveError, OptionError

if TYPE_CHECKING:
    from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
    from reasonknee_hf.hub.zips.archive import CutArchive


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = commands.add_parser("ls", help="list the members")
    listing.add_argument(
        "pattern", nargs="?", default="*", help="only members whose name fits, e.g. '*knee_00?.*'"
    )
    listing.add_argument(
        "-l", "--long", action="store_true", help="size, packed size and CRC before the name"
    )
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    getting = commands.add_parser("get", help="write members to a folder or to standard output")
    getting.add_argument("name", nargs="+", help="member, or any published spelling of its path")
    getting.add_argument(
        "-o", "--output", default=".", help="folder (default: here), or - for standard output"
    )
    joining = commands.add_parser("join", help="write the whole archive as one verified zip")
    joining.add_argument("out", help="file to write")
    joining.add_argument("--force", action="store_true", help="replace the file if it exists")
    joining.add_argument(
        "--check-members", action="store_true", help="also read every member and check its CRC"
    )
    for command in (listing, getting, joining):
        command.add_argument(
            "--archive", help="folder the archive stands for (default: the only one, or data/masks)"
        )
        add_source_options(command, images=False)
        command.add_argument("--encoding", help="code page of names that are not flagged as UTF-8, e.g. gbk")


def run(args: argparse.Namespace) -> int:
    """Does one action. Returns the exit code."""
    fs = _filesystem(args)
    archive = _chosen(fs, args.archive)
    if args.action == "ls":
        _list(archive, args.pattern, long=args.long, as_json=args.json)
    elif args.action == "get":
        _get(archive, args.name, args.output)
    else:
        from reasonknee_hf.hub.fs.cutzip import join

        path = join(
            fs.tree, archive.parts, args.out, overwrite=args.force, check_members=args.check_members or None
        )
        print(path)
    return 0


def _filesystem(args: argparse.Namespace) -> ReasonKneeFileSystem:
    from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
    from reasonknee_hf.knee.description import chosen_source

    source, revision = chosen_source(args.source, args.revision)
    return ReasonKneeFileSystem(source, revision, endpoint=args.endpoint, encoding=args.encoding)


def _chosen(fs: ReasonKneeFileSystem, folder: str | None) -> CutArchive:
    from reasonknee_hf.knee.layout import MASKS_FOLDER

    archives = fs.archives
    if folder is None and len(archives) == 1:
        return next(iter(archives.values()))
    folder = MASKS_FOLDER if folder is None else folder.strip("/")
    if folder not in archives:
        known = ", ".join(archives) or "none"
        raise OptionError(
            f"{fs.tree.name} holds no archive for the folder {folder!r}; archives: {known} (--archive)"
        )
    return archives[folder]


def _list(archive: CutArchive, pattern: str, *, long: bool, as_json: bool) -> None:
    directory = archive.directory
    for name, index in directory.files.items():
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        member = directory[index]
        facts = {"name": name, "size": member.size, "compressed_size": member.compressed_size}
        shown = (
            name if member.unsafe is None and name.isprintable() else repr(name)
        )  # no control codes on a terminal
        if as_json:
            print(json.dumps({**facts, "crc": f"{member.crc:08x}", "unsafe": member.unsafe}))
        elif long:
            print(f"{member.size:>12} {member.compressed_size:>12} {member.crc:08x} {shown}")
        else:
            print(shown)


def _get(archive: CutArchive, names: list[str], output: str) -> None:
    from reasonknee_hf.dataset.paths import PathResolver

    files = PathResolver(archive.names(), archive.name)
    members = [files.resolve(name) for name in names]
    if output != "-":
        for path in archive.extract(Path(output), members):
            print(path)
        return
    if len(members) > 1:
        raise ArchiveError(
            "several members cannot be told apart on standard output; name one, or a folder with -o"
        )
    sys.stdout.buffer.write(archive.read(members[0]))
