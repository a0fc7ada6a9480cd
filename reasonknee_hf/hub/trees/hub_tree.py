"""A dataset repository at one commit, read from whichever endpoint gives it right."""

from __future__ import annotations

import io
import logging
import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, TypeVar

from reasonknee_hf import environment
from reasonknee_hf.errors import (
    AnswerError,
    EndpointError,
    IntegrityError,
    OfflineError,
    RemoteMissingError,
    UnreachableError,
)
from reasonknee_hf.hub.disk import ForkSafeLock
from reasonknee_hf.hub.tree import (
    CHUNK,
    POINTER_LIMIT,
    Address,
    FileEntry,
    build_url,
    check_spans,
    find_entry,
    refuse_pointer,
)
from reasonknee_hf.hub.wire import checks
from reasonknee_hf.hub.wire.client import Answer
from reasonknee_hf.hub.wire.endpoints import Endpoint, EndpointLike, resolve_endpoints
from reasonknee_hf.hub.wire.mirrors import Mirrors, health_of
from reasonknee_hf.hub.wire.repository import Repository, check_repo_id, kind_of, pieces_allowed
from reasonknee_hf.hub.wire.tokens import Credentials

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATHS_AT_ONCE = 500
# A stream may be resumed this often, and once more for every so many bytes that came.
_RESUMES = 4
_BYTES_PER_RESUME = 1024 * 1024


class HubTree:
    """The files of a dataset repository at one commit, see [`Tree`].

    The revision is resolved to a commit once, when the tree is made; from then on everything is asked for by
    the commit. Every answer is checked before its body is used, and asked for elsewhere if it is not right.

    Args:
        repo_id: `owner/name`.
        revision: Branch, tag or full commit sha. Default `main`.
        endpoint: Where to ask, see [`resolve_endpoints`].
        token: As in `huggingface_hub`; see [`Credentials`] for who gets it.

    Raises:
        OptionError: `repo_id` or an endpoint is not one.
        RemoteMissingError: There is no such repository or revision.
        EndpointError: No endpoint could resolve the revision.
    """

    def __init__(
        self,
        repo_id: str,
        revision: str | None = None,
        endpoint: EndpointLike | Sequence[EndpointLike] | None = None,
        token: str | bool | None = None,
    ) -> None:
        check_repo_id(repo_id)
        endpoints = resolve_endpoints(endpoint, repo_id)
        credentials = Credentials(endpoints, token)
        credentials.require_stored()
        self.repo_id = repo_id
        self.mirrors = Mirrors(endpoints)
        self._repository = Repository(repo_id, credentials)
        self._lock = ForkSafeLock()
        self._entries: dict[str, FileEntry] | None = None
        self._filled: frozenset[str] = frozenset()
        self._wholes: dict[str, mmap.mmap] = {}
        revision = revision or "main"
        self.sha = revision if checks.FULL_SHA.fullmatch(revision) else self._resolve(revision)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wholes": {}}

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.repo_id} at {self.sha[:12]} from {self.mirrors.endpoints[0].url}"

    @property
    def identity(self) -> str:
        """Cache key: the same wherever the files come from."""
        return f"{self.repo_id}@{self.sha}"

    def __repr__(self) -> str:
        return f"HubTree({self.repo_id!r}, {self.sha!r}, {[e.url for e in self.mirrors.endpoints]})"

    @property
    def address(self) -> Address:
        """Of its root: endpoints that others would not ask by themselves are part of it, tokens never."""
        usual = self.mirrors.endpoints == resolve_endpoints(None, self.repo_id)
        endpoints = () if usual else tuple(one.url for one in self.mirrors.endpoints)
        return Address(self.repo_id, "", self.sha, endpoints, self._repository.credentials.name)

    def url(self, path: str) -> str:
        """A `reasonknee://` URL that opens in any other process."""
        self.entry_as_listed(path)
        return build_url(replace(self.address, path=path))

    # --- revision and listing ---------------------------------------------------------------------

    def _resolve(self, revision: str) -> str:
        what = f"revision {revision!r} of dataset {self.repo_id}"
        sha, self._entries = self.mirrors.ask(
            lambda endpoint: self._repository.info(endpoint, revision, what), what
        )
        return sha

    def entries(self) -> Mapping[str, FileEntry]:
        """The whole listing by posix path, in sorted order, fetched once."""
        if self._entries is None:
            with self._lock:
                if self._entries is None:
                    self._entries = self._list()
        return self._entries

    def _list(self) -> dict[str, FileEntry]:
        what = f"the listing of {self.repo_id} at {self.sha}"
        return self.mirrors.ask(lambda endpoint: self._repository.info(endpoint, self.sha, what), what)[1]

    # --- single files -----------------------------------------------------------------------------

    def entry_as_listed(self, path: str) -> FileEntry:
        """One file as the listing has it, without a request for what it leaves out."""
        return find_entry(self.entries(), path, self.name)

    def entry(self, path: str) -> FileEntry:
        """One file, with size and hash where the endpoints tell them."""
        entry = self.entry_as_listed(path)
        if entry.incomplete and not environment.offline():
            with self._lock:
                if path not in self._filled:
                    self._fill(path)
            entry = self.entry_as_listed(path)
        return entry

    def _fill(self, path: str) -> None:
        """Asks for what the listing leaves out, for many files at once."""
        entries = self.entries()
        unknown = [name for name, entry in entries.items() if entry.incomplete]
        first = unknown.index(path) // _PATHS_AT_ONCE * _PATHS_AT_ONCE
        chosen = unknown[first : first + _PATHS_AT_ONCE]
        what = f"sizes of {len(chosen)} files of {self.repo_id} at {self.sha}"
        try:
            told = self.mirrors.ask(lambda e: self._repository.paths_info(e, self.sha, chosen, what), what)
        except RemoteMissingError as error:  # an endpoint that does not have this part of the API
            logger.info("going on without %s: %s", what, error)
            told = {}
        except EndpointError as error:  # the next one who needs them asks again
            logger.warning("going on without %s: %s", what, error)
            return
        self._entries = {name: told.get(name, entry) for name, entry in entries.items()}
        self._filled |= set(chosen)

    def size(self, path: str) -> int:
        """The size in bytes: by the listing, else by what the answer to a one-byte range names.

        Raises:
            AnswerError: No endpoint tells it; names the URL and the headers that are missing.
        """
        entry = self.entry(path)
        if entry.size is not None:
            return entry.size

        def attempt(endpoint: Endpoint) -> int:
            answer, identity = self._repository.open(endpoint, self.sha, entry, (0, 1))
            answer.close()
            if identity.size is None:
                url = self._repository.url(endpoint, self.sha, path)
                raise AnswerError(
                    f"{url}: neither X-Linked-Size nor the total in Content-Range says how large the file "
                    f"is, and the API of {endpoint.url} does not either. Ask another endpoint"
                )
            return identity.size

        size = self.mirrors.ask(attempt, f"the size of {self._repository.what(self.sha, path)}", ranged=True)
        self._entries = {**self.entries(), path: replace(entry, size=size)}
        return size

    def read(self, path: str) -> bytes:
        """The whole file, verified against the hash of the listing; a wrong copy is asked for elsewhere."""
        whole = io.BytesIO()
        self._fetch(path, whole)
        refuse_pointer(path, content := whole.getvalue(), self.name)
        return content

    def _fetch(self, path: str, target: IO[bytes]) -> None:
        """Writes the whole file, verified; a wrong copy is asked for elsewhere."""
        for tries_left in reversed(range(len(self.mirrors.endpoints) + 1)):
            target.seek(0)
            target.truncate()
            try:
                target.writelines(self._stream(path, 0, None, rescued=False))
            except IntegrityError as error:
                if not tries_left:
                    raise
                logger.warning("reading again: %s", error)  # that endpoint is asked last from now on
            else:
                return

    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        """The bytes of half-open `spans`, in order: one request a span, each verified, or a typed error.

        Where no endpoint cuts ranges, the whole file is fetched once.
        """
        entry = self.entry(path)
        check_spans(path, entry.size, *spans)
        if environment.offline() or (entry.size is not None and entry.size <= POINTER_LIMIT):
            whole = self.read(path)
            return [whole[start:stop] for start, stop in spans]
        content = self._wholes.get(path)
        if content is None:
            try:
                return [
                    self._range(entry, span, checked_later) if span[0] < span[1] else b"" for span in spans
                ]
            except checks.NoRangesError as error:
                content = self._without_ranges(entry, error)
        return [content[start:stop] for start, stop in spans]

    def checked_ranges(self, spans: Sequence[tuple[str, int, int]], check: Callable[[list[bytes]], T]) -> T:
        """What `check` makes of the bytes of `spans`; an endpoint whose bytes it refuses is demoted.

        Raises:
            IntegrityError: As `check` raised it, where it refuses what every endpoint gives: then it is the release
                that is damaged.
        """
        entries = {path: self.entry(path) for path, _, _ in spans}
        refused: dict[Endpoint, IntegrityError] = {}

        def attempt(endpoint: Endpoint) -> T:
            found = [
                self._repository.range(endpoint, self.sha, entries[path], (start, stop))
                for path, start, stop in spans
            ]
            try:
                return check(found)
            except AnswerError:
                raise
            except IntegrityError as error:
                for entry in entries.values():  # or it is the endpoint that lies
                    self._prove(entry, False, endpoint)
                refused[endpoint] = error
                raise AnswerError(f"{endpoint.url}: {error}") from error

        what = ", ".join(self._repository.what(self.sha, path) for path in entries)
        try:
            return self.mirrors.ask(attempt, what, ranged=True)
        except OfflineError:
            return check([self.ranges(path, [(start, stop)])[0] for path, start, stop in spans])
        except EndpointError as error:
            others = [one for one in self.mirrors.endpoints if one not in refused]
            if not others:
                raise refused[self.mirrors.endpoints[0]] from None
            if not any(health_of(one).no_ranges for one in others):
                raise
            return check([self._without_ranges(entries[path], error)[a:b] for path, a, b in spans])

    def _range(self, entry: FileEntry, span: tuple[int, int], checked_later: bool) -> bytes:
        def attempt(endpoint: Endpoint) -> bytes:
            self._prove(entry, checked_later or span == (0, entry.size), endpoint)
            return self._repository.range(endpoint, self.sha, entry, span)

        return self.mirrors.ask(attempt, self._repository.what(self.sha, entry.path), ranged=True)

    def _without_ranges(self, entry: FileEntry, reason: EndpointError) -> mmap.mmap:
        """The whole file, verified and for once in this process, in a file that is gone with the process."""
        with self._lock:
            if entry.path not in self._wholes:
                size, folder = entry.size or 0, tempfile.gettempdir()
                if shutil.disk_usage(folder).free < size:
                    raise checks.NoRangesError(
                        f"{reason}. The whole file of {size:,} bytes does not fit into {folder}: name another "
                        f"endpoint, or set TMPDIR"
                    ) from reason
                logger.warning("%s. Fetching the whole file of %s bytes, once", reason, f"{size:,}")
                with tempfile.TemporaryFile() as file:
                    self._fetch(entry.path, file)
                    file.flush()
                    self._wholes[entry.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return self._wholes[entry.path]

    def _prove(self, entry: FileEntry, checked_later: bool, endpoint: Endpoint) -> None:
        """Where no checksum follows, ranges are believed only after one that could be checked: once in a process for
        each endpoint and kind of file.
        """
        health, kind = health_of(endpoint), kind_of(entry.path)
        if checked_later or kind in health.honest_ranges:
            return
        with self._lock:
            if kind not in health.honest_ranges:
                self._repository.prove_ranges(endpoint, self.sha, entry, self.entries())
                health.honest_ranges |= {kind}

    def stream(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The file in chunks, by one plain GET; a range is asked for only if `start` or `stop` is given.

        After a cut the rest is asked for from where it was, by a checked range, at any endpoint. A whole file
        is verified at its end: the last chunk is handed out only if the hash of the listing fits.

        Args:
            path: File of the listing.
            start: First byte.
            stop: Byte after the last one, `None` for the end of the file.

        Raises:
            EndpointError: What came is wrong, or no endpoint has the rest.
        """
        return self._stream(path, start, stop)

    def _stream(self, path: str, start: int, stop: int | None, *, rescued: bool = True) -> Iterator[bytes]:
        entry = self.entry(path)
        end = entry.size if stop is None else stop
        if start or stop is not None:
            end = self.size(path) if stop is None else stop
            check_spans(path, entry.size, (start, end))
            if start == end:
                return
        whole = start == 0 and end == entry.size
        check = checks.ContentCheck(entry if whole or end is None else FileEntry(path))
        what = self._repository.what(self.sha, path)
        position, resumes, pieces_seen = start, 0, 0

        def attempt(endpoint: Endpoint) -> tuple[Endpoint, Answer]:
            if span is not None:
                self._prove(entry, whole, endpoint)
            return endpoint, self._repository.open(endpoint, self.sha, entry, span)[0]

        while True:
            span = (position, end) if end is not None and (position or stop is not None) else None
            try:
                endpoint, answer = self.mirrors.ask(attempt, what, ranged=span is not None)
            except checks.NoRangesError as error:
                if not rescued:
                    raise
                content = self._without_ranges(entry, error)
                end = len(content) if end is None else end
                for at in range(position, end, CHUNK):
                    chunk = content[at : min(at + CHUNK, end)]
                    check.update(chunk)
                    if at + CHUNK >= end:
                        check.finish(what)
                    yield chunk
                return
            where = f"{endpoint.url} for {what}"
            end = answer.length if end is None else end
            try:
                with answer:
                    for chunk in answer.chunks():
                        if position == 0:
                            refuse_pointer(path, chunk, self.name)
                        if span is not None and end is not None and answer.stop > end:
                            chunk = chunk[: end - position]  # more of the file than was asked for
                        position += len(chunk)
                        check.update(chunk)
                        if end is None or position < end:
                            yield chunk
                        elif position > end:
                            raise AnswerError(f"{where}: sends more than the {end} bytes of the listing")
                        else:
                            check.finish(where)  # before the last chunk is handed out
                            yield chunk
                            if span is not None:
                                return
                if end is None:
                    checks.refuse_unmeasured(answer.delimited, entry, where)
                    check.finish(where)
                elif position < end:
                    pieces_seen += 1
                    if answer.stop == position and pieces_seen <= pieces_allowed(position - start):
                        continue  # a part of the range, and it said so
                    raise UnreachableError(f"{where}: ended at {position} of {end} bytes")
                return
            except IntegrityError as error:
                if isinstance(error, AnswerError):
                    self.mirrors.demote(endpoint, error)
                raise
            except UnreachableError as error:
                self.mirrors.demote(endpoint, error)
                resumes += 1
                if end is None or resumes > _RESUMES + (position - start) // _BYTES_PER_RESUME:
                    raise
                logger.info("resuming %s at byte %d: %s", what, position, error)
