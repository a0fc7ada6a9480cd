"""From a release to a folder of Parquet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee_hf.publish.config_facts import Conversion, Folder
from reasonknee_hf.publish.defects import defect_lines
from reasonknee_hf.publish.job import make_job
from reasonknee_hf.publish.manifest import Manifest, Part
from reasonknee_hf.publish.options import ConvertOptions, chosen_options
from reasonknee_hf.publish.produce import produce
from reasonknee_hf.publish.rehearse import check_folder, merged, rehearse, standing_of
from reasonknee_hf.publish.rules import check_name, check_out
from reasonknee_hf.publish.stale import CARD, stale_files
from reasonknee_hf.publish.texts import write

logger = logging.getLogger(__name__)


def convert(
    out: str | Path, config: str | None = None, *, options: ConvertOptions | None = None, **given: Any
) -> Conversion:
    """Writes a release, or a selection of it, to a folder that `datasets.load_dataset` opens without this package.

    Questions become a config of small rows keyed by `scan_id`; volumes and masks are kept once a scan, in the config
    `{name}_volumes`. Files that an earlier call finished are kept while options, release and volumes are the same and
    the files are as its manifest says.

        convert("my-version", "bench", source="sample", categories="BML", limit=100)

    Args:
        out: A folder. Configs that lie there already stay.
        config: `full`, `high_fidelity`, `bench`, `scans` for volumes alone, or `records` for the records as they are
            published. `full` by default. Of another dataset than the first one: `dataset/config`.
        options: [`ConvertOptions`], for calls that share them.
        given: Single options; see [`ConvertOptions`].

    Returns:
        [`Conversion`]: configs, splits, files and counts; and files of earlier calls that no config names any more.

    Raises:
        OptionError: An option that is not known or not possible.
        PublishError: Nothing was selected, what lies in `out` cannot be added to, or what was written did not come
            back the same.
        VolumeMissingError: A volume or mask that the tables name is nowhere.
        VolumeFormatError, VolumeDataError: One is no NIfTI file, or is cut or fails its checksum.
    """
    if config is not None:
        given["config"] = config
    chosen = chosen_options(ConvertOptions, options, given)
    root = check_out(out)
    job, release = make_job(chosen, root, chosen.token)
    check_name("config", job.name)
    check_folder(root, job)
    store = Folder(root)
    standing = standing_of(root)
    rehearse(job, standing)

    def keep(manifest: Manifest, parts: Sequence[Part]) -> None:
        write(root / manifest.path, manifest.text.encode())

    conversion, manifests = produce(job, release, store, chosen.executor, keep, standing.manifests)
    beside = merged(standing, conversion, manifests, defects=defect_lines(chosen.verify, release))
    for name, content in beside.items():
        write(root / name, content)
    written = [*conversion.files, *(name for one in conversion.configs for name in one.beside), *beside]
    stale = stale_files(standing, beside[CARD].decode(), job, written, store)
    if stale:
        logger.warning(
            "%d files of earlier calls lie in %s that no config names any more, e.g. %s; remove them before the folder "
            "is uploaded as it is",
            len(stale),
            root,
            stale[0],
        )
    return replace(conversion, stale=tuple(stale))
