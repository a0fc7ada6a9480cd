"""The row index of an annotation file, built once per release and kept beside the other caches."""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.dataset.index import IndexBuilder, RowIndex
from reasonknee_hf.dataset.json_array import iter_records
from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.hub.zips.archive import write_file

logger = logging.getLogger(__name__)


def known_index(release: Release, path: str) -> RowIndex | None:
    """The index of an annotation file if it has been built on this machine; it is memory-mapped, not read."""
    try:
        file = index_file(release, path)
        with open(file, "rb") as handle:
            index = RowIndex.from_buffer(
                mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), name=str(file)
            )
    except FileNotFoundError:
        return None
    except (AnnotationError, ValueError, OSError) as error:
        logger.log(logging.INFO if isinstance(error, OSError) else logging.WARNING, "%s", error)
        return None
    return index if index.identity == _identity(release, path) else None


def row_index(release: Release, path: str) -> RowIndex:
    """The index of an annotation file; built in one pass over the file if this machine does not have it.

    Processes that ask at the same time wait for the first one. Where it cannot be kept, each builds its own.

    Raises:
        AnnotationError: The file is not the JSON it should be.
    """
    with one_at_a_time(lambda: index_file(release, path)):
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
    keep(lambda: index_file(release, path), index.to_bytes(), f"the row index of {path}")
    return index


@contextlib.contextmanager
def one_at_a_time(place: Callable[[], Path]) -> Iterator[None]:
    """Other processes that make the same file wait; not where its folder cannot be written to."""
    from filelock import FileLock

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(f"{place()}.lock"))
        except OSError as error:
            logger.info("going on without a lock: %s", error)
        yield


def keep(place: Callable[[], Path], content: bytes, what: str) -> None:
    """Writes a file that saves the next pass some time. Where that fails, this one does not: it is logged."""
    try:
        write_file(place(), content)
    except OSError as error:
        logger.warning("%s is not kept for the next pass: %s", what, error)


def _identity(release: Release, path: str) -> str:
    return f"{release.identity}/{path}"


def index_file(release: Release, path: str) -> Path:
    """Where the index of an annotation file is kept."""
    from huggingface_hub import cached_assets_path

    folder = cached_assets_path("reasonknee_hf", namespace="rows", subfolder="index")
    return Path(folder) / f"{sha256(_identity(release, path).encode()).hexdigest()[:32]}.idx"
