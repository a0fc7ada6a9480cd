"""`reasonknee download`: fetches what a config needs, so that it is there without a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from datasets.utils import tqdm
from fsspec.core import url_to_fs

from reasonknee_hf import environment
from reasonknee_hf.cli.source_options import add_source_options, source_options
from reasonknee_hf.dataset.contract import described, imported
from reasonknee_hf.dataset.split_rows import SplitRows
from reasonknee_hf.errors import FileMissingError, OptionError
from reasonknee_hf.hub.tree import parse_url
from reasonknee_hf.hub.trees.cached_tree import CachedTree

_TEXTS = (".csv", ".json", ".md", ".txt")
_SMALL = 4 * 1024 * 1024
_MEMBERS_AT_ONCE = 64

Lost = list[tuple[str, object]]
"""Paths of what is not there now, and why."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("config", nargs="?", help="config, or dataset/config (default: the first, full)")
    parser.add_argument("--split", help="only this split")
    parser.add_argument("--category", help="volumes and masks only of scans with questions of this category")
    parser.add_argument("--images", dest="volumes", action="store_true", help="also the volumes")
    parser.add_argument("--masks", action="store_true", help="also the masks")
    parser.add_argument("--limit", type=int, help="volumes and masks only of so many scans of each split")
    add_source_options(parser, images=False)


def run(args: argparse.Namespace) -> int:
    """Fetches tables and annotations, and what else is asked for. Returns 1 if something of it is not there now."""
    name, _, config = (args.config or "").rpartition("/")
    dataset = described(name or None)
    if args.limit is not None and args.limit < 0:
        raise OptionError(f"--limit is a number of scans, 0 or more, not {args.limit}.")
    if environment.cache() in ("auto", False):
        environment.choose_cache("1", None)  # who asks has no bound in mind but one that is named
    builder = imported(dataset.builder)(config_name=config or None, **source_options(args))
    tree, names = builder.release.tree, builder.split_names()
    if not isinstance(tree, CachedTree):
        raise OptionError(
            f"{tree.name} is no release on a Hub: there is nothing to fetch. A version that was pushed is fetched by"
            " `hf download`."
        )
    for value, valid in ((args.split, names), (args.category, dataset.categories)):
        if value is not None and value not in valid:
            raise OptionError(f"{value!r} is none of {', '.join(valid)}.")
    small = [p for p, e in tree.entries().items() if p.endswith(_TEXTS) and (e.size or 0) <= _SMALL]
    lost = _fetch_files(tree, small, "tables")
    for split in names if args.split is None else [args.split]:
        rows = builder.rows(split)
        if dataset.configs[builder.config.name].asks:
            lost += _fetch_files(tree, [rows.path], f"{split}: annotations")
            len(rows.index)  # which makes it
        scans = list(islice(_scans(rows, args.category), args.limit))
        if args.volumes:
            urls = [builder.release.find_image(scan) or builder.release.image_url(scan) for scan in scans]
            for other, paths in _by_tree(urls):
                lost += _fetch_files(other, paths, f"{split}: volumes")
        if args.masks:
            urls = [url for scan in scans if (url := builder.release.mask_url(scan)) is not None]
            lost += _fetch_members(urls, f"{split}: masks")
    print(f"{tree.identity} in {tree.kept.cache.hub}")
    for path, why in lost[:20]:
        print(f"reasonknee: not there now: {path}: {why}", file=sys.stderr)
    if len(lost) > 20:
        print(f"reasonknee: and {len(lost) - 20} more", file=sys.stderr)
    return 1 if lost else 0


def _scans(rows: SplitRows, category: str | None) -> Iterator[Any]:
    """The scans of a split that its config has, and that are asked questions of the category."""
    release, dataset = rows.release, rows.release.dataset
    chosen = dataset.configs[rows.options.config].chosen
    ids = {scan.scan_id for scan in release.scans(rows.split)} if chosen is None else set(chosen(release))
    if category is not None:
        numbers = [number for number, question in dataset.questions.items() if question.category == category]
        images = np.unique(rows.index.image_numbers[np.isin(rows.index.question_ids, numbers)])
        asked = (release.scan_of(rows.index.images[image], rows.split) for image in images)
        ids &= {scan.scan_id for scan in asked if scan is not None}
    return (scan for scan in release.scans(rows.split) if scan.scan_id in ids)


def _by_tree(urls: Sequence[str]) -> Iterator[tuple[CachedTree, list[str]]]:
    """Paths by the repository that they lie in, which need not be that of the tables."""
    trees: dict[str, tuple[Any, list[str]]] = {}
    for url in urls:
        tree = url_to_fs(url)[0].tree
        trees.setdefault(tree.identity, (tree, []))[1].append(parse_url(url).path)
    yield from trees.values()


def _fetch_files(tree: CachedTree, paths: Sequence[str], what: str) -> Lost:
    listed = [path for path in paths if path in tree.entries()]
    lost: Lost = [(path, "not in the release") for path in paths if path not in tree.entries()]
    with tqdm(total=sum(map(tree.size, listed)), desc=what, unit="B", unit_scale=True) as bar:
        for path in listed:
            if tree.is_kept(path):
                bar.update(tree.size(path))
                continue
            for chunk in tree.stream(path):
                bar.update(len(chunk))
            if not tree.is_kept(path):
                lost.append((path, "it could not be kept; the disk or the bound of --cache-size is full"))
    return lost


def _fetch_members(urls: Sequence[str], what: str) -> Lost:
    lost: Lost = []
    for start in tqdm(range(0, len(urls), _MEMBERS_AT_ONCE), desc=what):
        fs, _ = url_to_fs(urls[start])
        found = fs.cat(list(urls[start : start + _MEMBERS_AT_ONCE]), on_error="return")
        for url, content in found.items():
            if isinstance(content, FileMissingError):
                lost.append((url, content))
            elif isinstance(content, Exception):
                raise content
    return lost
