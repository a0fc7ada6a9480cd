"""Writes rows to Parquet files that are cut by real bytes: small row groups, page index, dictionary-encoded text.

A writer makes one or more parts. They get their final names when all are complete, the first part last: where part
`000` lies, all parts do. A killed writer leaves only a folder of unfinished parts, which the next one replaces.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Features

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.places import disk_full
from reasonknee_hf.publish.schema import STORED, arrow_schema, file_columns, has_volumes

_BATCH_ROWS = (1024, 4096)  # rows held as Python objects before they become Arrow: least and most
_ENDS = 16  # one of so many scans begins a new row group
_TEXT_GROUP = 8_000_000  # bytes of a row group of text, which readers turn into many small objects
_HEAVY = 4_000_000  # bytes of files from which on rows are handled one by one
_DICTIONARY_BYTES = 16 << 20  # of one column of one row group; beyond it Parquet falls back to plain text
_ENOUGH_TO_TELL = 100  # rows that show whether the text of a column repeats
_LONG_TEXT = 64  # bytes on average
# Row groups begin where scans say so. A smaller most would cut pages by what stands in the row groups before, too.
_CHUNKS = {"min_chunk_size": 256 * 1024, "max_chunk_size": 64 << 20, "norm_level": 0}
_CHUNKED = int(pa.__version__.partition(".")[0]) >= 21
"""Whether pages end where content says so, as `datasets` writes them: what did not change is not sent again."""
_CHECK_ROWS = 3  # rows of a part that are read back


@dataclass(frozen=True)
class Limits:
    """How large things get, in bytes of real data.

    Args:
        row_group: Uncompressed bytes of a row group; a larger row gets a group of its own.
        shard: Bytes of a file; a larger row gets a file of its own.
    """

    row_group: int = 100_000_000
    shard: int = 500_000_000

    def __post_init__(self) -> None:
        if not 0 < self.row_group <= 300_000_000:
            raise PublishError(
                f"row groups of {self.row_group:,} bytes: the Hub's viewer reads at most 300,000,000 at once. "
                "Choose between 1 and that; 100,000,000 is the default."
            )
        if self.shard < 1:
            raise PublishError(f"files of {self.shard:,} bytes are not possible.")


class Batch(NamedTuple):
    """Many rows at once: a list of values for each column."""

    columns: dict[str, list[Any]]


def write_parts(
    rows: Iterable[Mapping[str, Any] | Batch],
    features: Features,
    stem: Path,
    limits: Limits,
    provenance: Mapping[str, Any],
) -> list[Path]:
    """Writes rows into `{stem}-000.parquet`, `{stem}-001.parquet`, …, each below the limit, and reads samples back.

    Args:
        rows: Encoded rows: class labels by name or number, volumes and pictures as `{"bytes", "path"}`. Rows of text
            alone may come as batches of a few megabytes instead.
        features: Their columns.
        stem: Path of the files without part number and ending.
        limits: Sizes.
        provenance: Plain JSON values for the metadata of each file.

    Returns:
        The files in order; at least one, which is empty where there are no rows.

    Raises:
        PublishError: The disk is full, or a row that was read back differs from what was written.
    """
    unfinished = stem.with_name(f".{stem.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with disk_full(stem.parent, f"the files of {stem.name} were not written"):
            unfinished.mkdir(parents=True)
            parts = list(_write(rows, features, unfinished, limits, provenance))
        for stale in stem.parent.glob(f"{stem.name}-*.parquet"):
            stale.unlink()
        finals = [stem.with_name(f"{stem.name}-{number:03d}.parquet") for number in range(len(parts))]
        for part, final in reversed(list(zip(parts, finals, strict=True))):
            part.rename(final)
        return finals
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(
    rows: Iterable[Mapping[str, Any] | Batch],
    features: Features,
    folder: Path,
    limits: Limits,
    provenance: Mapping[str, Any],
) -> Iterator[Path]:
    schema = arrow_schema(features, provenance)
    volumes = has_volumes(features)
    most = limits.row_group if volumes else min(limits.row_group, _TEXT_GROUP)
    tables = _groups(_batches(rows, features, schema, most), most)
    group: pa.Table | None = next(tables, schema.empty_table())
    number = 0
    while True:
        path = folder / str(number)
        expected: list[dict[str, Any]] = []
        following: pa.Table | None = None
        with (
            pq.ParquetWriter(path, schema, **_writer_options(features, schema, group)) as writer,
            ThreadPoolExecutor(1) as threads,
        ):
            if _CHUNKED:
                writer.add_key_value_metadata({"content_defined_chunking": json.dumps(_CHUNKS)})
            seen = 0
            following = group
            while following is not None:
                # What is on disk shows how well these rows compress; volumes do not, text does.
                on_disk = path.stat().st_size
                if seen and on_disk + following.nbytes * min(1.0, on_disk / seen) > limits.shard:
                    break
                seen += following.nbytes
                if len(expected) < _CHECK_ROWS and following.num_rows:
                    expected += [_digest(row) for row in following.slice(0, 1).to_pylist()]
                writing = threads.submit(_write_group, writer, following)
                following = group = None  # its volumes must go before the next ones come
                if volumes:
                    writing.result()
                following = next(tables, None)  # text is compressed meanwhile
                writing.result()
        _compare(path, expected)
        yield path
        if following is None:
            return
        group, number = following, number + 1


def _write_group(writer: pq.ParquetWriter, table: pa.Table) -> None:
    if table.num_rows:
        writer.write_table(table, row_group_size=table.num_rows)


def _writer_options(features: Features, schema: pa.Schema, first: pa.Table | None) -> dict[str, Any]:
    """Text is compressed, and dictionary-encoded where the first rows show that it repeats.

    Volumes and pictures are compressed already and stay as they are.
    """
    files = file_columns(features)
    unique, long = (set(), set()) if first is None else (_unique_columns(first), _long_columns(first))
    leaves = _leaves(schema)
    packed = {leaf: "none" if leaf.split(".")[0] in files else "zstd" for leaf in leaves}
    return {
        "use_dictionary": [leaf for leaf in leaves if leaf not in unique and not leaf.endswith(".bytes")],
        "compression": packed,
        "compression_level": {leaf: 3 for leaf, codec in packed.items() if codec == "zstd"},
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "write_page_index": True,
        **({"use_content_defined_chunking": _CHUNKS} if _CHUNKED else {}),
        "write_batch_size": 1 if has_volumes(features) else 1024,  # values that are copied at once
        "write_statistics": [leaf for leaf in leaves if not leaf.endswith(".bytes") and leaf not in long],
    }


def _unique_columns(rows: pa.Table) -> set[str]:
    """Columns of text in which most values come once: a dictionary of them is work for nothing."""
    if rows.num_rows < _ENOUGH_TO_TELL:
        return set()
    text = [field.name for field in rows.schema if field.type == pa.string()]
    return {name for name in text if pc.count_distinct(rows[name]).as_py() > rows.num_rows / 2}


def _long_columns(rows: pa.Table) -> set[str]:
    """Columns of long text: least and greatest value of each page would be a tenth of the file, and find nothing."""
    text = [field.name for field in rows.schema if field.type == pa.string()]
    means = {name: pc.mean(pc.binary_length(rows[name])).as_py() or 0 for name in text}
    return {name for name, mean in means.items() if mean > _LONG_TEXT}


def _leaves(schema: pa.Schema) -> list[str]:
    """Paths of the Parquet columns of a schema, such as `grades.list.element.lesion`."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [columns.column(number).path for number in range(len(columns))]


# --- rows to tables ----------------------------------------------------------------------------------------------


def _batches(
    rows: Iterable[Mapping[str, Any] | Batch], features: Features, schema: pa.Schema, most: int
) -> Iterator[pa.Table]:
    """Tables of a few rows each, none above `most` bytes unless one row is; large volumes one by one."""
    columns = file_columns(features)
    held: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        if isinstance(row, Batch):
            yield _table(row, features, schema)
            continue
        weight = _file_bytes(row, columns) if columns else 0
        if held and (size + weight > min(most, _HEAVY) or _begins_batch(row, held)):
            table = _table(_batch(held, features), features, schema)
            held, size = [], 0
            yield table
            del table
        held.append(row)
        size += weight
        del row  # a volume must not outlive its table
    if held:
        yield _table(_batch(held, features), features, schema)


def _begins_batch(row: Mapping[str, Any], held: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a row begins a batch: what scan it is of decides, so that borders stay where others are left out."""
    least, most = _BATCH_ROWS
    if len(held) < least or len(held) == most:
        return len(held) == most
    scan = row.get("scan_id")
    return scan != held[-1].get("scan_id") and crc32(str(scan).encode()) % _ENDS == 0


def _groups(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """Row groups: as many whole or cut tables as fit into `most` bytes."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        for piece, weight in _cut(table, most):
            if held and (size + weight > most or size > most // 4):
                full = pa.concat_tables(held)
                held, size = [], 0
                yield full
                del full
            held.append(piece)
            size += weight
    if held:
        yield pa.concat_tables(held)


def _cut(table: pa.Table, most: int) -> Iterator[tuple[pa.Table, int]]:
    """Halves of a table and their bytes, until none is above `most` or has more than one row."""
    weight = table.nbytes
    if weight <= most or table.num_rows <= 1:
        yield table, weight
        return
    middle = table.num_rows // 2
    yield from _cut(table.slice(0, middle), most)
    yield from _cut(table.slice(middle), most)


def _batch(rows: list[Mapping[str, Any]], features: Features) -> Batch:
    return Batch({name: [row[name] for row in rows] for name in features})


def _table(batch: Batch, features: Features, schema: pa.Schema) -> pa.Table:
    columns = []
    for name, kind in features.items():
        values = batch.columns[name]
        if isinstance(kind, ClassLabel):
            numbers = {label: number for number, label in enumerate(kind.names)}
            values = [numbers[value] if isinstance(value, str) else value for value in values]
        if len(values) == 1 and isinstance(values[0], dict):
            columns.append(_one_file(values[0], schema.field(name).type))
        else:
            columns.append(pa.array(values, schema.field(name).type))
    return pa.Table.from_arrays(columns, schema=schema)


def _one_file(value: Mapping[str, Any], kind: pa.DataType) -> pa.StructArray:
    """`{"bytes", "path"}` as an array of one row that shares the bytes instead of copying them."""
    content, path = value["bytes"], value["path"]
    if content is None or len(content) < _HEAVY:
        return pa.array([value], kind)
    ends = pa.array([0, len(content)], pa.int32()).buffers()[1]
    shared = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(content)])
    return pa.StructArray.from_arrays([shared, pa.array([path], pa.string())], fields=list(kind))


def _file_bytes(row: Mapping[str, Any], columns: Sequence[str]) -> int:
    """Bytes of the volumes and pictures of a row; text is counted when it has become Arrow."""
    total = 0
    for name in columns:
        value = row[name]
        for one in value if isinstance(value, list) else (value,):
            if one is not None:
                total += len(one["bytes"] or b"")
    return total


# --- reading back ------------------------------------------------------------------------------------------------


def _compare(path: Path, expected: list[dict[str, Any]]) -> None:
    """Reads the first row of the first row groups from the file alone and compares it with what was written."""
    with pq.ParquetFile(path, memory_map=True) as file:
        for number, row in enumerate(expected):
            batch = next(file.iter_batches(batch_size=1, row_groups=[number]))
            found = _digest(batch.to_pylist()[0])
            if found != row:
                differing = [name for name in row if found[name] != row[name]]
                raise PublishError(
                    f"{path}: the first row of row group {number} came back with other values in "
                    f"{', '.join(differing)}. The file was not kept; check the disk and write it again."
                )


def _digest(value: Any) -> Any:
    """The value with long byte strings replaced by their length and hash."""
    if isinstance(value, dict):
        return {name: _digest(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_digest(one) for one in value]
    return (len(value), sha256(value).digest()) if isinstance(value, bytes) else value


def volume_spans(path: Path) -> dict[str, dict[str, tuple[int, int, str]]]:
    """Where the bytes of volumes lie in a table: scan → column → first byte, bytes, name.

    They are neither compressed nor cut, so each is one stretch of the file, and can be read without its neighbours.
    """
    found: dict[str, dict[str, tuple[int, int, str]]] = {}
    with path.open("rb") as stream, pq.ParquetFile(path, memory_map=True) as file:
        if not file.metadata.num_rows:
            return found
        columns = [field.name for field in file.schema_arrow if field.type == STORED]
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = 0
            for number in range(file.metadata.num_row_groups):
                for name in columns:  # column by column, as they lie in the file
                    for row in file.read_row_group(number, columns=["scan_id", name]).to_pylist():
                        value = row[name]
                        start = content.find(value["bytes"], at) if value and value["bytes"] else -1
                        if start >= 0:
                            at = start + len(value["bytes"])
                            found.setdefault(row["scan_id"], {})[name] = (start, at - start, value["path"])
    return found
