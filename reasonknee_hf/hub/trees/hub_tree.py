"""A dataset repository at one commit, read from whichever endpoint gives it right."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from reasonknee_hf import environment
from reasonknee_hf.errors import (
    EndpointError,
    ForbiddenError,
    IntegrityError,
    RemoteMissingError,
    UnreachableError,
)
from reasonknee_hf.hub.locks import ForkSafeLock
from reasonknee_hf.hub.tree import (
    POINTER_LIMIT,
    FileEntry,
    check_span,
    find_entry,
    refuse_pointer,
)
from reasonknee_hf.hub.wire import checks, listing
from reasonknee_hf.hub.wire.client import Answer
from reasonknee_hf.hub.wire.endpoints import Endpoint, EndpointLike, resolve_endpoints
from reasonknee_hf.hub.wire.mirrors import Mirrors, health_of
from reasonknee_hf.hub.wire.repository import Repository, check_repo_id
from reasonknee_hf.hub.wire.tokens import Credentials

logger = logging.getLogger(__name__)

_PATHS_AT_ONCE = 500
# The file on which an endpoint shows that it cuts ranges honestly.
_SAMPLE_BYTES, _SAMPLE_LIMIT = 256, 1024 * 1024
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
        endpoints = resolve_endpoints(endpoint)
        self.repo_id = repo_id
        self.mirrors = Mirrors(endpoints)
        self._explicit = endpoint is not None and bool(endpoint)
        self._repository = Repository(repo_id, Credentials(endpoints, token))
        self._lock = ForkSafeLock()
        self._entries: dict[str, FileEntry] | None = None
        self._filled: frozenset[str] = frozenset()
        revision = revision or "main"
        self.sha = revision if checks.FULL_SHA.fullmatch(revision) else self._resolve(revision)

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

    def url(self, path: str) -> str:
        """A `reasonknee://` URL that opens in any other process; explicit endpoints are part of it."""
        self.entry_as_listed(path)
        place = ""
        if self._explicit:
            endpoints = ",".join(endpoint.url for endpoint in self.mirrors.endpoints)
            place = urllib.parse.quote(endpoints, safe="") + "/"
        return f"reasonknee://{place}{self.repo_id}@{self.sha}/{path}"

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
        if listing.missing(entry) and not environment.offline():
            with self._lock:
                if path not in self._filled:
                    self._fill(path)
            entry = self.entry_as_listed(path)
        return entry

    def _fill(self, path: str) -> None:
        """Asks for what the listing leaves out, for many files at once."""
        entries = self.entries()
        unknown = [name for name, entry in entries.items() if listing.missing(entry)]
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
            IntegrityError: No endpoint tells it; names the URL and the headers that are missing.
        """
        entry = self.entry(path)
        if entry.size is not None:
            return entry.size

        def attempt(endpoint: Endpoint) -> int:
            answer, identity = self._repository.open(endpoint, self.sha, entry, (0, 1))
            answer.close()
            if identity.size is None:
                url = self._repository.url(endpoint, self.sha, path)
                raise IntegrityError(
                    f"{url}: neither X-Linked-Size nor the total in Content-Range says how large the file "
                    f"is, and the API of {endpoint.url} does not either. Ask another endpoint"
                )
            return identity.size

        size = self.mirrors.ask(attempt, f"the size of {self._repository.what(self.sha, path)}", ranged=True)
        filled = FileEntry(path, size, entry.blob_id, entry.sha256)
        self._entries = {**self.entries(), path: filled}
        return size

    def read(self, path: str) -> bytes:
        """The whole file, verified against the hash of the listing; a wrong copy is asked for elsewhere."""
        content = self._read_anywhere(path)
        refuse_pointer(path, content, self.name)
        return content

    def _read_anywhere(self, path: str) -> bytes:
        for _ in self.mirrors.endpoints:
            try:
                return b"".join(self.stream(path))
            except IntegrityError as error:  # noqa: PERF203 - that endpoint is asked last from now on
                logger.warning("reading again: %s", error)
        return b"".join(self.stream(path))

    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        """The bytes of half-open `spans`, in order: one request a span, each verified, or a typed error."""
        entry = self.entry(path)
        for start, stop in spans:
            check_span(path, start, stop, entry.size)
        if environment.offline() or (entry.size is not None and entry.size <= POINTER_LIMIT):
            whole = self.read(path)
            return [whole[start:stop] for start, stop in spans]
        what = self._repository.what(self.sha, path)
        found = []
        for span in spans:
            attempt = partial(self._range, entry, span, checked_later)
            found.append(self.mirrors.ask(attempt, what, ranged=True) if span[0] < span[1] else b"")
        return found

    def _range(
        self, entry: FileEntry, span: tuple[int, int], checked_later: bool, endpoint: Endpoint
    ) -> bytes:
        where = f"{endpoint.url} for {self._repository.what(self.sha, entry.path)}"
        wanted = span[1] - span[0]
        whole = wanted == entry.size
        _, answer = self._open(entry, span, checked_later or whole, endpoint)
        with answer:
            data = answer.read(wanted)
            if len(data) < wanted:
                raise UnreachableError(f"{where}: broke off after {len(data)} of {wanted} bytes")
            if answer.length is None and not answer.ended():
                raise IntegrityError(f"{where}: sends more than the {wanted} bytes that were asked for")
        if whole:
            check = checks.ContentCheck(entry)
            check.update(data)
            check.finish(where)
        return data

    def _open(
        self, entry: FileEntry, span: tuple[int, int] | None, checked_later: bool, endpoint: Endpoint
    ) -> tuple[Endpoint, Answer]:
        if not checked_later and not health_of(endpoint).honest_ranges:
            with self._lock:
                self._require_honest_ranges(endpoint)
        return endpoint, self._repository.open(endpoint, self.sha, entry, span)[0]

    def _require_honest_ranges(self, endpoint: Endpoint) -> None:
        """Compares one range of an endpoint with the same bytes of a verified file, once in a process.

        No header shows that a server sends other bytes than it says. Where no checksum follows, ranges are
        believed only after one that could be checked.
        """
        health = health_of(endpoint)
        if health.honest_ranges:
            return
        hashed = [e for e in self.entries().values() if e.size and (e.sha256 or e.blob_id)]
        fitting = [e for e in hashed if _SAMPLE_BYTES <= (e.size or 0) <= _SAMPLE_LIMIT]
        if not fitting:
            return
        sample = min(fitting, key=lambda entry: entry.size or 0)
        try:
            answer = self._repository.open(endpoint, self.sha, sample, None)[0]
        except (RemoteMissingError, ForbiddenError):
            return  # says nothing about ranges
        with answer:
            whole = answer.everything(_SAMPLE_LIMIT)
        check = checks.ContentCheck(sample)
        check.update(whole)
        check.finish(f"{endpoint.url} for {self._repository.what(self.sha, sample.path)}")
        middle = len(whole) // 2
        span = (middle, middle + _SAMPLE_BYTES // 4)
        if self._range(sample, span, True, endpoint) != whole[slice(*span)]:
            raise checks.NoRangesError(
                f"{endpoint.url}: sends other bytes than a range says, seen on {sample.path}"
            )
        health.honest_ranges = True

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
        entry = self.entry(path)
        end = entry.size if stop is None else stop
        if start or stop is not None:
            end = self.size(path) if stop is None else stop
            check_span(path, start, end, entry.size)
            if start == end:
                return
        whole = start == 0 and end == entry.size
        check = checks.ContentCheck(entry if whole or end is None else FileEntry(path))
        what = self._repository.what(self.sha, path)
        position, resumes = start, 0
        while True:
            span = (position, end) if end is not None and (position or stop is not None) else None
            attempt = partial(self._open, entry, span, span is None or whole)
            endpoint, answer = self.mirrors.ask(attempt, what, ranged=span is not None)
            where = f"{endpoint.url} for {what}"
            end = answer.length if end is None else end
            try:
                with answer:
                    for chunk in answer.chunks():
                        if position == 0:
                            refuse_pointer(path, chunk, self.name)
                        position += len(chunk)
                        check.update(chunk)
                        if end is None or position < end:
                            yield chunk
                        elif position > end:
                            raise IntegrityError(f"{where}: sends more than the {end} bytes of the listing")
                        else:
                            check.finish(where)  # before the last chunk is handed out
                            yield chunk
                if end is None:
                    _refuse_unmeasured(answer, entry, where)
                    check.finish(where)
                elif position < end:
                    raise UnreachableError(f"{where}: ended at {position} of {end} bytes")
                return
            except IntegrityError as error:
                self.mirrors.demote(endpoint, error)
                raise
            except UnreachableError as error:
                self.mirrors.demote(endpoint, error)
                resumes += 1
                if end is None or resumes > _RESUMES + (position - start) // _BYTES_PER_RESUME:
                    raise
                logger.info("resuming %s at byte %d: %s", what, position, error)


def _refuse_unmeasured(answer: Answer, entry: FileEntry, where: str) -> None:
    """A body that ends when the connection does must be measured by something else."""
    known = entry.size is not None or entry.blob_id is not None or entry.sha256 is not None
    if not answer.delimited and not known:
        raise IntegrityError(f"{where}: neither a header nor the listing says how long the file is")
