"""One dataset repository as a single endpoint shows it: its API, and files with answers proved right."""

from __future__ import annotations

import logging
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from reasonknee_hf.errors import EndpointError, IntegrityError, OptionError, UnreachableError
from reasonknee_hf.hub.locks import ForkSafeLock
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.wire import checks, listing
from reasonknee_hf.hub.wire import redirects as fetch
from reasonknee_hf.hub.wire.client import Answer
from reasonknee_hf.hub.wire.endpoints import Endpoint, origin_of
from reasonknee_hf.hub.wire.tokens import Credentials

logger = logging.getLogger(__name__)

_MAX_JSON = 256 * 1024 * 1024
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}

Span = tuple[int, int]

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}", re.ASCII)


def is_repo_id(text: str) -> bool:
    """Whether `text` looks like `owner/name`."""
    return _REPO_ID.fullmatch(text) is not None and ".." not in text


def check_repo_id(text: str) -> None:
    """Raises [`OptionError`] unless `text` looks like `owner/name`."""
    if not is_repo_id(text):
        raise OptionError(f"{text!r} is not a dataset id; write it as 'owner/name'")


class Repository:
    """Asks one endpoint at a time; whom to ask, and what to do when it fails, is decided above.

    Args:
        repo_id: `owner/name`.
        credentials: Who gets a token.
    """

    def __init__(self, repo_id: str, credentials: Credentials) -> None:
        self.repo_id = repo_id
        self.credentials = credentials
        self._shown: frozenset[tuple[str, str]] = frozenset()  # (endpoint, commit) that its API has shown
        # By URL at the endpoint: where a redirect led to, and what the first answer said of the file.
        self._routes: dict[str, fetch.Route] = {}
        self._seen: dict[str, checks.Identity] = {}
        self._known: set[str] = set()
        self._gates: dict[str, ForkSafeLock] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Signed URLs are secrets, and what was seen of the endpoints belongs to this process.
        return {**self.__dict__, "_routes": {}, "_seen": {}, "_known": set(), "_gates": {}}

    # --- the API ----------------------------------------------------------------------------------

    def info(self, endpoint: Endpoint, revision: str, what: str) -> tuple[str, dict[str, FileEntry]]:
        """Commit and files of a revision: one request, no pages to turn.

        Raises:
            StaleError: A commit was asked for, another one is shown.
            EndpointError: The endpoint does not show the revision.
        """
        info = self._api(endpoint, f"revision/{urllib.parse.quote(revision, safe='')}?blobs=true", what)
        sha, entries = listing.from_info(info, what, endpoint.url)
        if not checks.FULL_SHA.fullmatch(sha):
            raise IntegrityError(f"{endpoint.url}: resolves {what} to {sha!r}, which is not a commit sha")
        if checks.FULL_SHA.fullmatch(revision) and sha != revision:
            raise checks.StaleError(f"{endpoint.url}: shows commit {sha[:12]} when asked for {what}")
        self._shown |= {(endpoint.url, sha)}
        return sha, entries

    def paths_info(self, endpoint: Endpoint, sha: str, paths: list[str], what: str) -> dict[str, FileEntry]:
        """Sizes and hashes of some files."""
        form = [*(("paths", path) for path in paths), ("expand", "false")]
        items = self._api(endpoint, f"paths-info/{sha}", what, urllib.parse.urlencode(form).encode())
        return listing.from_paths_info(items, what, endpoint.url)

    def _api(self, endpoint: Endpoint, action: str, what: str, form: bytes | None = None) -> Any:
        url = f"{endpoint.url}/api/datasets/{self.repo_id}/{action}"
        method, headers = ("GET", {}) if form is None else ("POST", _FORM)
        answer, _ = fetch.follow(
            method, url, what=what, credentials=self.credentials, headers=headers, body=form
        )
        with answer:
            if answer.status != 200:
                raise self._status_error(answer, endpoint, what)
            return listing.parse_json(answer.everything(_MAX_JSON), what, endpoint.url)

    def _status_error(
        self, answer: Answer, endpoint: Endpoint, what: str, foreign: bool = False
    ) -> EndpointError:
        if foreign and answer.status in (400, 401, 403, 404, 410):
            # A storage host refuses a signed URL, not a person: another one may do.
            host = origin_of(answer.url)
            return UnreachableError(
                f"{what}: {endpoint.url} sends us on to {host}, which answers {answer.status}"
            )
        reason = self.credentials.reason_against(endpoint.url)
        if reason is None and self.credentials.for_url(endpoint.url) is None:
            reason = "there is none"
        return checks.status_error(answer.status, answer.headers, what, endpoint.url, anonymous=reason)

    # --- files ------------------------------------------------------------------------------------

    def what(self, sha: str, path: str) -> str:
        """A file for messages."""
        return f"{path!r} of {self.repo_id} at {sha[:12]}"

    def url(self, endpoint: Endpoint, sha: str, path: str) -> str:
        """Where an endpoint offers a file."""
        return f"{endpoint.url}/datasets/{self.repo_id}/resolve/{sha}/{urllib.parse.quote(path)}"

    def open(
        self, endpoint: Endpoint, sha: str, entry: FileEntry, span: Span | None
    ) -> tuple[Answer, checks.Identity]:
        """An answer whose head is right and which is proved to belong to the commit; its body is unread.

        Args:
            endpoint: Who is asked.
            sha: Full commit sha.
            entry: File by the listing.
            span: Half-open range, `None` for the whole file.

        Raises:
            EndpointError: The endpoint does not give what was asked. The connection is closed.
        """
        url = self.url(endpoint, sha, entry.path)
        if span is not None and not self._is_known(url):
            with self._gates.setdefault(url, ForkSafeLock()):  # the others wait for what the first one learns
                if not self._is_known(url):
                    self._routes.pop(url, None)
                    try:
                        return self._open(endpoint, sha, entry, span, None)
                    finally:
                        self._known.add(url)
        route = self._routes.get(url)
        if route is not None and route.usable():
            try:
                return self._open(endpoint, sha, entry, span, route)
            except EndpointError as error:  # a signed URL that ended early, or a storage host that is ill
                logger.info("asking %s again where %s lies: %s", endpoint.url, entry.path, error)
                self._routes.pop(url, None)
        return self._open(endpoint, sha, entry, span, None)

    def _is_known(self, url: str) -> bool:
        """Whether it is known if and where `url` redirects to."""
        route = self._routes.get(url)
        return url in self._known and (route is None or route.usable())

    def _open(
        self, endpoint: Endpoint, sha: str, entry: FileEntry, span: Span | None, known: fetch.Route | None
    ) -> tuple[Answer, checks.Identity]:
        what = self.what(sha, entry.path)
        where = f"{endpoint.url} for {what}"
        url = self.url(endpoint, sha, entry.path)
        headers: Mapping[str, str] = {}
        if span is not None:
            headers = {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        answer, route = fetch.follow(
            "GET", url, what=what, credentials=self.credentials, headers=headers, known=known
        )
        try:
            if answer.status >= 300:
                raise self._status_error(answer, endpoint, what, route.foreign)
            head = (answer.status, answer.headers, answer.length)
            if span is None:
                checks.check_whole_head(*head, entry.size, where)
                total = answer.length
            else:
                total = checks.check_range_head(*head, span, entry.size, where)
            identity = fetch.identity_of(answer, route, total)
            if not checks.check_identity(identity, entry, sha, where):
                self._require_shown(endpoint, sha, entry.path)
            checks.check_unchanged(self._seen.setdefault(url, identity), identity, where)
        except BaseException:
            answer.close()
            raise
        if route.url != url:
            self._routes[url] = route
        return answer, identity

    def _require_shown(self, endpoint: Endpoint, sha: str, path: str) -> None:
        """Where an answer does not name its commit, the API of the same endpoint must show that it has it."""
        if (endpoint.url, sha) in self._shown:
            return
        what = f"the commit {sha} of {self.repo_id}"
        _, entries = self.info(endpoint, sha, what)
        if path not in entries:
            raise checks.StaleError(f"{endpoint.url}: cannot prove that its {path!r} belongs to {what}")
