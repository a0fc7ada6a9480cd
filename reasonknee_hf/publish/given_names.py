"""Names of configs and repositories that load back."""

from __future__ import annotations

import re
from pathlib import Path

from reasonknee_hf.errors import PublishError

# What `datasets` and file names on all systems take; the Hub adds its own rule for repositories.
_CONFIG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_RESERVED = {"all"}
_FILES = {"readme.md", "croissant.json", "license", "notice"}  # what lies beside the folders of configs
_LONGEST = 96  # with what is added to it, it is the name of folders, files and configs


def check_name(what: str, name: str) -> None:
    """Refuses the name of a config that would not load back, and proposes one that would.

    Raises:
        PublishError: The name is refused.
    """
    taken = name in _RESERVED or name.lower() in _FILES
    if _CONFIG.fullmatch(name) and not taken and not name.endswith(".") and len(name) <= _LONGEST:
        return
    proposed = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "config"
    proposed = proposed[:_LONGEST].rstrip("_.-")
    if proposed in _RESERVED or proposed.lower() in _FILES:
        proposed = f"{proposed.partition('.')[0]}_rows"
    raise PublishError(
        f"{name!r} is no name for a {what}: it would not load back (letters, digits, '_', '-' and '.', beginning "
        f"with a letter or digit; at most {_LONGEST}; not {', '.join(sorted(_RESERVED | _FILES))}). {proposed!r} would."
    )


def check_repo(repo_id: str) -> None:
    """Refuses the id of a repository that the Hub would not take, and proposes one.

    Raises:
        PublishError: The id is refused.
    """
    if "://" in repo_id or repo_id.startswith("buckets/"):
        raise PublishError(
            f"{repo_id!r} is no dataset repository, and push writes to nothing else: give OWNER/NAME. To put a version "
            "elsewhere, write it to a folder by convert and copy that."
        )
    parts = repo_id.split("/")
    if len(parts) == 2 and all(_PART.fullmatch(part) for part in parts) and not repo_id.endswith(".git"):
        return
    cleaned = [re.sub(r"[^A-Za-z0-9_.-]+", "-", part) for part in parts[-2:]]
    cleaned = [re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", part)).strip("-.")[:96] for part in cleaned]
    cleaned = cleaned if len(parts) > 1 else ["OWNER", *cleaned]
    proposed = "/".join(part.removesuffix(".git") or "name" for part in cleaned)
    raise PublishError(
        f"{repo_id!r} is no repository id: OWNER/NAME of letters, digits, '_', '-' and '.', at most 96 each, without "
        f"'--' or '..', not ending in .git. {proposed!r} would be one."
    )


def check_out(out: str | Path) -> Path:
    """The folder that a conversion is written to.

    Raises:
        PublishError: It is a URL: nothing would be there, but a folder of that name here.
    """
    if "://" in str(out):
        raise PublishError(
            f"{str(out)!r} is a URL, and convert writes to folders. Write to one and copy it, or push to a repository."
        )
    return Path(out)
