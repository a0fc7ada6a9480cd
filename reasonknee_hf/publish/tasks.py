"""Shard tasks: independent, picklable, each makes the files of one share of a split. And how they are run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from datasets import Features

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.publish import derived, schema
from reasonknee_hf.publish import volume_files as volumes
from reasonknee_hf.publish.config_facts import Folder, Store, files_named
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.manifest import Part, part_of, proven
from reasonknee_hf.publish.parquet import Batch, volume_spans, write_parts
from reasonknee_hf.publish.question_rows import question_rows, record_batches

logger = logging.getLogger(__name__)

QUESTIONS, VOLUMES, CROPS = "questions", "volumes", "crops"


@dataclass(frozen=True)
class ShardTask:
    """One share of one split.

    Args:
        job: The conversion.
        kind: `questions`, `volumes` or `crops`.
        split: The split.
        index: Which share, from 0.
        count: Of how many.
        scan_ids: The scans of a share of volumes, in order.
        state: State of the volumes and masks of the split that its files are made of.
    """

    job: Job
    kind: str
    split: str
    index: int
    count: int
    scan_ids: tuple[str, ...] = ()
    state: str = ""

    @property
    def config(self) -> str:
        """Config that the files belong to; also the name of their folder."""
        names = {QUESTIONS: self.job.name, VOLUMES: self.job.volumes_name, CROPS: self.job.crops_name}
        return names[self.kind]

    @property
    def stem(self) -> str:
        """Path of the files below the root, without part number and ending."""
        fingerprint = self.job.fingerprint(self.kind, self.state)
        return f"{self.config}/{self.split}-{self.index:05d}-of-{self.count:05d}-{fingerprint}"

    @property
    def pattern(self) -> str:
        """Glob of the files of all shares of this split."""
        fingerprint = self.job.fingerprint(self.kind, self.state)
        return f"{self.config}/{self.split}-*-of-{self.count:05d}-{fingerprint}-*.parquet"

    @property
    def features(self) -> Features:
        """Columns of the files."""
        if self.kind == CROPS:
            return schema.crop_features()
        if self.kind == VOLUMES:
            return schema.volume_features(self.job.volumes, self.job.dataset, masks=self.job.masks)
        if self.job.config == "records":
            return schema.record_features()
        extra = self.job.derived
        return schema.question_features(
            self.job.config, self.job.dataset, previews=extra.previews, frames=extra.frames > 0
        )

    def beside(self, store: Store, tables: Sequence[str]) -> set[str]:
        """Files that tables of this task name by their path."""
        return files_named(store, tables) if self.kind == VOLUMES and self.job.volumes == "files" else set()

    def rows(self) -> Iterator[Mapping[str, Any] | Batch]:
        """The encoded rows, or many of them at once."""
        if self.kind == VOLUMES:
            return volumes.volume_rows(self.job, self.split, self.scan_ids)
        if self.job.config == "records":
            return record_batches(self.job, self.split, self.index, self.count)
        rows = question_rows(self.job, self.split, self.index, self.count)
        if self.kind == CROPS:
            return derived.crop_rows(rows, self.job)
        return derived.with_pictures(rows, self.job) if self.job.derived.drawn else rows


def run_task(task: ShardTask) -> list[Part]:
    """Makes the files of a task and tells them: its tables first, then the files that these name.

    Raises:
        PublishError: The disk is full, or what was read back differs from what was written.
    """
    out = task.job.out
    provenance = {**task.job.provenance(), "split": task.split}
    paths = write_parts(task.rows(), task.features, out / task.stem, task.job.limits, provenance)
    if task.kind == VOLUMES and task.job.volumes == "embed" and task.scan_ids:
        volumes.compare_first(paths[0], task.job, task.split)
    names = [path.relative_to(out).as_posix() for path in paths]
    embeds = task.kind == VOLUMES and task.job.volumes == "embed"
    parts = [
        part_of(
            out, name, pq.read_metadata(out / name).num_rows, volume_spans(out / name) if embeds else None
        )
        for name in names
    ]
    return parts + [part_of(out, name, None) for name in sorted(task.beside(Folder(out), names))]


def run_tasks(tasks: Sequence[ShardTask], executor: Executor | None = None) -> Iterator[list[Part]]:
    """Runs tasks and yields the files of each as they finish: here one by one, or on any `Executor`.

    An error of one task cancels those that have not begun; files that are finished stay.
    """
    if executor is None:
        yield from map(run_task, tasks)
        return
    if tasks:
        _check_picklable(tasks[0])
    futures: list[Future[list[Part]]] = [executor.submit(run_task, task) for task in tasks]
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenExecutor as error:
        raise PublishError(
            f"A process that made shards of {tasks[0].config} died ({error}), mostly for want of memory. Finished "
            "shards are kept: run the same command again, with fewer processes."
        ) from error
    finally:
        for future in futures:
            future.cancel()


def finished(tasks: Sequence[ShardTask], known: Mapping[str, Part], store: Store) -> dict[str, list[Part]]:
    """Stem → files of the tasks all of whose files are there as they were written; tables first.

    Args:
        tasks: All tasks of a config.
        known: What manifests say of its files.
        store: Where they lie.
    """
    by_stem: dict[str, list[Part]] = {}
    for part in sorted(known.values()):
        if part.rows is not None:
            by_stem.setdefault(part.path.rpartition("-")[0], []).append(part)
    done = {}
    for task in tasks:
        tables = by_stem.get(task.stem, [])
        # A table without rows need not be there: it does not travel.
        if tables and all(part.rows == 0 or proven(store, part) for part in tables):
            beside = task.beside(store, [part.path for part in tables if part.rows])
            if all(name in known and proven(store, known[name]) for name in beside):
                done[task.stem] = [*tables, *(known[name] for name in sorted(beside))]
    return done


def _check_picklable(task: ShardTask) -> None:
    try:
        from pickle import PicklingError, dumps

        dumps(task)
    except (PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"The filter given as where= cannot travel to another process ({error}). Write it as a function of a "
            "module, not as a lambda or inside another function."
        ) from None
