"""The row index of an annotation file, built once per release and kept beside the other caches."""

from __future__ import annotations

import logging

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.dataset.index import IndexBuilder, RowIndex
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.hub.disk import GIB, DiskCache, our_folders

logger = logging.getLogger(__name__)


def known_index(release: Release, path: str) -> RowIndex | None:
    """The index of an annotation file if it has been built on this machine; it is memory-mapped, not read."""
    stored = kept_beside().view(_identity(release, path))
    if stored is None:
        return None
    try:
        index = RowIndex.from_buffer(stored, name=f"the row index of {path}")
    except (AnnotationError, ValueError) as error:  # of another version
        logger.info("%s", error)
        return None
    return index if index.identity == _identity(release, path) else None


def row_index(release: Release, path: str) -> RowIndex:
    """The index of an annotation file; built in one pass over the file if this machine does not have it.

    Processes that ask at the same time wait for the first one. Where it cannot be kept, each builds its own.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    with kept_beside().alone(_identity(release, path), -1):
        index = known_index(release, path)
        if index is None:
            logger.info("indexing the records of %s of %s", path, release.tree.name)
            builder = IndexBuilder(release.dataset.question_of)
            for record in iter_records(release.tree.stream(path), name=path):
                builder.add(record)
            index = keep_index(release, path, builder)
        return index


def keep_index(release: Release, path: str, builder: IndexBuilder) -> RowIndex:
    """The index of all records of a file, stored for this machine in one step where that can be done."""
    index = builder.finish(identity=_identity(release, path), size=release.tree.size(path))
    keep(index.identity, index.to_bytes(), f"the row index of {path}")
    return index


def kept_beside() -> DiskCache:
    """What saves the next pass over an annotation file some time."""
    return DiskCache(our_folders()["index"], 4 * GIB)


def keep(key: str, content: bytes, what: str) -> None:
    """Keeps something for the next pass. Where that fails, this one does not: it is logged."""
    if not kept_beside().put(key, content):
        logger.warning("%s is not kept for the next pass", what)


def _identity(release: Release, path: str) -> str:
    return f"{release.identity}/{path}"
