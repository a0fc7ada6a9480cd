"""The row index of an annotation file, built once per release and kept beside the other caches."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.release.release import Release
from reasonknee_hf.rows.index import IndexBuilder, RowIndex
from reasonknee_hf.rows.json_array import iter_records

logger = logging.getLogger(__name__)


def known_index(release: Release, path: str) -> RowIndex | None:
    """The index of an annotation file if it has been built on this machine; it is memory-mapped, not read."""
    file = index_file(release, path)
    try:
        with open(file, "rb") as handle:
            index = RowIndex.from_buffer(
                mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), name=str(file)
            )
    except FileNotFoundError:
        return None
    except (AnnotationError, ValueError) as error:
        logger.warning("%s", error)
        return None
    return index if index.identity == _identity(release, path) else None


def row_index(release: Release, path: str) -> RowIndex:
    """The index of an annotation file; built in one pass over the file if this machine does not have it.

    Processes that ask at the same time wait for the first one.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    from filelock import FileLock

    with FileLock(f"{index_file(release, path)}.lock"):
        index = known_index(release, path)
        if index is None:
            logger.info("indexing the records of %s of %s", path, release.tree.name)
            builder = IndexBuilder()
            for record in iter_records(release.tree.stream(path), name=path):
                builder.add(record)
            index = keep_index(release, path, builder)
        return index


def keep_index(release: Release, path: str, builder: IndexBuilder) -> RowIndex:
    """Stores the index of all records of a file for this machine, in one step."""
    index = builder.finish(identity=_identity(release, path), size=release.tree.size(path))
    file = index_file(release, path)
    handle, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with open(handle, "wb") as out:
            out.write(index.to_bytes())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    return index


def _identity(release: Release, path: str) -> str:
    return f"{release.identity}/{path}"


def index_file(release: Release, path: str) -> Path:
    """Where the index of an annotation file is kept."""
    from huggingface_hub import cached_assets_path

    folder = cached_assets_path("reasonknee_hf", namespace="rows", subfolder="index")
    return Path(folder) / f"{sha256(_identity(release, path).encode()).hexdigest()[:32]}.idx"
