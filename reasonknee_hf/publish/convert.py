"""From a release to Parquet: the list of shard tasks, and the call that runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.knee.release import Release
from reasonknee_hf.publish.config_facts import (
    ConfigFacts,
    Folder,
    Store,
    files_named,
    grade_counts,
    scan_ids,
    split_facts,
)
from reasonknee_hf.publish.defects import defect_lines
from reasonknee_hf.publish.job import Derived, Job, ReleaseSpec, describe_origin
from reasonknee_hf.publish.parquet import Limits
from reasonknee_hf.publish.selection import Row, Selection
from reasonknee_hf.publish.tasks import CROPS, QUESTIONS, VOLUMES, ShardTask, finished, run_tasks
from reasonknee_hf.publish.volume_files import files_state, plan_shards, remove_unfinished
from reasonknee_hf.verify import Report

logger = logging.getLogger(__name__)

_SHARE = 128 << 20  # bytes of annotations that one task reads

OnFiles = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Conversion:
    """What a call of `convert` or `push` wrote.

    Args:
        job: The options.
        configs: The written configs in the order of the card.
        labels: Structure name → label id of the masks.
        pull_request: URL of the pull request that was opened.
    """

    job: Job
    configs: tuple[ConfigFacts, ...]
    labels: Mapping[str, int]
    pull_request: str | None = None

    @property
    def files(self) -> list[str]:
        """All written tables, paths below the root."""
        return [name for config in self.configs for split in config.splits.values() for name in split.files]


def convert(
    out: str | Path,
    config: str = "full",
    *,
    name: str | None = None,
    splits: Sequence[str] | str | None = None,
    categories: Sequence[str] | str | None = None,
    structures: Sequence[str] | str | None = None,
    patients: Sequence[str] | str | None = None,
    visits: Sequence[str] | str | None = None,
    grades: Sequence[int] | int | Mapping[str, Collection[int]] | None = None,
    where: Callable[[Row], bool] | None = None,
    limit: int | None = None,
    volumes: str = "embed",
    masks: bool = True,
    previews: bool = False,
    frames: int = 0,
    crops: bool = False,
    crop_margin: float = 0.0,
    executor: Executor | None = None,
    row_group_bytes: int = Limits.row_group,
    shard_bytes: int = Limits.shard,
    source: str | None = None,
    revision: str | None = None,
    endpoint: str | Sequence[str] | None = None,
    token: str | bool | None = None,
    images: str | None = None,
    high_fidelity: str | Sequence[str] | None = None,
    annotations: str = "all",
    on_error: str = "raise",
    verify: bool | Report = False,
) -> Conversion:
    """Writes a release, or a selection of it, to a folder that `datasets.load_dataset` opens without this package.

    Questions become a config of small rows keyed by `scan_id`; volumes and masks are kept once a scan, in the config
    `{name}_volumes`. Files that an earlier call finished are kept while options, release and volumes are the same.

    Args:
        out: A folder. Configs that lie there already stay.
        config: `full`, `high_fidelity`, `bench`, `scans` for volumes alone, or `records` for the records as they are
            published.
        name: Name of the written config; the one of `config` by default.
        splits, categories, structures, patients, visits, grades, where, limit: See [`Selection`].
        volumes: `"embed"` stores the bytes of the published files, once a scan; `"files"` copies them beside the
            tables; `"reference"` keeps their URL at the commit of the source; `"none"` leaves them out.
        masks: Whether masks go with the volumes.
        previews, frames, crops, crop_margin: See [`Derived`].
        executor: Runs the shard tasks: any `concurrent.futures.Executor` whose workers see `out`.
        row_group_bytes, shard_bytes: Sizes in real bytes.
        source, revision, endpoint, token, images, high_fidelity: As in [`open_release`]. A token does not travel to
            the workers of an executor; they use the one of `huggingface_hub`.
        annotations, on_error: As in [`load_dataset`]. For volumes: `"raise"` stops at a file that is missing or cannot
            be read, `"skip"` leaves the scan out of the volumes, `"null"` writes null.
        verify: Whether to look for defects of the release now, for the card; or a report of [`verify_release`].

    Returns:
        [`Conversion`]: configs, splits, files and counts.

    Raises:
        OptionError: An option that is not known or not possible.
        PublishError: Nothing was selected, what lies in `out` cannot be added to, or what was written did not come
            back the same.
        VolumeMissingError: A volume or mask that the tables name is nowhere.
        VolumeFormatError, VolumeDataError: One is no NIfTI file, or is cut or fails its checksum.
    """
    from reasonknee_hf.publish.card import CARD, local_place, write_card
    from reasonknee_hf.publish.croissant import FILE, write_croissant
    from reasonknee_hf.publish.given_names import check_name
    from reasonknee_hf.publish.rehearse import check_folder, rehearse
    from reasonknee_hf.publish.texts import text_of

    given = dict(locals())
    root = Path(out)
    job, release = make_job(given, root)
    check_name("config", job.name)
    check_folder(root, job)
    rehearse(
        job,
        text_of(root / CARD),
        text_of(root / FILE),
        place=local_place(root),
        names=Folder(root).names(),
    )
    conversion = produce(job, release, Folder(root), executor)
    write_card(root, conversion, defects=defect_lines(verify, release))
    write_croissant(root, conversion)
    return conversion


def make_job(given: Mapping[str, Any], out: Path) -> tuple[Job, Release]:
    """The job that the keywords of `convert` describe, and its release, opened."""
    source = given["source"]
    if source == "sample":
        from reasonknee_hf.knee.sample import sample_folder

        source = str(sample_folder())
    endpoint, listed = given["endpoint"], given["high_fidelity"]
    spec = ReleaseSpec(
        source,
        given["revision"],
        (endpoint,) if isinstance(endpoint, str) else tuple(endpoint) if endpoint else None,
        given["images"],
        listed if listed is None or isinstance(listed, str) else tuple(listed),
    )
    release = spec.open(given["token"])
    if (
        given["config"] == "high_fidelity"
    ):  # a list may change under the same path; what it says is told instead
        spec = replace(spec, high_fidelity=tuple(sorted(release.high_fidelity_ids)))
    derived = Derived(given["previews"], given["frames"], given["crops"], given["crop_margin"])
    names = ("splits", "categories", "structures", "patients", "visits", "grades", "where", "limit")
    job = Job(
        release=spec if release.sha is None else replace(spec, revision=release.sha),
        origin=describe_origin(release, given["source"]),
        sha=release.sha,
        identity=release.identity,
        config=given["config"],
        name=given["config"] if given["name"] is None else given["name"],
        out=out,
        selection=Selection(**{name: given[name] for name in names}),
        volumes=given["volumes"],
        masks=given["masks"],
        annotations=given["annotations"],
        on_error=given["on_error"],
        derived=derived,
        limits=Limits(given["row_group_bytes"], given["shard_bytes"]),
    )
    job.share(release)
    return job, release


def produce(
    job: Job,
    release: Release,
    store: Store,
    executor: Executor | None = None,
    on_files: OnFiles | None = None,
) -> Conversion:
    """Makes the files that `store` lacks and tells what all of them hold.

    Args:
        job: The conversion.
        release: Its release.
        store: Where finished files lie; new ones are written to `job.out`.
        executor: Runs the tasks.
        on_files: Called with the files of each task as it finishes; afterwards `store` must hold them.
    """
    splits = chosen_splits(job, release)
    remove_unfinished(job)
    configs: list[ConfigFacts] = []
    scans: dict[str, list[str]] = {split: [] for split in splits}
    if job.questions:
        tasks = [task for split in splits for task in question_tasks(job, release, split)]
        questions = _run(tasks, store, executor, on_files)
        if questions.rows == 0:
            raise PublishError(
                f"The selection {job.selection.describe()} keeps no row of {job.config} of {release.tree.name}. "
                "Widen it."
            )
        for split, facts in questions.splits.items():
            if job.config != "records":
                questions.counts = _add_counts(questions.counts, grade_counts(store, facts.files))
            scans[split] = scan_ids(store, facts.files)
        configs.append(questions)
    else:
        scans = {split: chosen_scans(job, release, split) for split in splits}
    if job.volumes != "none":
        tasks = [task for split in splits for task in volume_tasks(job, release, split, scans[split])]
        volumes = _run(tasks, store, executor, on_files)
        if job.volumes == "files":
            volumes.beside = files_named(store, (n for told in volumes.splits.values() for n in told.files))
        configs.append(volumes)
    if job.derived.crops:
        tasks = [task for split in splits for task in question_tasks(job, release, split, CROPS)]
        configs.append(_run(tasks, store, executor, on_files))
    return Conversion(job, tuple(config for config in configs if config.rows), release.labels)


def chosen_splits(job: Job, release: Release) -> list[str]:
    """The splits to write, in order."""
    offered = release.splits if job.config == "scans" else release.annotated_splits(job.annotations)
    if job.config == "bench":
        offered = tuple(split for split in offered if split == "test")
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


def _run(
    tasks: Sequence[ShardTask], store: Store, executor: Executor | None, on_files: OnFiles | None
) -> ConfigFacts:
    done = finished(tasks, store.names())
    missing = [task for task in tasks if task.stem not in done]
    if done:
        logger.info("%d of %d shards of %s are there already", len(done), len(tasks), tasks[0].config)
    for files in run_tasks(missing, executor):
        if on_files is not None:
            on_files(files)
    done = finished(tasks, store.names())
    facts = ConfigFacts(tasks[0].config if tasks else "", tasks[0].features if tasks else {})
    for split in dict.fromkeys(task.split for task in tasks):
        mine = [task for task in tasks if task.split == split]
        files_ = [name for task in mine for name in done[task.stem]]
        told = split_facts(store, mine[0].pattern, files_)
        if told.rows:
            facts.splits[split] = told
    return facts


def _add_counts(
    one: dict[str, dict[int, int]], other: dict[str, dict[int, int]]
) -> dict[str, dict[int, int]]:
    total = {category: dict(grades) for category, grades in one.items()}
    for category, grades in other.items():
        mine = total.setdefault(category, {})
        for grade, count in grades.items():
            mine[grade] = mine.get(grade, 0) + count
    return total
