"""What would go wrong at the end, found before anything is made: the merge into what is there."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from reasonknee_hf.dataset.contract import MANIFEST
from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish import croissant
from reasonknee_hf.publish.card import UNNAMED, card_configs, default_config, merged_card
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion, SplitFacts
from reasonknee_hf.publish.eval_yaml import eval_yaml
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.rules import front_matter, read_metadata
from reasonknee_hf.publish.standing import (
    CARD,
    DESCRIPTION,
    EVALUATION,
    Manifest,
    Part,
    Standing,
    matches,
    patterns,
)
from reasonknee_hf.publish.tasks import CROPS, QUESTIONS, VOLUMES, ShardTask

logger = logging.getLogger(__name__)

_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")
_SHARD = re.compile(r"[^/]+/[^/]+-\d{5}-of-\d{5}-[0-9a-f]{8}-\d{3}\.parquet")  # what a killed call may leave
_NO_DATA = {DESCRIPTION, "dataset_infos.json", "package.json"}


def rehearse(job: Job, standing: Standing, deleted: Sequence[str] = ()) -> str:
    """Merges the card and the description of a conversion that holds nothing yet; returns the card.

    Says which config `load_dataset` gives without a name, and that a licence there is another one.

    Args:
        job: The conversion.
        standing: What is there.
        deleted: Configs that are to go.

    Raises:
        PublishError: They cannot be merged, or would be refused, or a config of others is in the way.
    """
    kinds = [QUESTIONS] * job.questions + [VOLUMES] * (job.volumes != "none") + [CROPS] * job.derived.crops
    tasks = [ShardTask(job, kind, "test", 0, 1) for kind in kinds]
    configs = [
        ConfigFacts(task.config, task.features, {"test": SplitFacts(task.pattern, (), 0, 0, 0)})
        for task in tasks
    ]
    empty = Conversion(job, tuple(configs), {})
    _refuse_others_names([name for _, name, _ in card_configs(empty)], standing, job, deleted)
    merged, _ = merged_card(
        standing.card,
        empty,
        place=standing.place,
        names=standing.names,
        deleted=deleted,
        ours=ours(job, standing),
    )
    _refuse_other_reader(merged, standing.names, standing.place)
    croissant.version_croissant(standing.description, empty, standing.place, {*ours(job, standing), *deleted})
    licence = read_metadata(front_matter(standing.card)[0]).get("license")
    own = job.dataset.licence
    if licence not in (None, own, [own]):
        logger.warning("the card says licence %r; the derived annotations are %s", licence, own)
    before, after = (default_config(front_matter(one)[0], standing.names) for one in (standing.card, merged))
    if before not in (None, after):
        logger.warning(
            "load_dataset(%r) without a config gives %s from now on, not %s", standing.place, after, before
        )
    return merged


def merged(
    standing: Standing,
    conversion: Conversion,
    manifests: Sequence[Manifest],
    *,
    defects: Sequence[str] | None,
    deleted: Sequence[str] = (),
) -> dict[str, bytes]:
    """The files that lie beside the tables: card, pictures, description and manifests.

    Args:
        standing: What is there.
        conversion: What was written.
        manifests: Its manifests.
        defects: Known defects of the release, `None` if it was not verified.
        deleted: Configs that are to go.

    Raises:
        PublishError: The card would be refused.
    """
    mine = ours(conversion.job, standing)
    card, pictures = merged_card(
        standing.card, conversion, place=standing.place, defects=defects, names=standing.names, deleted=deleted,
        ours=mine,
    )  # fmt: skip
    manifests[0].add(Part(name, None, len(one), sha256(one).hexdigest()) for name, one in pictures.items())
    told = croissant.version_croissant(standing.description, conversion, standing.place, {*mine, *deleted})
    texts = {DESCRIPTION: told, **{one.path: one.text for one in manifests}, CARD: card}
    if board := eval_yaml(standing.evaluation, conversion, deleted):
        texts[EVALUATION] = board
    return pictures | {name: text.encode() for name, text in texts.items()}


def ours(job: Job, standing: Standing) -> set[str]:
    """Entries of the card that this conversion may replace or remove: earlier calls of it wrote them."""
    return standing.entries(standing.of(job.name))


def _refuse_others_names(
    written: Sequence[str], standing: Standing, job: Job, deleted: Sequence[str]
) -> None:
    """Refuses to take a name that something else has.

    Raises:
        PublishError: A config of that name is there which we did not write for this one.
    """
    free = {*ours(job, standing), *deleted}
    for name in written:
        if name in standing.names:
            raise PublishError(
                f"{standing.place} has a file {name}, where a folder must be. Choose another name=."
            )
        if name in standing.configs and name not in free:
            raise PublishError(
                f"{standing.place} has a config {name!r} that no manifest in {name}/ proves to be written as "
                f"{job.name!r} by this package. Choose another name=, or let it go by delete_configs=[{name!r}]."
            )


def refuse_hidden_data(standing: Standing) -> None:
    """Refuses to name the first config of a place whose data are found by their names alone.

    Where a card names a config, `datasets` looks for no other files.

    Raises:
        PublishError: There are such files. The message says how to name them.
    """
    if read_metadata(front_matter(standing.card)[0]).get("configs"):
        return
    known = {name for one in standing.manifests for name in one.parts}
    data = sorted(
        name
        for name in standing.names - known
        if name.endswith(_TABLES)
        and not any(part.startswith(".") for part in name.split("/"))
        and not (
            name in _NO_DATA or _SHARD.fullmatch(name) or MANIFEST.fullmatch(name) or UNNAMED.fullmatch(name)
        )
    )
    if data:
        named = f"'configs: [{{config_name: default, data_files: {data[0]}}}]'"
        advice = f"Add them to the metadata of its card first, e.g. {named}, or push"
        raise PublishError(
            f"{standing.place} holds {len(data)} data files such as {data[0]}, and its card names no config of them: "
            "once it names another, nobody could load them. "
            f"{advice if data[0].endswith('.parquet') else 'Push'} to another repository."
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
    for file in (root / CARD, root / DESCRIPTION, root / EVALUATION):
        if file.is_dir():
            raise PublishError(f"{file} is a folder, where a file is to be written. Move it away.")
