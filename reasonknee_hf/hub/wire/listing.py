"""The listing of a commit: what the Hub's API sends, and what is kept of it on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reasonknee_hf.errors import AnswerError
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.wire.checks import A_PAGE


def parse_json(content: bytes, what: str, where: str) -> Any:
    """Raises [`AnswerError`] for what is not JSON, such as the page of a login portal."""
    try:
        return json.loads(content)
    except ValueError:
        start = content[:60].decode("utf-8", "replace").strip()
        kind = A_PAGE if start.startswith("<") else f"sent something else than JSON: {start!r}"
        raise AnswerError(f"{where}: {kind} (asked for {what})") from None


def from_info(info: Any, what: str, where: str) -> tuple[str, dict[str, FileEntry]]:
    """Commit and files of the info of a revision, asked for with `blobs=true`. Some mirrors send no sizes."""
    try:
        sha = str(info["sha"])
        found = [_entry(item["rfilename"], item, item.get("blobId")) for item in info["siblings"]]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise AnswerError(f"{where}: the info of {what} lacks what it must have ({error!r})") from None
    return sha, {entry.path: entry for entry in sorted(found, key=lambda entry: entry.path)}


def from_paths_info(items: Any, what: str, where: str) -> dict[str, FileEntry]:
    """Files of the answer to a `paths-info` or a `tree` request."""
    try:
        found = [_entry(item["path"], item, item.get("oid")) for item in items if item.get("type") == "file"]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise AnswerError(f"{where}: the sizes of {what} lack what they must have ({error!r})") from None
    return {entry.path: entry for entry in sorted(found, key=lambda entry: entry.path)}


def _entry(path: Any, item: Mapping[str, Any], blob_id: Any) -> FileEntry:
    if not isinstance(path, str):
        raise ValueError(f"a path is {path!r}")
    size = item.get("size")
    lfs = item.get("lfs") or {}
    sha256 = lfs.get("sha256") or lfs.get("oid")
    size = lfs.get("size") if size is None else size
    return FileEntry(
        path,
        int(size) if size is not None else None,
        str(blob_id).lower() if blob_id else None,
        str(sha256).lower().removeprefix("sha256:") if sha256 else None,
    )


def missing(entry: FileEntry) -> bool:
    """Whether the listing leaves out the size or every hash."""
    return entry.size is None or (entry.blob_id is None and entry.sha256 is None)


def dump(entries: Mapping[str, FileEntry]) -> bytes:
    """A listing as it is kept on disk."""
    return json.dumps([[e.path, e.size, e.blob_id, e.sha256] for e in entries.values()]).encode()


def load(content: bytes) -> dict[str, FileEntry]:
    """What [`dump`] wrote."""
    rows: Sequence[Sequence[Any]] = json.loads(content)
    return {row[0]: FileEntry(*row) for row in rows}
