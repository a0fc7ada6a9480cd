"""One dataset repository as a place for finished files: reads, uploads, commits, and bounded retries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, HfFileSystem
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from reasonknee_hf.errors import EndpointError, ForbiddenError
from reasonknee_hf.publish.texts import decoded

logger = logging.getLogger(__name__)

TRIES = 8
FIRST_WAIT = 1.0  # seconds; doubled with each try
LONGEST_WAIT = 60.0
COMMIT_FILES = 50
"""Files that are uploaded before they are committed together: few commits, and little to do again after a kill."""

_PASSING = {408, 409, 412, 425, 429, 500, 502, 503, 504}
_T = TypeVar("_T")


class Repository:
    """One revision of a dataset repository.

    Args:
        repo_id: `OWNER/NAME`.
        staging: Folder that new files are uploaded from.
        revision: Branch.
        endpoint, token: As in `huggingface_hub`.
        create_pr: Open a pull request instead of committing to the branch.
    """

    def __init__(
        self,
        repo_id: str,
        staging: Path,
        *,
        revision: str | None = None,
        endpoint: str | None = None,
        token: str | bool | None = None,
        create_pr: bool = False,
    ) -> None:
        self.api = HfApi(endpoint=endpoint, token=token)
        self.repo_id = repo_id
        self.revision = revision or "main"
        self.pull_request: str | None = None
        self._create_pr = create_pr
        self._staging = staging
        self._fs = HfFileSystem(endpoint=endpoint, token=token, skip_instance_cache=True)
        self._names: dict[str, int] = {}
        self._uploaded: list[CommitOperationAdd] = []
        self._empty: set[str] = set()

    def create(self, private: bool | None) -> None:
        """Creates the repository and the branch where they are not there, and reads the listing."""
        insist(
            lambda: self.api.create_repo(self.repo_id, repo_type="dataset", private=private, exist_ok=True),
            f"creating {self.repo_id}",
        )
        if self.revision != "main" and not self.revision.startswith("refs/"):
            insist(
                lambda: self.api.create_branch(
                    self.repo_id, repo_type="dataset", branch=self.revision, exist_ok=True
                ),
                f"creating the branch {self.revision}",
            )
        self.refresh()

    # --- reading -------------------------------------------------------------------------------------------------

    def refresh(self) -> str:
        """Reads the listing of the newest commit and returns its sha."""
        info = insist(
            lambda: self.api.dataset_info(self.repo_id, revision=self._target, files_metadata=True),
            f"listing {self.repo_id}",
        )
        self._names = {file.rfilename: file.size or 0 for file in info.siblings or []}
        return str(info.sha)

    def names(self) -> set[str]:
        """Files of the repository, those that are uploaded and wait for their commit, and tables without rows."""
        return {*self._names, *(one.path_in_repo for one in self._uploaded), *self._empty}

    def committed(self) -> set[str]:
        """Files that are in the repository."""
        return set(self._names)

    def is_here(self, name: str) -> bool:
        """Whether a file lies in the staging folder."""
        return (self._staging / name).exists()

    def size(self, name: str) -> int:
        """Bytes of a file."""
        local = self._staging / name
        return local.stat().st_size if local.exists() else self._names[name]

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file for reading: here if it still lies here, else from the repository by ranges."""
        local = self._staging / name
        if local.exists():
            return local.open("rb")
        opened: AbstractContextManager[Any] = self._fs.open(
            f"datasets/{self.repo_id}@{self._target.replace('/', '%2F')}/{name}", "rb", block_size=1 << 18
        )
        return opened

    def read_text(self, name: str, sha: str) -> str:
        """A small text file at the commit that [`refresh`] gave; empty if the listing has no such file.

        Raises:
            EndpointError: It is listed and cannot be had: taking it for absent would overwrite others' work.
            PublishError: It is not UTF-8.
        """
        if name not in self._names:
            return ""
        path = insist(
            lambda: self.api.hf_hub_download(self.repo_id, name, repo_type="dataset", revision=sha),
            f"reading {name} of {self.repo_id}",
        )
        return decoded(Path(path).read_bytes(), f"{name} of {self.repo_id}")

    # --- writing -------------------------------------------------------------------------------------------------

    def leave_out(self, names: Iterable[str]) -> None:
        """Counts tables without rows as there; nobody needs them in a repository."""
        self._empty.update(names)

    def upload(self, names: Sequence[str]) -> None:
        """Uploads files of the staging folder; they are committed in groups."""
        operations = [CommitOperationAdd(name, str(self._staging / name)) for name in names]
        insist(
            lambda: self.api.preupload_lfs_files(
                self.repo_id,
                additions=operations,
                repo_type="dataset",
                revision=self._target,
                create_pr=self._opens_pr,
                free_memory=False,
            ),
            f"uploading {names[0]}",
        )
        self._uploaded += operations
        logger.info("uploaded %s", ", ".join(names))
        if len(self._uploaded) >= COMMIT_FILES:
            self.commit([], f"Add {len(self._uploaded)} files")

    def commit(
        self,
        operations: Iterable[CommitOperationAdd | CommitOperationDelete],
        message: str,
        parent: str | None = None,
    ) -> None:
        """Commits operations together with what is uploaded.

        Args:
            operations: Further operations.
            message: First line of the commit message.
            parent: Commit that must be the newest one.

        Raises:
            HfHubHTTPError: With status 412 if it is not, or 409 if another commit is being made.
            EndpointError: The endpoint refused, or failed for too long.
        """
        waiting = list(self._uploaded)
        everything = [*waiting, *operations]
        done = insist(
            lambda: self.api.create_commit(
                self.repo_id,
                everything,
                commit_message=message,
                repo_type="dataset",
                revision=self._target,
                create_pr=self._opens_pr,
                parent_commit=parent,
            ),
            f"committing to {self.repo_id}",
            leave=(412,) if parent is not None else (),
        )
        if self._opens_pr and done.pr_url is not None:
            self.pull_request = done.pr_url
            self.revision = str(done.pr_revision)
        self._uploaded = []
        for one in waiting:
            self._names[one.path_in_repo] = one.upload_info.size

    @property
    def _opens_pr(self) -> bool:
        return self._create_pr and self.pull_request is None

    @property
    def _target(self) -> str:
        return self.revision


def insist(call: Callable[[], _T], what: str, leave: Sequence[int] = ()) -> _T:
    """Calls until it works, at most `TRIES` times, and waits between; as long as a server says, if it says so.

    Args:
        call: May be called again after it failed.
        what: For messages.
        leave: Statuses that the caller handles.

    Raises:
        ForbiddenError: The token may not do that. Not tried again.
        EndpointError: It failed for another reason, or too often; the message gives the last one.
    """
    wait = FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except Exception as error:
            failure = _told(error)
            if isinstance(failure, HfHubHTTPError) and not isinstance(failure, LocalEntryNotFoundError):
                status = getattr(failure.response, "status_code", 0)
                if status in leave:
                    raise
                if status in (401, 403):
                    raise ForbiddenError(
                        f"{what} was refused ({status}): {_reason(failure)}. Log in with a token that may write there "
                        "(`hf auth login`, or token=); where it may only propose changes, use create_pr=True."
                    ) from error
                if status not in _PASSING:
                    raise EndpointError(f"{what} failed ({status}): {_reason(failure)}") from error
                wait = float(_retry_after(failure) or wait)
            elif not _is_passing(failure):
                raise
        if attempt < TRIES:
            logger.warning("%s failed (%s); try %d of %d", what, _reason(failure), attempt + 1, TRIES)
            time.sleep(min(wait, LONGEST_WAIT))
            wait *= 2
    raise EndpointError(
        f"{what} failed {TRIES} times, the last time with: {_reason(failure)}. What is uploaded stays; run the same "
        "command again to go on from there."
    ) from failure


def _told(error: Exception) -> Exception:
    """The error itself; what is behind it where the client wraps what went wrong with the bytes of a file."""
    inside = error.__cause__
    return inside if type(error) is RuntimeError and isinstance(inside, Exception) else error


def _is_passing(error: Exception) -> bool:
    """Whether an error without a status is a failure to connect, a broken answer, or a download that failed."""
    if isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError)):
        return True
    # The client's HTTP library differs with its version.
    return type(error).__module__.startswith(("httpx", "httpcore", "requests"))


def _retry_after(error: HfHubHTTPError) -> float | None:
    text = error.response.headers.get("Retry-After", "") if error.response is not None else ""
    return float(text) if text.isdigit() else None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
