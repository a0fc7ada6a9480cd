"""One dataset repository as a place for finished files: reads, uploads, commits, and bounded retries."""

from __future__ import annotations

import json
import logging
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, DatasetInfo, HfApi, HfFileSystem
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import BlobLfsInfo, RepoSibling

from reasonknee_hf.errors import EndpointError, ForbiddenError, PublishError
from reasonknee_hf.hub.wire.retries import PASSING, Patience, retry_after
from reasonknee_hf.publish.places import decoded, hash_of

logger = logging.getLogger(__name__)

FIRST_SECONDS = 5.0
"""For which the first request is tried: a Hub that is not there at all is said soon."""
COMMIT_FILES = 50
"""Files that are uploaded before they are committed together: few commits, and little to do again after a kill."""

_PASSING = PASSING | {409, 412}  # another commit is being made, or was made meanwhile
_FULL = re.compile("quota|storage|exceed|limit reached|payment", re.IGNORECASE)
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
        self._base = self.revision
        self._created = False
        self._info: DatasetInfo | None = None
        self._files: dict[str, RepoSibling] = {}
        self._uploaded: dict[str, CommitOperationAdd] = {}

    def look(self) -> str | None:
        """Reads the listing and returns the sha of the newest commit; `None` if there is no repository.

        A branch that does not exist yet begins as `main` is.
        """
        try:
            return self._list(leave=(401, 404), seconds=FIRST_SECONDS)
        except RevisionNotFoundError:
            self._base = "main"
            return self._list()
        except RepositoryNotFoundError:
            self._base = "main"
            return None
        except HfHubHTTPError as error:
            _refuse(getattr(error.response, "status_code", 0), f"listing {self.repo_id}", error)
            raise

    @property
    def visibility(self) -> str:
        """`private`, `gated`, `public`, or `absent`, as [`look`] found it."""
        if self._info is None:
            return "absent"
        return "private" if self._info.private else "gated" if self._info.gated else "public"

    def prove(self, card: str) -> None:
        """Asks the Hub whether the card is right and this token may write, before anything is made.

        Raises:
            PublishError: The Hub refuses the card.
            ForbiddenError: The token may not write there.
        """
        insist(lambda: self._validate(card), f"checking the card of {self.repo_id}")
        if self._info is None:
            told = insist(self.api.whoami, "asking whose token this is")
            role = told.get("auth", {}).get("accessToken", {}).get("role")
            if role == "read":
                raise ForbiddenError(
                    f"Creating {self.repo_id} needs a token that may write; this one of {told.get('name')} only reads."
                )
            return
        # The first step of any upload, of a file that does not travel by itself.
        added = [CommitOperationAdd("README.md", card.encode())]
        self._ask(
            self.api.preupload_lfs_files,
            "writing to",
            additions=added,
            revision=self._base,
            create_pr=self._create_pr,
        )

    def _validate(self, card: str) -> None:
        try:
            self.api._validate_yaml(card, repo_type="dataset")  # what `create_commit` asks at the end
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise PublishError(f"The Hub would refuse the card: {' '.join(str(error).split())}") from error

    def create(self, private: bool | None) -> None:
        """Creates the repository and the branch where they are not there; once."""
        if self._created:
            return
        if self._info is None:
            self._ask(self.api.create_repo, "creating", private=private, exist_ok=True)
        if self.revision not in (self._base, "main") and not self.revision.startswith("refs/"):
            self._ask(
                self.api.create_branch,
                f"creating the branch {self.revision} of",
                branch=self.revision,
                exist_ok=True,
            )
        self._base, self._created = self.revision, True

    # --- reading -------------------------------------------------------------------------------------------------

    def refresh(self) -> str:
        """Reads the listing of the newest commit and returns its sha."""
        return self._list()

    def _list(self, leave: Sequence[int] = (), seconds: float | None = None) -> str:
        self._info = insist(
            lambda: self.api.dataset_info(self.repo_id, revision=self._base, files_metadata=True),
            f"listing {self.repo_id}",
            leave,
            seconds,
        )
        self._files = {file.rfilename: file for file in self._info.siblings or []}
        return str(self._info.sha)

    def names(self) -> set[str]:
        """Files of the repository, and those that are uploaded and wait for their commit."""
        return {*self._files, *self._uploaded}

    def committed(self) -> set[str]:
        """Files that are in the repository."""
        return set(self._files)

    def is_here(self, name: str) -> bool:
        """Whether a file lies in the staging folder."""
        return (self._staging / name).exists()

    def size(self, name: str) -> int:
        """Bytes of a file."""
        local = self._staging / name
        return local.stat().st_size if local.exists() else self._files[name].size or 0

    def sha256(self, name: str) -> str:
        """Hash of a file in the repository: as the listing says, or of what it holds."""
        lfs = getattr(self._files.get(name), "lfs", None)
        if lfs is not None:
            return str(lfs.sha256)
        with self.open(name) as file:
            return hash_of(file)

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file for reading: here if it still lies here, else from the repository by ranges."""
        local = self._staging / name
        if local.exists():
            return local.open("rb")
        opened: AbstractContextManager[Any] = self._fs.open(
            f"datasets/{self.repo_id}@{self._base.replace('/', '%2F')}/{name}", "rb", block_size=1 << 18
        )
        return opened

    def read_text(self, name: str, sha: str) -> str:
        """A small text file at the commit that [`refresh`] gave; empty if the listing has no such file.

        Raises:
            EndpointError: It is listed and cannot be had: taking it for absent would overwrite others' work.
            PublishError: It is not UTF-8.
        """
        if name not in self._files:
            return ""
        path = self._ask(self.api.hf_hub_download, f"reading {name} of", filename=name, revision=sha)
        return decoded(Path(path).read_bytes(), f"{name} of {self.repo_id}")

    # --- writing -------------------------------------------------------------------------------------------------

    def upload(self, names: Sequence[str]) -> None:
        """Uploads files of the staging folder; they are committed in groups."""
        operations = [CommitOperationAdd(name, str(self._staging / name)) for name in names]
        self._ask(
            self.api.preupload_lfs_files, f"uploading {names[0]} to", additions=operations, revision=self.revision,
            create_pr=self._opens_pr, free_memory=False,
        )  # fmt: skip
        self._uploaded |= {one.path_in_repo: one for one in operations}
        logger.info("uploaded %s", ", ".join(names))
        if sum(not name.endswith(".json") for name in self._uploaded) >= COMMIT_FILES:
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
        waiting = self._uploaded
        # A manifest that was uploaded with its shards may have grown since.
        everything = list({one.path_in_repo: one for one in (*waiting.values(), *operations)}.values())
        done = self._ask(
            self.api.create_commit, "committing to", (412,) if parent is not None else (), operations=everything,
            commit_message=message, revision=self.revision, create_pr=self._opens_pr, parent_commit=parent,
        )  # fmt: skip
        if self._opens_pr and done.pr_url is not None:
            self.pull_request = done.pr_url
            self.revision = self._base = str(done.pr_revision)
        self._uploaded = {}
        self._files |= {name: _committed(one) for name, one in waiting.items()}

    def _ask(self, method: Callable[..., _T], what: str, leave: Sequence[int] = (), **given: Any) -> _T:
        """What a method of the client says of this repository; `what` is for messages, which end with its name."""
        return insist(
            lambda: method(self.repo_id, repo_type="dataset", **given), f"{what} {self.repo_id}", leave
        )

    @property
    def _opens_pr(self) -> bool:
        return self._create_pr and self.pull_request is None


def _committed(one: CommitOperationAdd) -> RepoSibling:
    """A file as a listing would tell it."""
    info = one.upload_info
    lfs = BlobLfsInfo(size=info.size, sha256=info.sha256.hex(), pointer_size=0)
    return RepoSibling(one.path_in_repo, size=info.size, lfs=lfs)


def insist(call: Callable[[], _T], what: str, leave: Sequence[int] = (), seconds: float | None = None) -> _T:
    """Calls until it works, by the one policy for trying again.

    Args:
        call: May be called again after it failed.
        what: For messages.
        leave: Statuses that the caller handles.
        seconds: For all tries together.

    Raises:
        ForbiddenError: The token may not do that. Not tried again.
        EndpointError: It failed for another reason, or for too long; the message gives the last one.
    """
    patience = Patience(what, seconds)
    while True:
        asked = None
        try:
            return call()
        except Exception as error:
            failure = _told(error)
            if isinstance(failure, HfHubHTTPError) and not isinstance(failure, LocalEntryNotFoundError):
                status = getattr(failure.response, "status_code", 0)
                if status in leave:
                    raise
                _refuse(status, what, failure)
                headers: Any = failure.response.headers  # of one HTTP library or another
                asked = retry_after(headers)
            elif isinstance(failure, LocalTokenNotFoundError):
                raise ForbiddenError(f"{what} needs a token: `hf auth login`, or token=.") from error
            elif not _is_passing(failure):
                raise
        if not patience.wait(_reason(failure), asked):
            raise EndpointError(
                f"{what} failed until there was no time left, the last time with: {_reason(failure)}. What is uploaded "
                "stays; run the same command again to go on from there."
            ) from failure


def _refuse(status: int, what: str, failure: Exception) -> None:
    """Raises what a status means that another try would not change."""
    reason = _reason(failure)
    if status in (402, 413, 507) or (status == 403 and _FULL.search(reason)):
        raise EndpointError(
            f"{what} failed ({status}): there is no room: {reason}. Make room, or write to another repository; what is "
            "uploaded stays."
        ) from failure
    if status in (401, 403):
        raise ForbiddenError(
            f"{what} was refused ({status}): {reason}. Log in with a token that may write there "
            "(`hf auth login`, or token=); where it may only propose changes, use create_pr=True."
        ) from failure
    if status not in _PASSING:
        raise EndpointError(f"{what} failed ({status}): {reason}") from failure


def _told(error: Exception) -> Exception:
    """The error itself; what is behind it where the client wraps what went wrong with the bytes of a file."""
    inside = error.__cause__
    return inside if type(error) is RuntimeError and isinstance(inside, Exception) else error


def _is_passing(error: Exception) -> bool:
    """Whether an error without a status is a failure to connect, a broken answer, or a download that failed."""
    if isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError, json.JSONDecodeError)):
        return True
    # The client's HTTP library differs with its version.
    return type(error).__module__.startswith(("httpx", "httpcore", "requests"))


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "the answer is not JSON; perhaps a page of something between"
    return textwrap.shorten(str(error), 300, placeholder=" …") or type(error).__name__
