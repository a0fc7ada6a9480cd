"""Decides by the look of a source what kind of tree it is."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Literal
from urllib.parse import unquote

from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.disk import Cache, chosen_cache
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.trees.cached_tree import CachedTree
from reasonknee_hf.hub.trees.folder_tree import FsspecTree
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.wire.endpoints import EndpointLike
from reasonknee_hf.hub.wire.repository import is_repo_id

_HF_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?/?")


def open_tree(
    source: str | os.PathLike[str],
    revision: str | None = None,
    endpoint: EndpointLike | Sequence[EndpointLike] | None = None,
    token: str | bool | None = None,
    *,
    cache: Cache | Literal[False] | None = None,
    closed: re.Pattern[str] | None = None,
) -> Tree:
    """Opens a folder, an fsspec URL or a dataset on a Hub.

    Args:
        source: Local folder, fsspec URL, `owner/name` of a dataset, or `hf://datasets/owner/name[@revision]`.
        revision: Of a dataset on a Hub; a folder has none.
        endpoint: Of a dataset on a Hub, see [`resolve_endpoints`].
        token: Of a dataset on a Hub, see [`Credentials`].
        cache: Keeps what comes from a Hub; by default, as the environment says.
        closed: Folders whose path it finds are listed as one entry, see [`FsspecTree`]; not for a Hub.

    Returns:
        [`Tree`]: Listing and bytes of the files.

    Raises:
        OptionError: `source` is none of these, or a folder was given a revision.
        EndpointError: A Hub did not resolve the revision.
    """
    chosen = chosen_cache() if cache is None else cache
    kind = partial(CachedTree, cache=chosen) if chosen else HubTree
    text = os.fspath(source).strip()
    hub = _HF_URL.fullmatch(text)
    if hub is not None:
        named = None if hub[2] is None else unquote(hub[2])
        if revision is not None and named is not None and revision != named:
            raise OptionError(f"{text!r} names a revision, but revision={revision!r} was given too")
        return kind(hub[1], revision or named, endpoint, token)
    if text.startswith("hf://") and (endpoint or token):
        raise OptionError(
            f"{text!r} is not the root of a dataset, so that endpoint= and token= cannot be used for it. Give "
            "hf://datasets/owner/name[@revision]"
        )
    is_folder = os.path.isdir(os.path.expanduser(text))
    if is_folder or "://" in text or os.path.isabs(text):
        if revision is not None:
            raise OptionError(
                f"{text!r} is not a dataset on a Hub, so it has no revision {revision!r}; leave it out"
            )
        root = os.path.expanduser(text) if "://" not in text else text
        return FsspecTree(root) if closed is None else FsspecTree(root, closed)
    if is_repo_id(text):
        return kind(text, revision, endpoint, token)
    raise OptionError(
        f"{text!r} is neither an existing folder, nor a URL like s3://bucket/release, nor a dataset id like "
        f"'owner/name'"
    )
