"""What an answer must look like before its body is used. Pure functions over heads and bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reasonknee_hf.errors import (
    AnswerError,
    EndpointError,
    ForbiddenError,
    RemoteMissingError,
    ThrottledError,
    UnreachableError,
)
from reasonknee_hf.hub.tree import FileEntry
from reasonknee_hf.hub.wire.retries import PASSING, Headers, retry_after

FULL_SHA = re.compile(r"[0-9a-f]{40}")
_CONTENT_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)")
# An answer that begins this much before what was asked for, or more, is no range.
_LEAD = 1024 * 1024


class NoRangesError(AnswerError):
    """The endpoint answered a range request with the whole file."""


class ContentError(AnswerError):
    """A whole file does not have the size or the hash of the listing."""


class StaleError(AnswerError):
    """The endpoint serves another commit, or cannot prove which one it serves."""


class UnexplainedError(RemoteMissingError):
    """Not there, and not in the words of a Hub: it may be the door that is not there."""


class AbsentError(UnreachableError):
    """The endpoint does not have a file that is listed: it lags behind, or has lost it."""


class RetryLaterError(ThrottledError):
    """The endpoint limits the rate of requests.

    Attributes:
        wait: Seconds it asks for, `None` if it does not say.
    """

    def __init__(self, message: str, wait: float | None) -> None:
        super().__init__(message)
        self.wait = wait

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryLaterError, (str(self), self.wait)


def status_error(
    status: int, headers: Headers, what: str, where: str, *, anonymous: str | None, listed: bool = False
) -> EndpointError:
    """The typed error for an answer that is neither a success nor a redirect.

    Args:
        status: Its status code.
        headers: Its headers.
        what: The file or revision that was asked for.
        where: The endpoint, masked.
        anonymous: Why the request carried no token, `None` if it carried one.
        listed: Whether a file was asked for that is known to be there.
    """
    code = headers.get("X-Error-Code") or ""
    told = f"{where} answered {status} {code}".rstrip() + f" for {what}"
    wait = retry_after(headers)
    if status == 429:
        asked = "does not say for how long" if wait is None else f"asks for {wait:.0f} s of patience"
        return RetryLaterError(f"{where} limits the rate of requests for {what} and {asked}", wait)
    if status in PASSING:
        return RetryLaterError(told, wait) if wait else UnreachableError(f"{told}; try again later")
    absent = status in (404, 410) or code == "RepoNotFound"
    if status in (401, 403) and (listed or not absent):
        hint = "the token is not accepted or has no access; ask for access on the dataset's page"
        if anonymous:
            hint = f"no token was sent ({anonymous}); log in with `hf auth login` or pass token="
        return ForbiddenError(f"{told}: {hint}")
    if absent and listed:
        return AbsentError(
            f"{told}, which is listed: it lags behind or has lost it. Try later, or another endpoint"
        )
    if absent:
        named = {
            "RepoNotFound": "the repository is not there, or it is private and "
            + (f"no token was sent ({anonymous})" if anonymous else "the token has no access"),
            "RevisionNotFound": "there is no such revision; name a branch, a tag or a full commit sha",
            "EntryNotFound": "the revision holds no such file",
        }
        if code in named:
            return RemoteMissingError(f"{told}: {named[code]}")
        return UnexplainedError(
            f"{told}: not there; check the name of the repository, the revision and the file"
        )
    return AnswerError(f"{told}, which means nothing here")


# --- range answers --------------------------------------------------------------------------------


def check_range_head(
    status: int, headers: Headers, length: int | None, span: tuple[int, int], size: int | None, where: str
) -> tuple[int, int, int | None]:
    """Checks the head of the answer to a range request.

    Args:
        status: Status code.
        headers: Headers.
        length: Announced length of the body.
        span: Half-open range that was asked for.
        size: Size of the file by the listing, if known.
        where: The file and the endpoint, for messages.

    Returns:
        `(start, stop, total)`: The range that is about to come, and the size of the file that the answer names. It
        holds the first byte that was asked for; it may begin before, end earlier or go on behind, if it says so.

    Raises:
        NoRangesError: The whole file is about to come.
        AnswerError: What is about to come is of no use, or contradicts itself.
    """
    start, stop = span
    asked = f"bytes {start}-{stop - 1}"
    if status == 200 and is_page(headers):
        raise AnswerError(f"{where}: {A_PAGE}")
    if status == 200 and length is not None and size is not None and length != size:
        raise AnswerError(f"{where}: sends {length} bytes of something else, the file has {size}")
    if status == 200:
        raise NoRangesError(f"{where}: does not honour ranges (200 instead of 206 for {asked})")
    if status != 206:
        raise AnswerError(f"{where}: answered {status} instead of 206 for {asked}")
    _check_encoding(headers, where)
    if "multipart" in (headers.get("Content-Type") or "").lower():
        raise AnswerError(f"{where}: sent several parts where one range was asked for")
    text = headers.get("Content-Range")
    total = None
    if text is not None:
        found = _CONTENT_RANGE.fullmatch(text.strip())
        first, last = (int(found[1]), int(found[2])) if found else (0, -1)
        if found is None or not first <= start <= last:
            raise AnswerError(f"{where}: sends {text!r} where {asked} were asked for")
        total = None if found[3] == "*" else int(found[3])
        if total is not None and size is not None and total != size:
            raise AnswerError(f"{where}: says the file has {total} bytes, the listing says {size}")
        if start - first > _LEAD:
            raise NoRangesError(f"{where}: sends {text!r} where {asked} were asked for")
        start, stop = first, last + 1
    # Without the header, which some proxies drop, the position is vouched for by the status alone: a server that
    # knows no ranges would have answered 200. The number of bytes still has to fit.
    if length is not None and length != stop - start:
        raise AnswerError(f"{where}: announces {length} bytes for a range of {stop - start}")
    return start, stop, total


def check_whole_head(status: int, headers: Headers, length: int | None, size: int | None, where: str) -> None:
    """Checks the head of the answer to a plain GET. Raises [`AnswerError`]."""
    if status != 200:
        raise AnswerError(f"{where}: answered {status} instead of 200")
    if is_page(headers) and length != size:
        raise AnswerError(f"{where}: {A_PAGE}")
    _check_encoding(headers, where)
    if length is not None and size is not None and length != size:
        raise AnswerError(f"{where}: announces {length} bytes, the listing says {size}")


A_PAGE = (
    "sent a web page (HTML) in place of what was asked for. A login portal or a proxy may stand between: open the "
    "address in a browser, or name another endpoint"
)


def is_page(headers: Headers) -> bool:
    """Whether a web page is about to come."""
    return "text/html" in (headers.get("Content-Type") or "").lower()


def refuse_unmeasured(delimited: bool, entry: FileEntry, where: str) -> None:
    """Raises [`AnswerError`] for a body that ends when the connection does, and that nothing else measures."""
    known = entry.size is not None or entry.blob_id is not None or entry.sha256 is not None
    if not delimited and not known:
        raise AnswerError(f"{where}: neither a header nor the listing says how long the file is")


def _check_encoding(headers: Headers, where: str) -> None:
    encoding = (headers.get("Content-Encoding") or "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise AnswerError(f"{where}: sends the file in {encoding!r} encoding although identity was asked for")


# --- identity -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What the heads of an answer say about which file this is."""

    commit: str | None
    etag: str | None
    size: int | None
    storage: tuple[str, str | None] | None = None  # host behind a redirect, and the ETag that it gives

    @classmethod
    def of(
        cls,
        heads: Mapping[str, str | None],
        total: int | None,
        storage: tuple[str, str | None] | None = None,
    ) -> Identity:
        """Of the first answer's headers `X-Repo-Commit`, `X-Linked-Etag`, `ETag`, `X-Linked-Size`."""
        etag = heads.get("X-Linked-Etag") or heads.get("ETag")
        linked = heads.get("X-Linked-Size") or ""
        size = int(linked) if linked.isascii() and linked.isdigit() else total
        return cls(heads.get("X-Repo-Commit") or None, bare_etag(etag), size, storage)


def bare_etag(text: str | None) -> str | None:
    """An ETag without quotes and weakness mark."""
    return (text or "").strip().removeprefix("W/").strip('"') or None


def check_identity(identity: Identity, entry: FileEntry, sha: str, where: str) -> bool:
    """Whether the answer proves that it belongs to `sha`; `False` if it neither proves nor denies it.

    A commit header that names `sha` is a proof, and so is an ETag that is the file's hash by the listing.
    ETags that do not look like a hash say nothing: some mirrors make them up.

    Raises:
        StaleError: The answer says that it belongs to something else.
        AnswerError: The size is not the listing's.
    """
    if entry.size is not None and identity.size is not None and identity.size != entry.size:
        raise AnswerError(f"{where}: has {identity.size} bytes, the listing says {entry.size}")
    etag = identity.etag or ""
    expected = None
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        expected = entry.sha256
    elif FULL_SHA.fullmatch(etag) and entry.sha256 is None:
        expected = entry.blob_id
    if expected is not None and etag != expected:
        raise StaleError(
            f"{where}: has the ETag {etag[:12]}…, by the listing the file's hash is {expected[:12]}…"
        )
    if expected is not None:
        return True
    if identity.commit is not None and identity.commit != sha:
        raise StaleError(f"{where}: serves commit {identity.commit[:12]}… instead of {sha[:12]}…")
    return identity.commit is not None


def _is_hash(etag: str | None) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag or "") is not None


def check_unchanged(before: Identity, now: Identity, where: str) -> None:
    """Raises [`StaleError`] if two answers for one file do not belong together."""
    pairs = [(before.commit, now.commit), (before.size, now.size)]
    # Nodes of one mirror may make up ETags, of times for instance; where the commit is the same they tell nothing.
    if before.commit is None or before.commit != now.commit or (_is_hash(before.etag) and _is_hash(now.etag)):
        pairs.append((before.etag, now.etag))
    if before.storage and now.storage and before.storage[0] == now.storage[0]:
        pairs.append((before.storage[1], now.storage[1]))
    for old, new in pairs:
        if old is not None and new is not None and old != new:
            raise StaleError(f"{where}: changed between two requests (was {old}, now {new})")


# --- content --------------------------------------------------------------------------------------


class ContentCheck:
    """Checks a whole file against the hash of the listing while it passes by."""

    def __init__(self, entry: FileEntry) -> None:
        self._entry = entry
        self._hash: Any = None
        self._waiting: list[bytes] | None = None
        self.seen = 0
        if entry.sha256 is not None:
            self._hash = hashlib.sha256()
        elif entry.blob_id is not None and entry.size is not None:
            self._hash = hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
        elif entry.blob_id is not None:
            self._waiting = []  # git hashes the length first, which is known at the end only

    def update(self, chunk: bytes) -> None:
        self.seen += len(chunk)
        if self._hash is not None:
            self._hash.update(chunk)
        elif self._waiting is not None:
            self._waiting.append(chunk)

    def finish(self, where: str) -> None:
        """Raises [`ContentError`] if what passed by is not the listed file."""
        entry = self._entry
        if entry.size is not None and self.seen != entry.size:
            raise ContentError(f"{where}: {self.seen} bytes came, the listing says {entry.size}")
        if self._waiting is not None:
            content = b"".join(self._waiting)
            self._hash = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        expected = entry.sha256 or entry.blob_id
        if self._hash is not None and self._hash.hexdigest() != expected:
            raise ContentError(
                f"{where}: the content does not have the hash of the listing ({str(expected)[:12]}…). "
                f"A mirror that keeps a damaged copy must be left out by endpoint="
            )


def check_content(entry: FileEntry, content: bytes, where: str) -> None:
    """Raises [`ContentError`] if `content` is not the listed file."""
    check = ContentCheck(entry)
    check.update(content)
    check.finish(where)
