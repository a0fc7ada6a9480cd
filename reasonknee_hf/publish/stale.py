"""Which files of a repository nobody needs after a push."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import yaml
from fsspec.utils import glob_translate

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.convert import Conversion
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.picture import picture_name
from reasonknee_hf.publish.rules import front_matter

SHARD = re.compile(r"[^/]+/[^/]+-\d{5}-of-\d{5}-[0-9a-f]{8}-\d{3}\.parquet")


def stale_files(
    names: Iterable[str], old: str, new: str, conversion: Conversion, deleted: Sequence[str] = ()
) -> list[str]:
    """Files of the configs that were written anew, or are to be deleted, which no config of the new card names.

    Args:
        names: Files of the repository.
        old, new: The card before and after.
        conversion: What was written.
        deleted: Configs that are to go.
    """
    job = conversion.job
    mine = {job.name, job.volumes_name, job.crops_name}
    before, after = patterns(old), patterns(new)
    replaced = [one for name in (*mine, *deleted) for one in before.get(name, ())]
    gone = tuple(f"{name}/{folder}/" for name in deleted for folder in ("images", "masks"))
    kept = [one for listed in after.values() for one in listed]
    written = {*conversion.files, *(name for config in conversion.configs for name in config.beside)}
    pictures = {picture_name(name) for name in deleted}
    beside = tuple(f"{job.volumes_name}/{folder}/" for folder in ("images", "masks"))
    stale = []
    for name in sorted(names):
        left_over = SHARD.fullmatch(name) is not None and name.split("/")[0] in (*mine, *deleted)
        loose = name.startswith((*beside, *gone)) or name in pictures
        if name in written or any(matches(name, one) for one in kept):
            continue
        if left_over or loose or any(matches(name, one) for one in replaced):
            stale.append(name)
    return stale


def with_companions(names: Iterable[str], files: Iterable[str], job: Job) -> list[str]:
    """Configs together with those of volumes and crops that were written beside them.

    Args:
        names: The configs.
        files: Files of the repository.
        job: What is being written, which is left out.
    """
    written = {name.split("/")[0] for name in files if SHARD.fullmatch(name)}
    written -= {job.name, job.volumes_name, job.crops_name}
    beside = [name + ending for name in names for ending in ("_volumes", "_crops")]
    return list(dict.fromkeys([*names, *(name for name in beside if name in written)]))


def patterns(card: str) -> dict[str, list[str]]:
    """Config → globs of its files, as a card gives them."""
    data: Any = yaml.safe_load(front_matter(card)[0]) or {}
    found: dict[str, list[str]] = {}
    for one in data.get("configs") or ():
        entries = one.get("data_files")
        entries = entries if isinstance(entries, list) else [entries] if entries else []
        for entry in entries:
            paths = entry.get("path") if isinstance(entry, dict) else entry
            base = str(one.get("data_dir") or "").strip("/")
            for path in paths if isinstance(paths, list) else [paths]:
                found.setdefault(str(one.get("config_name")), []).append(
                    f"{base}/{path}" if base else str(path)
                )
        if not entries and one.get("data_dir"):
            found.setdefault(str(one.get("config_name")), []).append(f"{one['data_dir'].strip('/')}/**")
    return found


def matches(name: str, pattern: str) -> bool:
    """Whether a path fits a glob of a card, by the rules by which `datasets` finds files.

    Raises:
        PublishError: `pattern` is none that `datasets` could read.
    """
    return _regex(pattern).match(name) is not None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(glob_translate(posixpath.normpath(pattern)))
    except ValueError as error:
        raise PublishError(
            f"The card names files by {pattern!r}, which nothing can read: {error}."
        ) from error
