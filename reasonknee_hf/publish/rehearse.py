"""What would go wrong at the end, found before anything is made: the merge into what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish import croissant
from reasonknee_hf.publish.card import CARD, UNNAMED, merged_card, read_metadata
from reasonknee_hf.publish.config_facts import ConfigFacts, SplitFacts
from reasonknee_hf.publish.convert import Conversion
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.rules import front_matter
from reasonknee_hf.publish.stale import SHARD, matches, patterns
from reasonknee_hf.publish.tasks import CROPS, QUESTIONS, VOLUMES, ShardTask

_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")
_NO_DATA = {croissant.FILE, "dataset_infos.json", "package.json"}


def rehearse(
    job: Job,
    card: str,
    description: str,
    *,
    place: str,
    names: Iterable[str] = (),
    deleted: Sequence[str] = (),
) -> None:
    """Merges the card and the description of a conversion that holds nothing yet.

    Args:
        job: The conversion.
        card, description: What is there; empty if nothing.
        place, names, deleted: As in [`merged_card`].

    Raises:
        PublishError: They cannot be merged, or would be refused.
    """
    kinds = [QUESTIONS] * job.questions + [VOLUMES] * (job.volumes != "none") + [CROPS] * job.derived.crops
    tasks = [ShardTask(job, kind, "test", 0, 1) for kind in kinds]
    configs = [
        ConfigFacts(task.config, task.features, {"test": SplitFacts(task.pattern, (), 0, 0, 0)})
        for task in tasks
    ]
    empty = Conversion(job, tuple(configs), {})
    merged, _ = merged_card(card, empty, place=place, names=names, deleted=deleted)
    _refuse_other_reader(merged, names, place)
    croissant.version_croissant(description, empty, place, deleted)


def refuse_hidden_data(card: str, names: Iterable[str], place: str) -> None:
    """Refuses to name the first config of a repository whose data are found by their names alone.

    Where a card names a config, `datasets` looks for no other files.

    Raises:
        PublishError: There are such files. The message says how to name them.
    """
    if read_metadata(front_matter(card)[0]).get("configs"):
        return
    data = sorted(
        name
        for name in names
        if name.endswith(_TABLES)
        and not any(part.startswith(".") for part in name.split("/"))
        and not (name in _NO_DATA or SHARD.fullmatch(name) or UNNAMED.fullmatch(name))
    )
    if data:
        named = f"'configs: [{{config_name: default, data_files: {data[0]}}}]'"
        advice = f"Add them to the metadata of its card first, e.g. {named}, or push"
        raise PublishError(
            f"{place} holds {len(data)} data files such as {data[0]}, and its card names no config of them: once it "
            f"names another, nobody could load them. {advice if data[0].endswith('.parquet') else 'Push'} to another "
            "repository."
        )


def _refuse_other_reader(card: str, names: Iterable[str], place: str) -> None:
    """Refuses a card whose first config is not of Parquet files: `datasets` reads all configs as it reads that one.

    Raises:
        PublishError: What is written could not be loaded.
    """
    (first, globs), *_ = patterns(card).items()
    found = sorted(name for name in names if any(matches(name, glob) for glob in globs))
    other = [name for name in (*found, *globs) if name.endswith(_TABLES) and not name.endswith(".parquet")]
    if other and not any(name.endswith(".parquet") for name in found):
        raise PublishError(
            f"The first config of {place}, {first}, is of files such as {other[0]}, and datasets reads all configs "
            "of a repository as it reads the first one: Parquet beside them could not be loaded. Choose another place."
        )


def check_folder(root: Path, job: Job) -> None:
    """Refuses a place where folders and files of a conversion cannot be made.

    Raises:
        PublishError: A file is where a folder must be, or the other way round.
    """
    folders = [*reversed(root.parents), root]
    folders += [root / name for name in (job.name, job.volumes_name, job.crops_name)]
    for folder in folders:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise PublishError(f"{folder} is no folder. Choose another one, or move it away.")
    for file in (root / CARD, root / croissant.FILE):
        if file.is_dir():
            raise PublishError(f"{file} is a folder, where a file is to be written. Move it away.")
