"""What published shards hold, told by the shards alone: rows, bytes, scans, grades."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Features

from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.places import Store

GradeCounts = dict[str, dict[int, int]]


@dataclass(frozen=True)
class SplitFacts:
    """One split of one config.

    Args:
        pattern: Glob of its files below the root.
        files: Their paths.
        rows: Number of rows.
        data_bytes: Bytes of the rows without compression.
        file_bytes: Bytes of the files.
    """

    pattern: str
    files: tuple[str, ...]
    rows: int
    data_bytes: int
    file_bytes: int


@dataclass
class ConfigFacts:
    """One config: its columns and splits.

    `counts` are rows by category and grade, where it has grades; `beside` are the files that its tables name.
    """

    name: str
    features: Features
    splits: dict[str, SplitFacts] = field(default_factory=dict)
    counts: GradeCounts = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Rows of all splits."""
        return sum(split.rows for split in self.splits.values())


def split_facts(store: Store, pattern: str, files: Sequence[str]) -> SplitFacts:
    """Rows and bytes of a split, from the footers of its files; those without rows are left out."""
    rows = data = 0
    full = []
    for name in files:
        with store.open(name) as stream, pq.ParquetFile(stream) as file:
            metadata = file.metadata
            rows += metadata.num_rows
            if metadata.num_rows:
                full.append(name)
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            data += sum(group.total_byte_size for group in groups)
    return SplitFacts(pattern, tuple(full), rows, data, sum(store.size(name) for name in full))


def _batches(store: Store, files: Iterable[str], *columns: str) -> Iterator[pa.RecordBatch]:
    """Some columns of some tables: those that a table has, or that end so."""
    for name in files:
        with store.open(name) as stream, pq.ParquetFile(stream) as file:
            names = [one for one in file.schema_arrow.names if one.endswith(columns)]
            yield from file.iter_batches(columns=names, batch_size=1 << 16)


def scan_ids(store: Store, files: Iterable[str]) -> list[str]:
    """Ids of the scans that the rows of some files belong to, in order of their first row."""
    found: dict[str, None] = {}
    for batch in _batches(store, files, "scan_id"):
        found |= dict.fromkeys(one for one in batch["scan_id"].unique().to_pylist() if one is not None)
    return list(found)


def files_named(store: Store, files: Iterable[str]) -> set[str]:
    """Paths below the root that the rows of some tables name."""
    columns = (column for batch in _batches(store, files, "_file") for column in batch.columns)
    return {path for column in columns for path in column.drop_null().to_pylist()}


def grade_counts(store: Store, files: Iterable[str]) -> Counter[tuple[int, int]]:
    """How often each category, by its number, has each grade; every attribute of a row counts."""
    counts: Counter[tuple[int, int]] = Counter()
    for batch in _batches(store, files, "category", "grades"):
        grades = batch["grades"]
        told = {
            "category": batch["category"].take(pc.list_parent_indices(grades)),
            "grade": pc.struct_field(pc.list_flatten(grades), "grade"),
        }
        pairs = pa.table(told).group_by(["category", "grade"]).aggregate([([], "count_all")])
        counts.update({(row["category"], row["grade"]): row["count_all"] for row in pairs.to_pylist()})
    return Counter({pair: count for pair, count in counts.items() if pair[0] is not None})


def by_category(counts: Counter[tuple[int, int]], names: Sequence[str]) -> GradeCounts:
    """The counts as category → grade → number, in order."""
    found: GradeCounts = {name: {} for name in names}
    for (category, grade), count in sorted(counts.items()):
        found[names[category]][grade] = count
    return {name: grades for name, grades in found.items() if grades}


@dataclass(frozen=True)
class Conversion:
    """What a call of `convert` or `push` wrote.

    Args:
        job: The options.
        configs: The written configs in the order of the card.
        labels: Structure name → label id of the masks.
        pull_request: URL of the pull request that was opened.
        stale: Files of earlier calls that no config names any more, and that are still there.
        plan: What a push would do that was asked to do nothing.

    Examples:
        >>> from tempfile import mkdtemp
        >>> done = rk.convert(mkdtemp(), "scans", source="sample", on_error="skip")
        >>> [config.name for config in done.configs]
        ['scans']
    """

    job: Job
    configs: tuple[ConfigFacts, ...]
    labels: Mapping[str, int]
    pull_request: str | None = None
    stale: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None

    @property
    def files(self) -> list[str]:
        """All written tables, paths below the root."""
        return [name for config in self.configs for split in config.splits.values() for name in split.files]

    def told(self) -> dict[str, Any]:
        """Configs, splits, rows, bytes and files as plain JSON values."""
        configs = {
            config.name: {
                split: {"rows": facts.rows, "bytes": facts.file_bytes, "files": list(facts.files)}
                for split, facts in config.splits.items()
            }
            for config in self.configs
        }
        told = {"configs": configs, "pull_request": self.pull_request, "stale": list(self.stale)}
        return told | ({"plan": dict(self.plan)} if self.plan else {})
