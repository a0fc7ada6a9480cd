"""One dataset repository as a single endpoint shows it: its API, and files with answers proved right."""

from __future__ import annotations

import json
import logging
import posixpath
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from reasonknee_hf.errors import AnswerError, EndpointError, OptionError, RemoteMissingError, UnreachableError
from reasonknee_hf.hub.disk import ForkSafeLock
from reasonknee_hf.hub.tree import CHUNK, FileEntry
from reasonknee_hf.hub.wire import checks
from reasonknee_hf.hub.wire.client import Answer, Route, follow, identity_of
from reasonknee_hf.hub.wire.endpoints import Endpoint, origin_of
from reasonknee_hf.hub.wire.tokens import Credentials

logger = logging.getLogger(__name__)

_MAX_JSON = 256 * 1024 * 1024
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}

# The file on which an endpoint shows that it cuts ranges honestly, or the start of a large one.
_SAMPLE_BYTES, _SAMPLE_LIMIT, _SAMPLE_HEAD = 256, 1024 * 1024, 4096

Span = tuple[int, int]

_NEXT_PAGE = re.compile(r"<([^>]*)>\s*;[^,]*\brel=\"?next\b")
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
        self._routes: dict[str, Route] = {}
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
        place = urllib.parse.quote(revision, safe="")
        try:
            info = self._api(endpoint, f"revision/{place}?blobs=true", what)
            sha, entries = from_info(info, what, endpoint.url)
        except checks.UnexplainedError as error:
            # Registries that stand before the Hub may know the other way to list, and no query for this one.
            sha, entries = self._info_by_tree(endpoint, revision, what, error)
        if not checks.FULL_SHA.fullmatch(sha):
            raise AnswerError(f"{endpoint.url}: resolves {what} to {sha!r}, which is not a commit sha")
        if checks.FULL_SHA.fullmatch(revision) and sha != revision:
            raise checks.StaleError(f"{endpoint.url}: shows commit {sha[:12]} when asked for {what}")
        self._shown |= {(endpoint.url, sha)}
        return sha, entries

    def _info_by_tree(
        self, endpoint: Endpoint, revision: str, what: str, first: RemoteMissingError
    ) -> tuple[str, dict[str, FileEntry]]:
        """Commit and files by the pages of the tree API. Raises `first` if there is no such API either."""
        place = urllib.parse.quote(revision, safe="")
        try:
            sha = str(self._api(endpoint, f"revision/{place}", what)["sha"])
        except (RemoteMissingError, TypeError, KeyError):
            if not checks.FULL_SHA.fullmatch(revision):
                raise first from None
            sha = revision
        entries: dict[str, FileEntry] = {}
        query: str | None = "recursive=true"
        try:
            while query is not None:
                items, query = self._page(endpoint, f"tree/{sha}?{query}", what)
                entries |= from_paths_info(items, what, endpoint.url)
        except RemoteMissingError:
            raise first from None
        return sha, dict(sorted(entries.items()))

    def paths_info(self, endpoint: Endpoint, sha: str, paths: list[str], what: str) -> dict[str, FileEntry]:
        """Sizes and hashes of some files."""
        form = [*(("paths", path) for path in paths), ("expand", "false")]
        items = self._api(endpoint, f"paths-info/{sha}", what, urllib.parse.urlencode(form).encode())
        return from_paths_info(items, what, endpoint.url)

    def _api(self, endpoint: Endpoint, action: str, what: str, form: bytes | None = None) -> Any:
        return self._page(endpoint, action, what, form)[0]

    def _page(
        self, endpoint: Endpoint, action: str, what: str, form: bytes | None = None
    ) -> tuple[Any, str | None]:
        """What the API answers, and the query of the next page if there is one."""
        url = f"{endpoint.url}/api/datasets/{self.repo_id}/{action}"
        method, headers = ("GET", {}) if form is None else ("POST", _FORM)
        answer, _ = follow(method, url, what=what, credentials=self.credentials, headers=headers, body=form)
        with answer:
            if answer.status != 200:
                raise self._status_error(answer, endpoint, what)
            content = parse_json(answer.everything(_MAX_JSON), what, endpoint.url)
        # Mirrors pass on the link as the Hub wrote it: its query is used, and its host is not asked.
        following = _NEXT_PAGE.search(answer.headers.get("Link") or "")
        return content, urllib.parse.urlsplit(following[1]).query if following else None

    def _status_error(
        self, answer: Answer, endpoint: Endpoint, what: str, *, listed: bool = False, foreign: bool = False
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
        return checks.status_error(
            answer.status, answer.headers, what, endpoint.url, anonymous=reason, listed=listed
        )

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

        Of a range, the body begins with the first byte that was asked for; `Answer.stop` says where it ends.
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
        self, endpoint: Endpoint, sha: str, entry: FileEntry, span: Span | None, known: Route | None
    ) -> tuple[Answer, checks.Identity]:
        what = self.what(sha, entry.path)
        where = f"{endpoint.url} for {what}"
        url = self.url(endpoint, sha, entry.path)
        headers: Mapping[str, str] = {}
        if span is not None:
            headers = {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        answer, route = follow(
            "GET", url, what=what, credentials=self.credentials, headers=headers, known=known
        )
        try:
            if answer.status >= 300:
                raise self._status_error(answer, endpoint, what, listed=True, foreign=route.foreign)
            head = (answer.status, answer.headers, answer.length)
            if span is None:
                checks.check_whole_head(*head, entry.size, where)
                total = answer.length
            else:
                start, answer.stop, total = checks.check_range_head(*head, span, entry.size, where)
                if len(answer.read(span[0] - start)) < span[0] - start:
                    raise UnreachableError(f"{where}: broke off before the first byte that was asked for")
            identity = identity_of(answer, route, total)
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

    # --- ranges -----------------------------------------------------------------------------------

    def range(self, endpoint: Endpoint, sha: str, entry: FileEntry, span: Span) -> bytes:
        """The bytes of a range; the whole file, asked for as one, is verified.

        Answers that hold a part of it and say so are completed by further requests.
        """
        where = f"{endpoint.url} for {self.what(sha, entry.path)}"
        data: list[bytes] = []
        position, stop = span
        while position < stop:
            if len(data) > pieces_allowed(position - span[0]):
                raise AnswerError(f"{where}: sends a range of {stop - span[0]} bytes in too small pieces")
            answer, _ = self.open(endpoint, sha, entry, (position, stop))
            with answer:
                end = min(stop, answer.stop)
                data.append(answer.read(end - position))
                if len(data[-1]) < end - position:
                    raise UnreachableError(
                        f"{where}: broke off after {len(data[-1])} of {end - position} bytes"
                    )
                if answer.length is None and answer.stop <= stop and not answer.ended():
                    raise AnswerError(
                        f"{where}: sends more than the {end - position} bytes that it announced"
                    )
            position = end
        content = b"".join(data)
        if span == (0, entry.size):
            checks.check_content(entry, content, where)
        return content

    def prove_ranges(
        self, endpoint: Endpoint, sha: str, entry: FileEntry, entries: Mapping[str, FileEntry]
    ) -> None:
        """Compares one range with the same bytes of a plain answer, on a file of the kind of `entry`.

        No header shows that a server sends other bytes than it says. The smallest file of the kind is taken, and
        verified as a whole; where all are large, the first bytes of `entry`.

        Raises:
            NoRangesError: The bytes differ.
            EndpointError: The endpoint does not give them, or the file is damaged.
        """
        kind = kind_of(entry.path)
        alike = [e for e in entries.values() if kind_of(e.path) == kind and (e.sha256 or e.blob_id)]
        fitting = [e for e in alike if _SAMPLE_BYTES <= (e.size or 0) <= _SAMPLE_LIMIT]
        sample = min(fitting, key=lambda e: e.size or 0, default=entry)
        with self.open(endpoint, sha, sample, None)[0] as answer:
            content = answer.everything(_SAMPLE_LIMIT) if fitting else answer.read(_SAMPLE_HEAD)
        if fitting:
            checks.check_content(sample, content, f"{endpoint.url} for {self.what(sha, sample.path)}")
        middle = len(content) // 2
        span = (middle, middle + len(content) // 4)
        if self.range(endpoint, sha, sample, span) != content[slice(*span)]:
            raise checks.NoRangesError(
                f"{endpoint.url}: sends other bytes than a range says, seen on {sample.path}"
            )


def kind_of(path: str) -> str:
    """What files of one kind share: what follows the first dot of their names."""
    return posixpath.basename(path).partition(".")[2]


def pieces_allowed(size: int) -> int:
    """In how many answers so many bytes may come before an endpoint counts as unfit for ranges."""
    return 64 + size // CHUNK


def parse_json(content: bytes, what: str, where: str) -> Any:
    """Raises [`AnswerError`] for what is not JSON, such as the page of a login portal."""
    try:
        return json.loads(content)
    except ValueError:
        start = content[:60].decode("utf-8", "replace").strip()
        kind = checks.A_PAGE if start.startswith("<") else f"sent something else than JSON: {start!r}"
        raise AnswerError(f"{where}: {kind} (asked for {what})") from None


def from_info(info: Any, what: str, where: str) -> tuple[str, dict[str, FileEntry]]:
    """Commit and files of the info of a revision, asked for with `blobs=true`. Some mirrors send no sizes."""
    try:
        sha = str(info["sha"])
        found = [_entry(item["rfilename"], item, item.get("blobId")) for item in info["siblings"]]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise AnswerError(f"{where}: the info of {what} lacks what it must have ({error!r})") from None
    return sha, {entry.path: entry for entry in sorted(found, key=lambda entry: entry.path)}


def from_paths_info(items: Any, what: str, where: str) -> dict[str, FileEntry]:
    """Files of the answer to a `paths-info` or a `tree` request."""
    try:
        found = [_entry(item["path"], item, item.get("oid")) for item in items if item.get("type") == "file"]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise AnswerError(f"{where}: the sizes of {what} lack what they must have ({error!r})") from None
    return {entry.path: entry for entry in sorted(found, key=lambda entry: entry.path)}


def _entry(path: Any, item: Mapping[str, Any], blob_id: Any) -> FileEntry:
    if not isinstance(path, str):
        raise ValueError(f"a path is {path!r}")
    size = item.get("size")
    lfs = item.get("lfs") or {}
    sha256 = lfs.get("sha256") or lfs.get("oid")
    size = lfs.get("size") if size is None else size
    return FileEntry(
        path,
        int(size) if size is not None else None,
        str(blob_id).lower() if blob_id else None,
        str(sha256).lower().removeprefix("sha256:") if sha256 else None,
    )
