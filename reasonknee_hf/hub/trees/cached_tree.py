"""A dataset repository that is read from this disk where it can be, and keeps there what had to be fetched."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar

from reasonknee_hf.errors import (
    EndpointError,
    ForbiddenError,
    IntegrityError,
    OfflineError,
    PointerError,
    RemoteMissingError,
)
from reasonknee_hf.hub.disk import Cache
from reasonknee_hf.hub.tree import FileEntry, check_spans, pieces, refuse_pointer
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.trees.kept_files import PIECE, Growth, KeptFiles, pieces_of
from reasonknee_hf.hub.wire.checks import ContentCheck, ContentError, NoRangesError

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Bytes of one file from a start to a stop, which is `None` for the end.
Fetch = Callable[..., Iterator[bytes]]

# What an endpoint says of the repository, where nothing else says that it was not there.
_DEFINITE = (RemoteMissingError, ForbiddenError)


class CachedTree(HubTree):
    """The files of a dataset repository at one commit, of which nothing is fetched twice.

    Whole files that the Hub's own client has fetched are used; what passes by is kept beside them, or, where a
    reader wants a part of a file only, in a folder of ours. A stream that ends early goes on, the next time, from
    where it ended. Without a network a branch is what it was when it was resolved last.

    Args:
        repo_id, revision, endpoint, token: As for [`HubTree`].
        cache: Where things are kept.

    Raises:
        OfflineError: In offline mode, for what is not here; names the commits that are.
    """

    def __init__(self, *source: Any, cache: Cache, **options: Any) -> None:
        self._cache = cache
        self._partial = False  # whether the listing is only what has been fetched
        super().__init__(*source, **options)

    @cached_property
    def kept(self) -> KeptFiles:
        """What is here of the repository."""
        return KeptFiles(self._cache, self.repo_id)

    # --- revision and listing ---------------------------------------------------------------------

    def _resolve(self, revision: str) -> str:
        try:
            sha = super()._resolve(revision)
        except _DEFINITE:
            raise
        except EndpointError as error:
            known = self.kept.commit_of(revision)
            if known is None:
                raise self._told(error) from None
            if not isinstance(error, OfflineError):
                logger.warning("%s; going on with commit %s, which it was before", error, known)
            return known
        self.kept.remember(revision, sha)
        # What is kept of the same commit may know sizes that a mirror leaves out.
        self._entries = self.kept.listing(sha, lambda: self._entries or {})
        return sha

    def _list(self) -> dict[str, FileEntry]:
        try:
            return self.kept.listing(self.sha, super()._list)
        except _DEFINITE:
            raise
        except EndpointError as error:
            found = self.kept.snapshot(self.sha)
            if found is None:
                raise self._told(error) from None
            self._partial = True
            return found

    def _fill(self, path: str) -> None:
        before = self._entries
        super()._fill(path)
        if self._entries is not None and self._entries is not before:
            self.kept.keep_listing(self.sha, self._entries)

    def entry_as_listed(self, path: str) -> FileEntry:
        if self._partial and path not in self.entries():
            # The commit may well hold it: without its listing nobody can say that the file is missing.
            raise OfflineError(
                f"{path!r} of {self.name} has not been fetched, nor has the listing of the commit{self._commits()}"
            )
        return super().entry_as_listed(path)

    def _told(self, error: EndpointError) -> EndpointError:
        return OfflineError(f"{error}{self._commits()}") if isinstance(error, OfflineError) else error

    def _commits(self) -> str:
        known = ", ".join(self.kept.commits()) or "none"
        return f"; commits of {self.repo_id} in the cache {self.kept.cache.hub}: {known}"

    # --- single files -----------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        entry = self.entry(path)
        content = self._local(entry)
        if content is None:
            with self.kept.alone_with(entry):  # the others find what the first one fetches
                content = self._local(entry)
                if content is None:
                    return super().read(path)
        refuse_pointer(path, content, self.name)
        return content

    def is_kept(self, path: str) -> bool:
        """Whether the whole file is here."""
        return self.kept.find(self.sha, self.entry(path)) is not None

    def _local(self, entry: FileEntry) -> bytes | None:
        place = self.kept.find(self.sha, entry)
        return None if place is None else place.read_bytes()

    def ranges(
        self, path: str, spans: Sequence[tuple[int, int]], *, checked_later: bool = False
    ) -> list[bytes]:
        entry = self.entry(path)
        check_spans(path, entry.size, *spans)
        place = self.kept.find(self.sha, entry, checked_later=checked_later)
        found = []
        for start, stop in spans:
            if place is not None:
                content = b"".join(pieces_of(place, start, stop))
            else:  # of what is checked later, what is made of it is kept instead
                piece = None if checked_later else self.kept.piece(self.sha, path, start)
                content = (piece or b"")[: stop - start]
                if len(content) < stop - start:
                    try:
                        content = super().ranges(path, [(start, stop)], checked_later=checked_later)[0]
                    except OfflineError as error:
                        raise self._told(error) from None
                    if not checked_later:
                        self.kept.keep_piece(self.sha, path, start, content)
            found.append(content)
        return found

    def checked_ranges(self, spans: Sequence[tuple[str, int, int]], check: Callable[[list[bytes]], T]) -> T:
        if all(self.kept.find(self.sha, self.entry(path), checked_later=True) for path, _, _ in spans):
            try:
                return check([self.ranges(path, [(a, b)], checked_later=True)[0] for path, a, b in spans])
            except IntegrityError as error:  # of a file that is too large to be hashed before it is used
                logger.warning("what is kept is damaged, and is fetched: %s", error)
        return super().checked_ranges(spans, check)

    def _without_ranges(self, entry: FileEntry, reason: EndpointError) -> mmap.mmap:
        with self.kept.alone_with(entry):  # the others find what the first one fetches
            return super()._without_ranges(entry, reason)

    def _stream(self, path: str, start: int, stop: int | None, *, rescued: bool = True) -> Iterator[bytes]:
        entry = self.entry(path)
        end = entry.size if stop is None else stop
        if end is None:  # of a file that nobody knows the size of nothing can be kept
            yield from super()._stream(path, start, stop, rescued=rescued)
            return
        check_spans(path, entry.size, (start, end))
        place = self.kept.find(self.sha, entry)
        fetch = partial(super()._stream, path)
        try:
            if place is not None:
                yield from pieces_of(place, start, end)
            elif (start, end) == (0, entry.size):
                yield from self._whole(entry, fetch, rescued)
            else:
                yield from self._part(path, start, end, partial(fetch, rescued=rescued))
        except OfflineError as error:
            raise self._told(error) from None

    def _whole(self, entry: FileEntry, fetch: Fetch, rescued: bool) -> Iterator[bytes]:
        """The whole file, the first bytes of it from the disk if a stream ended there before."""
        with self.kept.grow(self.sha, entry) as growth:
            if growth is None:
                yield from fetch(0, None, rescued=rescued)
                return
            # A stream from the first byte on is checked where it comes from.
            check = ContentCheck(entry if growth.size else FileEntry(entry.path, entry.size))
            try:
                for chunk in chain(growth.pieces(), _rest(growth, fetch, rescued)):
                    check.update(chunk)
                    if check.seen == entry.size:
                        check.finish(f"{self.repo_id}: {entry.path}")
                        growth.finish()
                    yield chunk
            except (ContentError, PointerError):  # other answers say nothing of what is here
                growth.discard()
                raise

    def _part(self, path: str, start: int, end: int, fetch: Fetch) -> Iterator[bytes]:
        """A part of the file, piece by piece, as far as it was read before; the rest is kept in pieces too."""
        position = start
        while position < end and (piece := self.kept.piece(self.sha, path, position)):
            yield from pieces(piece[: end - position], first=position == start)
            position += len(piece)
        held = bytearray()
        try:
            for chunk in fetch(position, end) if position < end else ():
                held += chunk
                if len(held) >= PIECE:
                    self.kept.keep_piece(self.sha, path, position, held)
                    position += len(held)
                    held = bytearray()
                yield chunk
        finally:
            if held:
                self.kept.keep_piece(self.sha, path, position, held)


def _rest(growth: Growth, fetch: Fetch, rescued: bool) -> Iterator[bytes]:
    """What is not there yet, which is then."""
    if growth.size == growth.whole:
        return
    try:
        bounds = (growth.size, growth.whole) if growth.size else (0, None)
        for chunk in fetch(*bounds, rescued=False):
            growth.write(chunk)
            yield chunk
    except NoRangesError:  # then what is there comes once more
        skipped = growth.size
        for chunk in fetch(0, None, rescued=rescued):
            if new := chunk[skipped:]:
                growth.write(new)
                yield new
            skipped = max(0, skipped - len(chunk))
