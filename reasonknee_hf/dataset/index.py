"""Where each record of one annotation file stands, to which volume it belongs, and what it asks.

An index is built in one pass over the records and stored as flat arrays that are used where they lie: a
memory-mapped index costs no memory of its own, and all workers share it.

Layout, little-endian: 8 bytes of magic, CRC-32 of all that follows it, length of the header (4 bytes each), and
the header, which is JSON. Then, each beginning at a multiple of 64 bytes, the arrays `offsets`, `lengths`,
`image_numbers` and `question_ids`, and the published image paths as JSON.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from array import array
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.contract import Records, Release
from reasonknee_hf.dataset.json_record import RawRecord
from reasonknee_hf.dataset.record_forms import records_of
from reasonknee_hf.errors import AnnotationError
from reasonknee_hf.hub.disk import GIB, DiskCache, our_folders

VERSION = 2

_MAGIC = b"RKROWIDX"
_PREFIX = struct.Struct("<8sII")
_CHECKED_FROM = 12  # behind the checksum
_ALIGNMENT = 64
_ARRAYS = {"offsets": "<i8", "lengths": "<i4", "image_numbers": "<i4", "question_ids": "<i2"}


class RowIndex:
    """The index of one annotation file. Row `k` is the file's record number `k`.

    Attributes:
        offsets: int64, where each record begins, in bytes.
        lengths: int32, the length of each record in bytes.
        image_numbers: int32, the place of each record's image in `images`.
        question_ids: int16, from 1; 0 where the prompt is unknown.
        images: The records' image paths as published, in order of first appearance; an empty one stands for
            records that name none.
        identity: What the file was, as given to [`IndexBuilder.finish`]. An index of another one is stale.
        size: The file's size in bytes.
    """

    def __init__(
        self, arrays: dict[str, npt.NDArray[Any]], images: tuple[str, ...], identity: str, size: int
    ) -> None:
        self.offsets: npt.NDArray[np.int64] = arrays["offsets"]
        self.lengths: npt.NDArray[np.int32] = arrays["lengths"]
        self.image_numbers: npt.NDArray[np.int32] = arrays["image_numbers"]
        self.question_ids: npt.NDArray[np.int16] = arrays["question_ids"]
        self.images = images
        self.identity = identity
        self.size = size

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"RowIndex({len(self)} rows, {len(self.images)} images, {self.identity!r})"

    def span(self, row: int) -> tuple[int, int]:
        """First byte of a record and the byte behind its last."""
        start = int(self.offsets[row])
        return start, start + int(self.lengths[row])

    def rows_of(self, image_number: int) -> npt.NDArray[np.int64]:
        """The rows of one image, in the order of the file."""
        start, stop = self._ends[image_number : image_number + 2]
        return np.arange(start, stop) if self.grouped else self._by_image[start:stop]

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows each image has."""
        return np.bincount(self.image_numbers, minlength=len(self.images)).astype(np.int64)

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """For each image how many rows the images up to it have, behind a zero."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])

    @cached_property
    def grouped(self) -> bool:
        """Whether the records of each image follow one another, as in the published files."""
        return bool((self.image_numbers[:-1] <= self.image_numbers[1:]).all())

    @cached_property
    def _by_image(self) -> npt.NDArray[np.int64]:
        """All rows ordered by image."""
        return np.argsort(self.image_numbers, kind="stable").astype(np.int64)

    def to_bytes(self) -> bytes:
        """The index as it is stored; [`RowIndex.from_buffer`] reads it back."""
        names = json.dumps(self.images).encode()
        parts = [getattr(self, name).astype(kind).tobytes() for name, kind in _ARRAYS.items()]
        header = {
            "version": VERSION,
            "identity": self.identity,
            "size": self.size,
            "rows": len(self),
            "names": len(names),
        }
        encoded = json.dumps(header).encode()
        out = bytearray(_PREFIX.pack(_MAGIC, 0, len(encoded)) + encoded)
        for part in (*parts, names):
            out += bytes(-len(out) % _ALIGNMENT) + part
        _PREFIX.pack_into(out, 0, _MAGIC, zlib.crc32(memoryview(out)[_CHECKED_FROM:]), len(encoded))
        return bytes(out)

    @classmethod
    def from_buffer(cls, buffer: Any, *, name: str = "row index") -> RowIndex:
        """An index whose arrays lie in `buffer`, for instance in a read-only `mmap`.

        Args:
            buffer: Anything with the buffer protocol; it must stay as it is while the index is used.
            name: What to call it in errors.

        Raises:
            AnnotationError: It holds no index, one of another version, or a damaged one.
        """
        view = memoryview(buffer).cast("B")
        header, at = _header(view, name)
        arrays = {}
        for column, kind in _ARRAYS.items():
            at += -at % _ALIGNMENT
            dtype, rows = np.dtype(kind), header["rows"]
            arrays[column] = np.frombuffer(view[at : at + rows * dtype.itemsize], dtype)
            at += rows * dtype.itemsize
        at += -at % _ALIGNMENT
        images = tuple(json.loads(bytes(view[at : at + header["names"]])))
        return cls(arrays, images, header["identity"], header["size"])


class IndexBuilder:
    """Builds an index from records that pass by, so that the first epoch can do it while it streams.

    Args:
        question_of: Gives the number of the question that a prompt asks; `None` for an unknown one.
        records: What the records name things.
    """

    def __init__(self, question_of: Callable[[str], int | None], records: Records | None = None) -> None:
        self._question_of = question_of
        self._records = records or Records()
        self._columns = {
            "offsets": array("q"),
            "lengths": array("i"),
            "image_numbers": array("i"),
            "question_ids": array("h"),
        }
        self._images: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._columns["offsets"])

    def add(self, record: RawRecord) -> None:
        """Takes the next record of the file.

        Raises:
            ValueError: It is not the next one.
        """
        if record.index != len(self):
            raise ValueError(f"record {record.index} after {len(self)} records")
        image, prompt = self._records.image_of(record.value), self._records.question_in(record.value)
        question = self._question_of(prompt) if isinstance(prompt, str) else None
        name = image if isinstance(image, str) else ""
        self._columns["offsets"].append(record.offset)
        self._columns["lengths"].append(record.length)
        self._columns["image_numbers"].append(self._images.setdefault(name, len(self._images)))
        self._columns["question_ids"].append(question or 0)

    def finish(self, *, identity: str, size: int) -> RowIndex:
        """The index of all records taken.

        Args:
            identity: What tells this file from others and from other versions of it, e.g. its path and hash.
            size: The file's size in bytes.
        """
        arrays = {name: np.array(self._columns[name], dtype=kind) for name, kind in _ARRAYS.items()}
        return RowIndex(arrays, tuple(self._images), identity, size)


def _header(view: memoryview, name: str) -> tuple[dict[str, Any], int]:
    """The checked header, and where it ends."""

    def broken(what: str) -> AnnotationError:
        return AnnotationError(f"{name}: {what}. Delete it; it is built again when it is needed.")

    if len(view) < _PREFIX.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise broken("this is not a row index")
    _, checksum, length = _PREFIX.unpack_from(view)
    if zlib.crc32(view[_CHECKED_FROM:]) != checksum:
        raise broken("the row index is damaged")
    header: dict[str, Any] = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
    if header["version"] != VERSION:
        raise broken(f"the row index has version {header['version']}, not {VERSION}")
    return header, _PREFIX.size + length


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
            builder = IndexBuilder(release.dataset.question_of, release.dataset.records(path))
            for record in records_of(release, path):
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
