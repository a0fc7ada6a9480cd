"""Shard tasks: independent, picklable, each makes the files of one share of a split. And how they are run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq
from datasets import Features

from reasonknee_hf.errors import OptionError, PublishError, ReasonKneeError
from reasonknee_hf.publish import derived, schema
from reasonknee_hf.publish import volume_files as volumes
from reasonknee_hf.publish.config_facts import files_named
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.parquet import Batch, volume_spans, write_parts
from reasonknee_hf.publish.places import Place, Store
from reasonknee_hf.publish.question_rows import question_rows, record_batches
from reasonknee_hf.publish.standing import Part, part_of, proven

logger = logging.getLogger(__name__)

QUESTIONS, VOLUMES, CROPS = "questions", "volumes", "crops"

_REPEATED = 2  # times that a task is run again whose process died


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
            return schema.record_features(self.job.dataset)
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
            return self._named(volumes.volume_rows(self.job, self.split, self.scan_ids))
        if self.job.config == "records":
            return record_batches(self.job, self.split, self.index, self.count)
        rows = question_rows(self.job, self.split, self.index, self.count)
        if self.kind == CROPS:
            return derived.crop_rows(rows, self.job)
        return self._named(derived.with_pictures(rows, self.job) if self.job.derived.drawn else rows)

    def _named(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        labels = schema.labelled(self.features)
        for row in rows:
            for column, kind in labels.items():
                value = row[column]
                row[column + schema.NAME] = kind.int2str(value) if isinstance(value, int) else value
            yield row


def run_task(task: ShardTask) -> list[Part]:
    """Makes the files of a task and tells them: its tables first, then the files that these name.

    Where they go elsewhere than to this disk, the first table goes last: where it lies, all do.

    Raises:
        PublishError: The disk is full, or what was read back differs from what was written.
    """
    place, embeds = Place(task.job.out), task.kind == VOLUMES and task.job.volumes == "embed"
    with place.workplace() as out:
        mine = replace(task, job=replace(task.job, out=out))
        provenance = {**task.job.provenance(), "split": task.split}
        paths = write_parts(mine.rows(), task.features, out / task.stem, task.job.limits, provenance)
        tables = []
        for path in paths:
            name, rows = path.relative_to(out).as_posix(), pq.read_metadata(path).num_rows
            tables.append(part_of(out, name, rows, volume_spans(path) if embeds else None))
        names = [part.path for part in tables]
        beside = [part_of(out, name, None) for name in sorted(task.beside(Place(out), names))]
        place.put(out, [*(part.path for part in beside), *reversed(names)])
    return tables + beside


def run_tasks(tasks: Sequence[ShardTask], executor: Executor | None = None) -> Iterator[list[Part]]:
    """Runs tasks and yields the files of each as they finish: here one by one, or on any `Executor`.

    A task whose process died is run again, where the executor still takes tasks. An error of one task cancels those
    that have not begun; files that are finished stay.
    """
    if executor is None:
        yield from map(run_task, tasks)
        return
    if tasks:
        _check_picklable(tasks[0])
    running: dict[Future[list[Part]], ShardTask] = {executor.submit(run_task, task): task for task in tasks}
    died: Counter[str] = Counter()
    try:
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    yield future.result()
                except Exception as error:
                    if not _died(error):
                        raise
                    died[task.stem] += 1
                    logger.warning("a process that made %s died (%s)", task.stem, error)
                    running[_again(executor, task, died[task.stem], error)] = task
    finally:
        for future in running:
            future.cancel()


def _died(error: Exception) -> bool:
    """Whether a task did not end by itself: the engine lost the process that it ran in."""
    engines = ("distributed", "ray")
    lost = isinstance(error, (BrokenExecutor, CancelledError))
    return lost or (
        type(error).__module__.split(".")[0] in engines and not isinstance(error, ReasonKneeError)
    )


def _again(executor: Executor, task: ShardTask, times: int, error: Exception) -> Future[list[Part]]:
    try:
        if times <= _REPEATED:
            return executor.submit(run_task, task)
    except BrokenExecutor:
        pass  # it starts no other process in the place of one that died
    raise PublishError(
        f"A process that made shards of {task.config} died ({error}), mostly for want of memory. Finished "
        "shards are kept: run the same command again, with fewer processes."
    ) from error


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
    names = store.names() if by_stem else set()
    for task in tasks:
        tables = by_stem.get(task.stem, [])
        # A table without rows need not be there: it does not travel.
        if tables and all(part.rows == 0 or proven(store, part, names) for part in tables):
            beside = task.beside(store, [part.path for part in tables if part.rows])
            if all(name in known and proven(store, known[name], names) for name in beside):
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
