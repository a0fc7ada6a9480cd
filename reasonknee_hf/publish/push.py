"""To a dataset repository: shards travel as they are finished, the card and the configs last."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from reasonknee_hf.errors import EndpointError, PublishError
from reasonknee_hf.hub.wire.endpoints import resolve_endpoints
from reasonknee_hf.hub.wire.retries import Patience
from reasonknee_hf.publish.card import default_config
from reasonknee_hf.publish.cardtext import defect_lines
from reasonknee_hf.publish.config_facts import Conversion
from reasonknee_hf.publish.destination import Repository
from reasonknee_hf.publish.eval_yaml import eval_yaml
from reasonknee_hf.publish.job import Job, make_job
from reasonknee_hf.publish.options import PushOptions, chosen_options
from reasonknee_hf.publish.places import Place, staging
from reasonknee_hf.publish.produce import produce
from reasonknee_hf.publish.rehearse import check_folder, merged, refuse_hidden_data, rehearse
from reasonknee_hf.publish.rules import check_name, check_repo, front_matter
from reasonknee_hf.publish.schema import STORED
from reasonknee_hf.publish.standing import (
    CARD,
    EVALUATION,
    Manifest,
    Part,
    Standing,
    deleted_entries,
    stale_files,
)
from reasonknee_hf.publish.viewer import table_findings

logger = logging.getLogger(__name__)


def push(
    repo_id: str, config: str | None = None, *, options: PushOptions | None = None, **given: Any
) -> Conversion:
    """Converts a release, or a selection of it, and pushes it to a dataset repository that loads without this package.

    A push that was killed goes on where it was: files that lie in the repository as its manifest says are not made
    again. Other configs of the repository, and what others wrote on its card, stay. Limits of the Hub's viewer that a
    table hits are logged before it travels; `reasonknee check-card` says the same of a folder.

        push("me/my-version", "bench", volumes="none", categories="BML")

    Args:
        repo_id: `OWNER/NAME`; created where it does not exist, when there is something to send.
        config: As in [`convert`].
        options: [`PushOptions`], for calls that share them.
        given: Single options; see [`PushOptions`].

    Returns:
        [`Conversion`]: what the repository now holds of it.

    Raises:
        PublishError: What would be pushed could not be loaded back, or merged with what is there, or volumes would
            go where everybody can read them; raised before anything is sent. Or another push of the same config
            removed files of this one.
        ForbiddenError: The token may not write there.
        EndpointError: The Hub failed for too long.

    Examples:
        >>> try:
        ...     rk.push("me/mine", "bench", source="sample", volumes="everything")
        ... except rk.ReasonKneeError as error:
        ...     print(error)
        ...
        Unknown volumes 'everything'. Valid: embed, files, reference, none.
    """
    if config is not None:
        given["config"] = config
    chosen = chosen_options(PushOptions, options, given)
    check_repo(repo_id)
    resolve_endpoints(chosen.hub_endpoint)
    with staging(chosen.folder) as folder:
        here = Place(folder)
        job, release = make_job(chosen, folder, chosen.source_token)
        check_name("config", job.name)
        check_folder(folder, job)
        if job.volumes == "reference" and (release.sha is None or job.release.images is not None):
            raise PublishError(
                f"volumes='reference' would leave paths of this machine in the repository: {release.tree.name} is no "
                "commit of a Hub repository. Use volumes='embed' or 'files', or push from a Hub source."
            )
        there = Repository(
            repo_id, folder, revision=chosen.branch, endpoint=chosen.hub_endpoint, token=chosen.token,
            create_pr=chosen.create_pr,
        )  # fmt: skip
        parent = there.look()
        _refuse_visibility(there, job, chosen)
        standing = _standing(there, parent)
        refuse_hidden_data(standing)
        deleted = deleted_entries(standing, chosen.delete_configs, job)
        there.prove(rehearse(job, standing, deleted))
        looked_at: set[str] = set()

        def send(manifest: Manifest, parts: Sequence[Part]) -> None:
            here.write(manifest.path, manifest.text.encode())
            full = [part.path for part in parts if part.rows]
            if not full:  # nobody needs tables without rows in a repository
                return
            _say_what_is_not_shown(here, full, looked_at)
            beside = [name for path in full for name in files_beside(folder / path)]
            if chosen.dry_run:
                return
            there.create(chosen.private)
            there.upload([*beside, *full, manifest.path])
            if chosen.folder is None:
                _forget_committed(folder, there, job)

        defects = None if chosen.verify is False else defect_lines(chosen.verify, release)
        conversion, manifests = produce(
            job, release, there, chosen.executor, send, standing.manifests, Standing.of_place(here).manifests
        )
        for one in manifests:  # what an earlier call left goes now
            one.parts = {name: part for name, part in one.parts.items() if name not in one.left}
        if chosen.dry_run:
            added, gone = _changes(there, standing, conversion, manifests, defects, deleted)
            told = _plan(there, standing, conversion, added, gone)
            return replace(conversion, plan=told)
        there.create(chosen.private)
        _finish(there, conversion, manifests, chosen.delete_configs, defects)
        return replace(conversion, pull_request=there.pull_request)


def _plan(
    there: Repository,
    standing: Standing,
    conversion: Conversion,
    added: Mapping[str, bytes],
    gone: Sequence[str],
) -> dict[str, Any]:
    """What a push would do, as plain JSON values."""
    new = [name for name in _written(conversion) if name not in standing.names]
    cards = [front_matter(text)[0] for text in (standing.card, added[CARD].decode())]
    before, after = (default_config(one, standing.names) for one in cards)
    return {
        "repository": there.repo_id,
        "visibility": there.visibility,
        "files": [*new, *added],
        "bytes": sum(there.size(name) for name in new) + sum(map(len, added.values())),
        "deleted": list(gone),
        "default_before": before,
        "default_after": after,
    }


def _written(conversion: Conversion) -> list[str]:
    """Tables, and files that these name."""
    return [*conversion.files, *(name for one in conversion.configs for name in sorted(one.beside))]


def _changes(
    there: Repository,
    standing: Standing,
    conversion: Conversion,
    manifests: Sequence[Manifest],
    defects: Sequence[str] | None,
    deleted: Sequence[str],
) -> tuple[dict[str, bytes], list[str]]:
    """What the last commit adds, and what it deletes."""
    added = merged(standing, conversion, manifests, defects=defects, deleted=deleted)
    written = [*_written(conversion), *added]
    gone = stale_files(standing, added[CARD].decode(), conversion.job, written, there, deleted)
    if standing.evaluation and eval_yaml(standing.evaluation, conversion, deleted) is None:
        gone.append(EVALUATION)
    return added, gone


def _standing(there: Repository, parent: str | None) -> Standing:
    """What the repository holds; nothing if there is none."""
    if parent is None:
        return Standing(there.repo_id)
    return Standing.read(there.repo_id, there.committed(), partial(there.read_text, sha=parent))


def _refuse_visibility(there: Repository, job: Job, chosen: PushOptions) -> None:
    """Refuses to show what is not said to be for everybody.

    Raises:
        PublishError: Voxels would go into a public repository, or a repository that should be private is not.
    """
    found = there.visibility
    if chosen.private and found in ("public", "gated"):
        raise PublishError(
            f"{there.repo_id} is there and is {found}; private=True makes only new ones private. Make it private in "
            "its settings first, or push to another repository."
        )
    public = found == "public" or (found == "absent" and not chosen.private)
    if public and job.voxels and not chosen.public_volumes:
        asked = "private=True" if found == "absent" else "a private or gated repository"
        raise PublishError(
            f"{', '.join(job.voxels)} would show medical images in {there.repo_id} to everybody. They come under "
            "terms of their own, which the licence of the annotations does not replace: choose volumes='none', or "
            f"{asked}, or say public_volumes=True if you may."
        )


def files_beside(path: Path) -> list[str]:
    """Files that a table names by their path in the repository; refuses a table that others could not read.

    Raises:
        PublishError: A volume without bytes, or a path or URL that only this machine can open.
    """
    beside: list[str] = []
    with pq.ParquetFile(path) as file:
        stored = [field.name for field in file.schema_arrow if field.type == STORED]
        columns = [*stored, *(n for n in file.schema_arrow.names if n.endswith(("_url", "_file")))]
        for number in range(file.metadata.num_row_groups if columns else 0):
            table = file.read_row_group(number, columns=columns)
            for name in columns:
                values = table[name].drop_null()
                if name in stored:
                    _check_stored(path, name, values.combine_chunks())
                elif name.endswith("_file"):
                    beside += values.to_pylist()
                else:
                    local = [url for url in values.to_pylist() if not _is_global(url)]
                    if local:
                        raise PublishError(
                            f"{path.name}: {name} holds {local[0]!r}, which only this machine can open."
                        )
    return beside


def _say_what_is_not_shown(place: Place, files: Sequence[str], looked_at: set[str]) -> None:
    """Logs which limits of the Hub's viewer tables hit, before they travel; the tables load all the same."""
    for name in files:
        config = name.partition("/")[0]
        for finding in table_findings(place, name, config, first=config not in looked_at):
            logger.log(logging.WARNING if finding.blocking else logging.INFO, "the viewer: %s", finding)
        looked_at.add(config)


def _check_stored(path: Path, name: str, values: pa.StructArray) -> None:
    lengths = pc.fill_null(pc.binary_length(values.field("bytes")), 0).to_pylist()
    paths = values.field("path").to_pylist()
    for length, text in zip(lengths, paths, strict=True):
        if not length:
            raise PublishError(f"{path.name}: {name} has no bytes for {text!r}; nobody else could open it.")
        if text is not None and ("/" in text or "\\" in text):
            raise PublishError(f"{path.name}: {name} holds {text!r}, a directory of this machine.")


def _is_global(url: str) -> bool:
    return "://" in url and not url.startswith(("file:", "memory:", "reasonknee://file%3A"))


def _forget_committed(staging: Path, there: Repository, job: Job) -> None:
    """Removes volumes that are committed: an export of terabytes must not fill the disk."""
    for name in there.committed():
        if name.startswith((f"{job.volumes_name}/", f"{job.crops_name}/")) and not name.endswith(".json"):
            (staging / name).unlink(missing_ok=True)


def _upload_again(there: Repository, conversion: Conversion) -> None:
    """Uploads what was removed from the repository meanwhile, if it still lies here."""
    lost = [name for name in _written(conversion) if name not in there.names()]
    gone = [name for name in lost if not there.is_here(name)]
    if gone:
        raise PublishError(
            f"{len(gone)} files of the config {conversion.configs[0].name} that were in {there.repo_id} are gone, e.g. "
            f"{gone[0]}: another push wrote this config with other options meanwhile. Run the same command again when "
            "that has ended."
        )
    if lost:
        there.upload(lost)


def _finish(
    there: Repository,
    conversion: Conversion,
    manifests: Sequence[Manifest],
    delete_configs: Sequence[str],
    defects: Sequence[str] | None,
) -> None:
    """Card, pictures and the removal of stale files in one commit upon the newest one; merged anew if that changes."""
    patience = Patience(f"merging the card of {there.repo_id}")
    while True:
        parent = there.refresh()
        _upload_again(there, conversion)
        standing = _standing(there, parent)
        deleted = deleted_entries(standing, delete_configs, conversion.job)
        added, gone = _changes(there, standing, conversion, manifests, defects, deleted)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, content) for name, content in added.items()),
            *(CommitOperationDelete(name) for name in gone),
        ]
        try:
            there.commit(operations, f"Add config {conversion.configs[0].name}", parent)
            return
        except HfHubHTTPError as error:  # the repository changed meanwhile
            reason = " ".join(str(error).split())[:300]
            if not patience.wait(reason):
                raise EndpointError(
                    f"The card of {there.repo_id} changed during each try to merge it, or the Hub says so: {reason}. "
                    "All shards are uploaded; run the same command again to write the card."
                ) from error
