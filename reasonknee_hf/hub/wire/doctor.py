"""Asks every endpoint what a run would ask of it, in seconds instead of at step 10,000."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reasonknee_hf import environment
from reasonknee_hf.errors import EndpointError, UnreachableError
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.wire.endpoints import Endpoint, EndpointLike, resolve_endpoints
from reasonknee_hf.hub.wire.repository import Repository, check_repo_id, kind_of
from reasonknee_hf.hub.wire.tokens import Credentials

# Mirrors that leave out sizes are asked for those of so many files.
_SIZED_FILES = 500


@dataclass
class Finding:
    """What was found at one endpoint.

    Args:
        url: The endpoint.
        token: `"yes"` if requests to it carry a token, else `"no: "` and why not.
        reachable: Whether it answered.
        seconds: Time of its first answer.
        sha: Commit that it resolves the revision to.
        lag: `"none"` if that is the commit of the first endpoint that resolved the revision; `"other commit"`
            if not, but it serves that commit too; `"lacks the commit"` if it does not.
        ranges: Whether one byte from the middle of the largest file came as one byte, and ranges of small files of each
            kind held the same bytes as those files, which have the hash of the listing.
        file: The largest file, as `path (bytes)`.
        problem: The first thing that went wrong.
    """

    url: str
    token: str
    reachable: bool = False
    seconds: float | None = None
    sha: str | None = None
    lag: str | None = None
    ranges: bool = False
    file: str | None = None
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether a run could read from this endpoint."""
        return self.ranges and self.problem is None


def doctor(
    repo_id: str,
    revision: str | None = None,
    endpoint: EndpointLike | Sequence[EndpointLike] | None = None,
    token: str | bool | None = None,
) -> list[Finding]:
    """Tries each endpoint by itself, without retries: commit, listing, one byte of the largest file, ranges, token.

    Args:
        repo_id: Dataset, as `owner/name`.
        revision: Branch, tag or full commit sha. Default `main`.
        endpoint: See [`resolve_endpoints`].
        token: See [`Credentials`].

    Returns:
        `list` of [`Finding`]: One for each endpoint, in order of preference. Failures are findings.

    Raises:
        OptionError: `repo_id` or an endpoint is not one.
    """
    check_repo_id(repo_id)
    endpoints = resolve_endpoints(endpoint, repo_id)
    repository = Repository(repo_id, Credentials(endpoints, token))
    findings: list[Finding] = []
    for one in endpoints:
        reference = next((found.sha for found in findings if found.sha), None)
        found = Finding(one.url, _token_state(repository.credentials, one))
        findings.append(found)
        if environment.offline():
            found.problem = "offline mode is on (HF_HUB_OFFLINE): nothing was asked"
            continue
        try:
            _examine(repository, one, revision or "main", reference, found)
        except EndpointError as error:
            found.reachable = found.reachable or not isinstance(error, UnreachableError)
            found.problem = str(error)
    return findings


def _examine(
    repository: Repository, endpoint: Endpoint, revision: str, reference: str | None, found: Finding
) -> None:
    """Fills in `found`; what it holds when an error ends this is what was found until then."""
    started = time.monotonic()
    sha, entries = repository.info(endpoint, revision, f"revision {revision!r} of {repository.repo_id}")
    found.reachable, found.seconds, found.sha = True, round(time.monotonic() - started, 3), sha
    found.lag = "none"
    if reference is not None and reference != sha:
        found.lag = "lacks the commit"
        sha, entries = repository.info(endpoint, reference, f"commit {reference} of {repository.repo_id}")
        found.lag = "other commit"
    listed = _sized(repository, endpoint, sha, entries)
    entry = max((e for e in listed.values() if e.size), key=lambda e: e.size or 0, default=None)
    if entry is None:
        found.problem = f"{repository.repo_id} at {sha[:12]} lists no file of known size"
        return
    size = entry.size or 0
    found.file = f"{entry.path} ({size:,} bytes)"
    answer, _ = repository.open(endpoint, sha, entry, (size // 2, size // 2 + 1))
    with answer:
        if len(answer.read(1)) != 1:
            raise UnreachableError(f"{endpoint.url} sent no byte of {found.file}")
    largest = {
        kind_of(one.path): one for one in sorted(listed.values(), key=lambda e: e.size or 0) if one.size
    }
    for kind in sorted(largest):
        repository.prove_ranges(endpoint, sha, largest[kind], listed)
    found.ranges = True


def _sized(
    repository: Repository, endpoint: Endpoint, sha: str, entries: Mapping[str, FileEntry]
) -> Mapping[str, FileEntry]:
    """The listing with sizes and hashes, of the first files at least, where it leaves them out."""
    unknown = [path for path, entry in entries.items() if entry.incomplete][:_SIZED_FILES]
    if not unknown:
        return entries
    what = f"sizes of {len(unknown)} files of {repository.repo_id}"
    return {**entries, **repository.paths_info(endpoint, sha, unknown, what)}


def _token_state(credentials: Credentials, endpoint: Endpoint) -> str:
    reason = credentials.reason_against(endpoint.url)
    if reason is None and credentials.for_url(endpoint.url) is None:
        reason = "there is none"
    return "yes" if reason is None else f"no: {reason}"
