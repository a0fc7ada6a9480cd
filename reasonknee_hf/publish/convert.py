"""From a release to Parquet in a folder, or anywhere else that fsspec writes to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.cardtext import defect_lines
from reasonknee_hf.publish.config_facts import Conversion
from reasonknee_hf.publish.job import make_job
from reasonknee_hf.publish.options import ConvertOptions, chosen_options
from reasonknee_hf.publish.places import Place
from reasonknee_hf.publish.produce import produce
from reasonknee_hf.publish.rehearse import check_folder, merged, rehearse
from reasonknee_hf.publish.rules import check_name
from reasonknee_hf.publish.standing import CARD, Manifest, Part, Standing, stale_files

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
        out: A folder, or a URL that fsspec writes to, such as `s3://bucket/mine`, `hf://buckets/me/mine` or
            `memory://mine`, with the same files. Configs that lie there already stay.
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
        ExtraMissingError: The package for URLs of that kind is not installed.
        ForbiddenError, EndpointError: Nothing can be written there.
        VolumeMissingError: A volume or mask that the tables name is nowhere.
        VolumeFormatError, VolumeDataError: One is no NIfTI file, or is cut or fails its checksum.

    Examples:
        >>> from tempfile import mkdtemp
        >>> done = rk.convert(mkdtemp(), "bench", source="sample", volumes="none")
        >>> done.configs[0].rows
        124
    """
    if config is not None:
        given["config"] = config
    chosen = chosen_options(ConvertOptions, options, given)
    place = Place(out)
    job, release = make_job(chosen, out, chosen.token)
    check_name("config", job.name)
    if place.local:
        check_folder(place.local, job)
    standing = Standing.of_place(place)
    rehearse(job, standing)
    place.prove()

    def keep(manifest: Manifest, parts: Sequence[Part]) -> None:
        for part in parts:
            try:
                there = place.size(part.path)
            except FileNotFoundError:
                there = None
            if there != part.size:
                raise PublishError(
                    f"{part.path} was made with {part.size} bytes and has {there} in {out}: workers must write to the "
                    "place that this process reads."
                )
        place.write(manifest.path, manifest.text.encode())

    conversion, manifests = produce(job, release, place, chosen.executor, keep, standing.manifests)
    beside = merged(standing, conversion, manifests, defects=defect_lines(chosen.verify, release))
    for name, content in beside.items():
        place.write(name, content)
    written = [*conversion.files, *(name for one in conversion.configs for name in one.beside), *beside]
    stale = stale_files(standing, beside[CARD].decode(), job, written, place)
    if stale and chosen.remove_stale:
        place.remove(stale)
        logger.info("removed %d files of earlier calls from %s: %s", len(stale), out, ", ".join(stale))
        return conversion
    if stale:
        logger.warning(
            "%d files of earlier calls lie in %s that no config names any more, e.g. %s; remove them by "
            "remove_stale=True before the folder is uploaded as it is",
            len(stale),
            out,
            stale[0],
        )
    return replace(conversion, stale=tuple(stale))
