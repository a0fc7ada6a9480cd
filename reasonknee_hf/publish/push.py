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
import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from reasonknee_hf.errors import EndpointError, PublishError
from reasonknee_hf.publish import croissant, repository
from reasonknee_hf.publish.card import merged_card, without_configs
from reasonknee_hf.publish.convert import Conversion, make_job, produce
from reasonknee_hf.publish.defects import defect_lines
from reasonknee_hf.publish.facts import Folder
from reasonknee_hf.publish.names import check_name, check_repo
from reasonknee_hf.publish.parquet import Limits
from reasonknee_hf.publish.repository import Repository
from reasonknee_hf.publish.rules import front_matter
from reasonknee_hf.publish.schema import STORED
from reasonknee_hf.publish.selection import Row
from reasonknee_hf.publish.stale import stale_files
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
        delete_configs: Configs of the repository to remove, with their files.

    Returns:
        [`Conversion`]: what the repository now holds of it.

    Raises:
        PublishError: What would be pushed could not be loaded back; raised before anything is sent.
        ForbiddenError: The token may not write there.
        EndpointError: The Hub failed for too long.
    """
    given = dict(locals())
    check_repo(repo_id)
    with _staging(folder) as staging:
        job, release = make_job(given | {"token": source_token}, staging)
        for written in (job.name, *delete_configs):
            check_name("config", written)
        if job.volumes == "reference" and (release.sha is None or job.release.images is not None):
            raise PublishError(
                f"volumes='reference' would leave paths of this machine in the repository: {release.tree.name} is no "
                "commit of a Hub repository. Use volumes='embed' or 'files', or push from a Hub source."
            )
        there = Repository(
            repo_id, staging, revision=branch, endpoint=hub_endpoint, token=token, create_pr=create_pr
        )
        there.create(private)
        _check_old_card(there)

        looked_at: set[str] = set()

        def send(files: Sequence[str]) -> None:
            _say_what_is_not_shown(staging, files, looked_at)
            beside = [name for path in files for name in files_beside(staging / path)]
            there.upload([*beside, *files])
            if folder is None and job.volumes != "none":
                _forget_committed(staging, there)

        defects = defect_lines(verify, release)
        conversion = produce(job, release, there, executor, on_files=send)
        _finish(there, conversion, delete_configs, defects)
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
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="reasonknee-push-") as temporary:
        yield Path(temporary)


def _forget_committed(staging: Path, there: Repository) -> None:
    """Removes volumes that are committed: an export of terabytes must not fill the disk."""
    for name in there.committed():
        if "_volumes/" in name or "_crops/" in name:
            (staging / name).unlink(missing_ok=True)


def _check_old_card(there: Repository) -> None:
    old = there.read_text("README.md", there.refresh())
    try:
        yaml.safe_load(front_matter(old)[0])
    except yaml.YAMLError as error:
        raise PublishError(
            f"The card of {there.repo_id} has metadata that are not YAML ({' '.join(str(error).split())}). "
            "Mend it, then push."
        ) from None


def _finish(
    there: Repository,
    conversion: Conversion,
    delete_configs: Sequence[str],
    defects: Sequence[str] | None,
) -> None:
    """Card, pictures and the removal of stale files in one commit upon the newest one; merged anew if that changes."""
    wait = repository.FIRST_WAIT
    for attempt in range(1, repository.TRIES + 1):
        parent = there.refresh()
        old = there.read_text("README.md", parent)
        card, pictures = merged_card(
            without_configs(old, delete_configs), conversion, place=there.repo_id, defects=defects
        )
        described = croissant.version_croissant(
            there.read_text(croissant.FILE, parent), conversion, there.repo_id
        )
        lost = [name for name in conversion.files if name not in there.names()]
        if lost:
            there.upload(lost)
        stale = stale_files(there.names(), old, card, conversion, delete_configs)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd("README.md", card.encode()),
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
