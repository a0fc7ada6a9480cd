"""To a dataset repository: shards travel as they are finished, the card and the configs last."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from reasonknee_hf.errors import EndpointError, PublishError
from reasonknee_hf.hub.wire.endpoints import resolve_endpoints
from reasonknee_hf.publish import croissant
from reasonknee_hf.publish import destination as repository
from reasonknee_hf.publish.card import CARD, merged_card, read_metadata
from reasonknee_hf.publish.config_facts import Folder
from reasonknee_hf.publish.convert import Conversion, make_job, produce
from reasonknee_hf.publish.defects import defect_lines
from reasonknee_hf.publish.destination import Repository
from reasonknee_hf.publish.given_names import check_name, check_repo
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.parquet import Limits
from reasonknee_hf.publish.rehearse import check_folder, refuse_hidden_data, rehearse
from reasonknee_hf.publish.rules import front_matter
from reasonknee_hf.publish.schema import STORED
from reasonknee_hf.publish.selection import Row
from reasonknee_hf.publish.stale import SHARD, stale_files, with_companions
from reasonknee_hf.publish.viewer import table_findings
from reasonknee_hf.verify import Report

logger = logging.getLogger(__name__)


def push(
    repo_id: str,
    config: str = "full",
    *,
    folder: str | Path | None = None,
    private: bool | None = None,
    branch: str | None = None,
    create_pr: bool = False,
    hub_endpoint: str | None = None,
    token: str | bool | None = None,
    delete_configs: Sequence[str] = (),
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
    source_token: str | bool | None = None,
    endpoint: str | Sequence[str] | None = None,
    images: str | None = None,
    high_fidelity: str | Sequence[str] | None = None,
    annotations: str = "all",
    on_error: str = "raise",
    verify: bool | Report = True,
) -> Conversion:
    """Converts a release, or a selection of it, and pushes it to a dataset repository that loads without this package.

    A push that was killed goes on where it was: files that lie in the repository are not made again. Other configs of
    the repository, and what others wrote on its card, stay. Limits of the Hub's viewer that a table hits are logged
    before it travels; `reasonknee check-card` says the same of a folder.

    Args:
        repo_id: `OWNER/NAME`; created where it does not exist.
        config: As in [`convert`], as are all options that are not named here.
        folder: Where files are made before they travel, and kept. By default a temporary folder, from which volumes
            go when they are committed.
        private: Whether a new repository is private.
        branch: Branch to push to; created where it does not exist.
        create_pr: Open a pull request instead of committing to the branch.
        hub_endpoint: Hub to push to; `HF_ENDPOINT` by default.
        token: As in `huggingface_hub`, for the repository.
        source_token: The same for the source.
        delete_configs: Configs of the repository to remove, with their files, volumes and crops.

    Returns:
        [`Conversion`]: what the repository now holds of it.

    Raises:
        PublishError: What would be pushed could not be loaded back, or merged with what is there; raised before
            anything is sent. Or another push of the same config removed files of this one.
        ForbiddenError: The token may not write there.
        EndpointError: The Hub failed for too long.
    """
    given = dict(locals())
    check_repo(repo_id)
    resolve_endpoints(hub_endpoint)
    with _staging(folder) as staging:
        job, release = make_job(given | {"token": source_token}, staging)
        check_name("config", job.name)
        check_folder(staging, job)
        if job.volumes == "reference" and (release.sha is None or job.release.images is not None):
            raise PublishError(
                f"volumes='reference' would leave paths of this machine in the repository: {release.tree.name} is no "
                "commit of a Hub repository. Use volumes='embed' or 'files', or push from a Hub source."
            )
        there = Repository(
            repo_id, staging, revision=branch, endpoint=hub_endpoint, token=token, create_pr=create_pr
        )
        there.create(private)
        parent = there.refresh()
        card, description = (there.read_text(name, parent) for name in (CARD, croissant.FILE))
        refuse_hidden_data(card, there.committed(), repo_id)
        deleted = _deleted(delete_configs, job, card, there)
        rehearse(job, card, description, place=repo_id, names=there.committed(), deleted=deleted)

        looked_at: set[str] = set()

        def send(files: Sequence[str]) -> None:
            full = [name for name in files if pq.read_metadata(staging / name).num_rows]
            there.leave_out(set(files) - set(full))
            if not full:
                return
            _say_what_is_not_shown(staging, full, looked_at)
            beside = [name for path in full for name in files_beside(staging / path)]
            there.upload([*beside, *full])
            if folder is None:
                _forget_committed(staging, there, job)

        defects = defect_lines(verify, release)
        conversion = produce(job, release, there, executor, on_files=send)
        _finish(there, conversion, deleted, defects)
        return replace(conversion, pull_request=there.pull_request)


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


def _say_what_is_not_shown(staging: Path, files: Sequence[str], looked_at: set[str]) -> None:
    """Logs which limits of the Hub's viewer tables hit, before they travel; the tables load all the same."""
    for name in files:
        config = name.partition("/")[0]
        for finding in table_findings(Folder(staging), name, config, first=config not in looked_at):
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


@contextlib.contextmanager
def _staging(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="reasonknee-push-") as temporary:
        yield Path(temporary)


def _forget_committed(staging: Path, there: Repository, job: Job) -> None:
    """Removes volumes that are committed: an export of terabytes must not fill the disk."""
    for name in there.committed():
        if name.startswith((f"{job.volumes_name}/", f"{job.crops_name}/")):
            (staging / name).unlink(missing_ok=True)


def _deleted(names: Sequence[str], job: Job, card: str, there: Repository) -> list[str]:
    """The configs to remove, with those that were written beside them."""
    listed = {
        str(one.get("config_name")) for one in read_metadata(front_matter(card)[0]).get("configs") or ()
    }
    listed |= {name.split("/")[0] for name in there.committed() if SHARD.fullmatch(name)}
    for name in names:
        if name in (job.name, job.volumes_name, job.crops_name):
            raise PublishError(f"The config {name} cannot be pushed and deleted by one call.")
        if name not in listed:
            raise PublishError(
                f"{there.repo_id} has no config {name!r} to delete. Its configs: {', '.join(sorted(listed)) or 'none'}."
            )
    return with_companions(names, there.committed(), job)


def _upload_again(there: Repository, conversion: Conversion) -> None:
    """Uploads what was removed from the repository meanwhile, if it still lies here."""
    beside = [name for config in conversion.configs for name in sorted(config.beside)]
    lost = [name for name in (*beside, *conversion.files) if name not in there.names()]
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
    deleted: Sequence[str],
    defects: Sequence[str] | None,
) -> None:
    """Card, pictures and the removal of stale files in one commit upon the newest one; merged anew if that changes."""
    wait = repository.FIRST_WAIT
    for attempt in range(1, repository.TRIES + 1):
        parent = there.refresh()
        _upload_again(there, conversion)
        old = there.read_text(CARD, parent)
        card, pictures = merged_card(
            old,
            conversion,
            place=there.repo_id,
            defects=defects,
            names=there.committed(),
            deleted=deleted,
        )
        described = croissant.version_croissant(
            there.read_text(croissant.FILE, parent), conversion, there.repo_id, deleted
        )
        stale = stale_files(there.committed(), old, card, conversion, deleted)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(CARD, card.encode()),
            *(CommitOperationAdd(name, content) for name, content in pictures.items()),
            CommitOperationAdd(croissant.FILE, described.encode()),
            *(CommitOperationDelete(name) for name in stale),
        ]
        try:
            there.commit(operations, f"Add config {conversion.configs[0].name}", parent)
            return
        except HfHubHTTPError as error:
            logger.warning("the repository changed meanwhile; merging again, try %d", attempt + 1)
            reason = " ".join(str(error).split())[:300]
        time.sleep(min(wait, repository.LONGEST_WAIT))
        wait *= 2
    raise EndpointError(
        f"The card of {there.repo_id} changed during each of {repository.TRIES} tries to merge it, or the Hub says "
        f"so: {reason}. All shards are uploaded; run the same command again to write the card."
    )
