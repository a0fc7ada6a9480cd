"""Runs the tasks of a conversion: makes what is missing, and tells what all of it holds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import chain
from typing import Any

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.errors import OptionError, PublishError, VolumeMissingError
from reasonknee_hf.publish.config_facts import (
    ConfigFacts,
    Conversion,
    by_category,
    files_named,
    grade_counts,
    scan_ids,
    split_facts,
)
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.places import Place, Store
from reasonknee_hf.publish.standing import Manifest, Part
from reasonknee_hf.publish.tasks import CROPS, QUESTIONS, VOLUMES, ShardTask, finished, run_tasks
from reasonknee_hf.publish.volume_files import ScanFiles, files_state, plan_shards

logger = logging.getLogger(__name__)

_SHARE = 128 << 20  # bytes of annotations that one task reads

OnParts = Callable[[Manifest, Sequence[Part]], None]


class _Run:
    """One conversion under way: where its files lie, what earlier calls say of them, and who is told of new ones."""

    def __init__(
        self,
        job: Job,
        store: Store,
        executor: Executor | None,
        on_parts: OnParts,
        earlier: Sequence[Manifest],
        here: Sequence[Manifest],
    ) -> None:
        self.job, self.store, self.executor, self.earlier, self.here = job, store, executor, earlier, here
        self.manifests: list[Manifest] = []
        self._tell = on_parts
        self._held: list[tuple[Manifest, Sequence[Part]]] | None = None

    def hold(self) -> None:
        """Keeps new files back until [`release`]: it is not known yet whether all can be made."""
        self._held = []

    def release(self) -> None:
        """Hands on what was kept back, and all that follows."""
        held, self._held = self._held or [], None
        for manifest, parts in held:
            self._tell(manifest, parts)

    def config(self, tasks: Sequence[ShardTask]) -> ConfigFacts:
        """Runs those of the tasks of a config whose files are not there as they were written."""
        if not tasks:
            return ConfigFacts("", {})
        manifest, known = self._manifest(tasks)
        done = finished(tasks, known, self.store)
        missing = [task for task in tasks if task.stem not in done]
        made = finished(missing, self._known(tasks[0], self.here), Place(self.job.out)) if self.here else {}
        to_make = [task for task in missing if task.stem not in made]
        if done:
            logger.info("%d of %d shards of %s are there already", len(done), len(tasks), tasks[0].config)
        manifest.add(part for parts in done.values() for part in parts)
        for number, parts in enumerate(chain(made.values(), run_tasks(to_make, self.executor)), 1):
            done[parts[0].path.rpartition("-")[0]] = parts
            manifest.add(parts)
            logger.info(
                "%s: %d of %d shards", manifest.config, number + len(tasks) - len(missing), len(tasks)
            )
            if self._held is None:
                self._tell(manifest, parts)
            else:
                self._held.append((manifest, parts))
        self.manifests.append(manifest)
        facts = ConfigFacts(tasks[0].config, tasks[0].features)
        for split in dict.fromkeys(task.split for task in tasks):
            mine = [task for task in tasks if task.split == split]
            files = [part.path for task in mine for part in done[task.stem] if part.rows]
            if files:
                facts.splits[split] = split_facts(self.store, mine[0].pattern, files)
        return facts

    def _known(self, task: ShardTask, manifests: Sequence[Manifest]) -> dict[str, Part]:
        """What manifests say of the config of a task."""
        wanted = (task.config, self.job.name, task.kind)
        mine = (one.parts for one in manifests if (one.config, one.of, one.kind) == wanted)
        return {name: part for parts in mine for name, part in parts.items()}

    def _manifest(self, tasks: Sequence[ShardTask]) -> tuple[Manifest, dict[str, Part]]:
        """The manifest of a config, and all parts that earlier calls wrote of it."""
        first = tasks[0]
        path = f"{first.config}/reasonknee-{self.job.fingerprint(first.kind)}.json"
        known = self._known(first, self.earlier)
        names = self.store.names()
        left = {
            name: part
            for one in self.earlier
            if one.path == path
            for name, part in one.parts.items()
            if name in names
        }
        patterns = {task.pattern for task in tasks}
        manifest = Manifest(
            path,
            first.config,
            self.job.name,
            first.kind,
            self.job.provenance(),
            left,
            patterns,
            set(left),
            self.job.opened().labels,
            self.job.dataset.name,
        )
        return manifest, known


def produce(
    job: Job,
    release: Release,
    store: Store,
    executor: Executor | None,
    on_parts: OnParts,
    earlier: Sequence[Manifest] = (),
    here: Sequence[Manifest] = (),
) -> tuple[Conversion, list[Manifest]]:
    """Makes the files that `store` lacks and tells what all of them hold.

    Args:
        job: The conversion.
        release: Its release.
        store: Where finished files lie; new ones are written to `job.out`.
        executor: Runs the tasks.
        on_parts: Called with the files of each task as it finishes, and the manifest that now names them; afterwards
            `store` must hold them.
        earlier: Manifests of earlier calls.
        here: Those in `job.out`, where that is not the store: what is finished there is not made again.

    Returns:
        What was written, and its manifests.

    Raises:
        PublishError: Nothing was selected.
        VolumeMissingError: A volume or mask is nowhere; raised before `on_parts` was called.
    """
    splits = chosen_splits(job, release)
    Place(job.out).clear(job.volumes_name)
    run = _Run(job, store, executor, on_parts, earlier, here)
    if not job.questions:
        scans = {split: chosen_scans(job, release, split) for split in splits}
        configs = []
    else:
        if job.volumes != "none" and not all_there(job, _candidates(job, release, splits)):
            run.hold()  # perhaps of scans that no chosen row is about: the rows will tell
        questions = run.config([task for split in splits for task in question_tasks(job, release, split)])
        if questions.rows == 0:
            raise PublishError(
                f"The selection {job.selection.describe()} keeps no row of {job.config} of {release.tree.name}. "
                "Widen it."
            )
        counts: Counter[tuple[int, int]] = Counter()
        scans = {split: [] for split in splits}
        for split, facts in questions.splits.items():
            if {"category", "grades"} <= questions.features.keys():
                counts += grade_counts(store, facts.files)
            scans[split] = scan_ids(store, facts.files)
        questions.counts = by_category(counts, job.dataset.categories)
        configs = [questions]
    if job.volumes != "none":
        tasks = [task for split in splits for task in volume_tasks(job, release, split, scans[split])]
        run.release()
        volumes = run.config(tasks)
        if job.volumes == "files":
            volumes.beside = files_named(store, (n for told in volumes.splits.values() for n in told.files))
        configs.append(volumes)
    if job.derived.crops:
        tasks = [task for split in splits for task in question_tasks(job, release, split, CROPS)]
        configs.append(run.config(tasks))
    written = tuple(config for config in configs if config.rows)
    return Conversion(job, written, release.labels), run.manifests


def all_there(job: Job, scans: Iterable[Any]) -> bool:
    """Whether nothing is missing that would stop the conversion."""
    try:
        return job.on_error != "raise" or all(ScanFiles(job, scan).complete for scan in scans)
    except VolumeMissingError:
        return False


def _candidates(job: Job, release: Release, splits: Sequence[str]) -> Iterator[Any]:
    config = job.dataset.configs.get(job.config)
    chosen = config.chosen(release) if config is not None and config.chosen else None
    for scan in (scan for split in splits for scan in release.scans(split)):
        if job.selection.keeps_scan(scan) and (chosen is None or scan.scan_id in chosen):
            yield scan


def chosen_splits(job: Job, release: Release) -> list[str]:
    """The splits to write, in order."""
    offered = release.splits if job.config == "scans" else release.annotated_splits(job.annotations)
    config = job.dataset.configs.get(job.config)
    if config is not None and config.splits is not None:
        offered = tuple(split for split in offered if split in config.splits)
    chosen = [split for split in offered if job.selection.splits is None or split in job.selection.splits]
    unknown = [split for split in job.selection.splits or () if split not in offered]
    if unknown or not chosen:
        raise OptionError(
            f"{job.config} of {release.tree.name} has no split {', '.join(unknown) or 'at all'}. "
            f"Valid: {', '.join(offered) or 'none'}."
        )
    return chosen


def question_tasks(job: Job, release: Release, split: str, kind: str = QUESTIONS) -> list[ShardTask]:
    """Tasks for the questions of a split; with a row limit it is one, because that counts from the first row."""
    size = release.tree.size(release.annotation_path(split, job.annotations))
    count = 1 if job.selection.limit else -(-size // _SHARE) or 1
    state = ""
    if kind == CROPS or job.derived.drawn:
        kept = [scan for scan in release.scans(split) if job.selection.keeps_scan(scan)]
        state = files_state(job, kept, masks=False)
    return [ShardTask(job, kind, split, index, count, state=state) for index in range(count)]


def volume_tasks(job: Job, release: Release, split: str, wanted: Iterable[str]) -> list[ShardTask]:
    """Tasks for the volumes of some scans of a split, in the order of its table."""
    ids = set(wanted)
    scans = [scan for scan in release.scans(split) if scan.scan_id in ids]
    shards = plan_shards(job, scans)
    state = files_state(job, scans, masks=job.masks)
    return [
        ShardTask(job, VOLUMES, split, index, len(shards), ids_, state) for index, ids_ in enumerate(shards)
    ]


def chosen_scans(job: Job, release: Release, split: str) -> list[str]:
    """Ids of the scans that the selection keeps, for a config without questions."""
    kept = [scan.scan_id for scan in release.scans(split) if job.selection.keeps_scan(scan)]
    return kept[: job.selection.limit]
