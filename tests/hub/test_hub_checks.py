"""Heads, identities, waits and signed URLs: pure functions, many inputs."""

from __future__ import annotations

import email.utils
import hashlib
import time
from email.message import Message

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reasonknee_hf.errors import (
    AnswerError,
    ForbiddenError,
    IntegrityError,
    RemoteMissingError,
    ThrottledError,
    UnreachableError,
)
from reasonknee_hf.hub.tree import FileEntry, find_entry
from reasonknee_hf.hub.trees.kept_files import dump, load
from reasonknee_hf.hub.wire import checks
from reasonknee_hf.hub.wire.client import _expiry
from reasonknee_hf.hub.wire.repository import from_info, from_paths_info, parse_json
from reasonknee_hf.hub.wire.retries import retry_after

SHA, OTHER = "a" * 40, "b" * 40
DIGEST = "c" * 64


def headers(**named: str) -> Message:
    message = Message()
    for name, value in named.items():
        message[name.replace("_", "-")] = value
    return message


few = st.integers(-1, 1)


@given(st.integers(1, 900), st.integers(2, 900), few, few, few)
def test_only_ranges_that_hold_the_first_byte_and_fit_their_length_pass(start, length, shift, cut, growth):
    stop = start + length
    told = (start + shift, stop + cut)
    head = headers(Content_Range=f"bytes {told[0]}-{told[1] - 1}/2000")
    announced = told[1] - told[0] + growth
    if shift <= 0 and growth == 0:  # begins early, ends early or late: it says so, and can be trimmed
        assert checks.check_range_head(206, head, announced, (start, stop), 2000, "here") == (*told, 2000)
    else:
        with pytest.raises(AnswerError, match="here"):
            checks.check_range_head(206, head, announced, (start, stop), 2000, "here")
    with pytest.raises(AnswerError, match="here"):
        checks.check_range_head(206, head, announced, (start, stop), 2001, "here")


def test_a_range_that_begins_far_too_early_is_none():
    with pytest.raises(checks.NoRangesError):
        checks.check_range_head(
            206, headers(Content_Range="bytes 0-9999999/*"), None, (9_000_000, 9_000_010), None, "here"
        )


@pytest.mark.parametrize("length", [None, 50])
def test_a_web_page_is_called_one(length):
    page = headers(Content_Type="text/html; charset=utf-8")
    with pytest.raises(AnswerError, match=r"web page \(HTML\)"):
        checks.check_whole_head(200, page, length, 100, "here")
    with pytest.raises(AnswerError, match=r"web page \(HTML\)"):
        checks.check_range_head(200, page, length, (0, 10), 100, "here")
    with pytest.raises(AnswerError, match=r"here.*web page \(HTML\).*the listing"):
        parse_json(b" <!doctype html><title>Sign in", "the listing", "here")


@pytest.mark.parametrize(
    "text",
    ["", "bytes", "bytes 0-9", "bytes */100", "items 0-9/100", "bytes 0-9/100, 5", "bytes 0 - 9/100", "ü"],
)
def test_content_range_that_says_something_else(text):
    with pytest.raises(IntegrityError):
        checks.check_range_head(206, headers(Content_Range=text), 10, (0, 10), 100, "here")


def test_other_heads():
    right = {"Content_Range": "bytes 0-9/100"}
    checks.check_range_head(206, headers(**right), None, (0, 10), None, "here")
    star = headers(Content_Range="bytes 0-9/*")
    assert checks.check_range_head(206, star, 10, (0, 10), 100, "here") == (0, 10, None)
    with pytest.raises(checks.NoRangesError):
        checks.check_range_head(200, headers(), 100, (0, 10), 100, "here")
    parts = {"Content_Type": "multipart/byteranges"}
    for status, more, length in [(200, {}, 99), (204, {}, 0), (206, {"Content_Encoding": "gzip"}, 10),
                                 (206, parts, 10), (206, {}, 9)]:  # fmt: skip
        with pytest.raises(IntegrityError) as caught:
            checks.check_range_head(status, headers(**right, **more), length, (0, 10), 100, "here")
        assert not isinstance(caught.value, checks.NoRangesError)
    for status, more, length in [(206, {}, 100), (200, {"Content_Encoding": "br"}, 100), (200, {}, 99)]:
        with pytest.raises(IntegrityError):
            checks.check_whole_head(status, headers(**more), length, 100, "here")


@pytest.mark.parametrize(
    ("commit", "etag", "outcome"),
    [
        (SHA, None, True),
        (SHA, '"made-up-10"', True),
        (None, DIGEST, True),
        (OTHER, f'W/"{DIGEST}"', True),  # the same file at another commit
        (None, None, False),
        (None, '"made-up-10"', False),
        (OTHER, None, None),
        (OTHER, '"made-up-10"', None),
        (SHA, "d" * 64, None),
        (None, "d" * 64, None),
    ],
)
def test_proofs(commit, etag, outcome):
    entry = FileEntry("x", 10, "e" * 40, DIGEST)
    identity = checks.Identity.of({"X-Repo-Commit": commit, "ETag": etag}, 10)
    if outcome is None:
        with pytest.raises(checks.StaleError):
            checks.check_identity(identity, entry, SHA, "here")
    else:
        assert checks.check_identity(identity, entry, SHA, "here") is outcome


def test_identity_may_not_change():
    etag, another = "a" * 64, "b" * 64
    first = checks.Identity(SHA, etag, 10, ("https://cdn", "1"))
    checks.check_unchanged(first, checks.Identity(None, None, None), "here")
    checks.check_unchanged(first, checks.Identity(SHA, etag, 10, ("https://other", "2")), "here")
    checks.check_unchanged(
        first, checks.Identity(SHA, "5f3a-1234", 10), "here"
    )  # made up by a node of a mirror
    for now in (checks.Identity(OTHER, etag, 10), checks.Identity(SHA, another, 10), checks.Identity(None, "y", 10),
                checks.Identity(SHA, etag, 11), checks.Identity(SHA, etag, 10, ("https://cdn", "2"))):  # fmt: skip
        with pytest.raises(checks.StaleError, match="changed"):
            checks.check_unchanged(first, now, "here")
    with pytest.raises(IntegrityError, match="11 bytes"):
        checks.check_identity(checks.Identity(SHA, None, 11), FileEntry("x", 10), SHA, "here")


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=10), st.booleans(), st.booleans())
def test_content(content, cuts, lfs, sized):
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sha256 = hashlib.sha256(content).hexdigest() if lfs else None
    entry = FileEntry("x", len(content) if sized else None, blob, sha256)
    wrong = bytes([*content[:-1], content[-1] ^ 1]) if content else b"x"
    for data, right in [(content, True), (wrong, False), (content[:-1], content == b"")]:
        check = checks.ContentCheck(entry)
        position = 0
        for cut in [*cuts, len(data)]:
            check.update(data[position : position + cut])
            position += cut
        if right:
            check.finish("here")
        else:
            with pytest.raises(checks.ContentError):
                check.finish("here")


@pytest.mark.parametrize(
    ("named", "seconds"),
    [
        ({}, None),
        ({"Retry_After": "7"}, 7),
        ({"Retry_After": "soon"}, None),
        ({"RateLimit": '"api";r=0;t=56'}, 56),
        ({"RateLimit": "limit=100, remaining=0, reset=12"}, 12),
        ({"RateLimit_Reset": "30"}, 30),
        ({"Retry_After": "3", "RateLimit": '"api";r=0;t=56'}, 3),
    ],
)
def test_waits(named, seconds):
    assert retry_after(headers(**named)) == seconds


def test_waits_by_the_clock():
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert retry_after(headers(Retry_After=date)) == pytest.approx(100, abs=2)
    past = email.utils.formatdate(time.time() - 100, usegmt=True)
    assert retry_after(headers(Retry_After=past)) == 0
    assert retry_after(headers(X_RateLimit_Reset=str(int(time.time()) + 50))) == pytest.approx(50, abs=2)


@given(st.text(max_size=30), st.text(max_size=30))
def test_odd_waits_do_not_break(first, second):
    assume("\n" not in first + second and "\r" not in first + second)
    wait = retry_after({"Retry-After": first, "RateLimit": second})
    assert wait is None or wait >= 0


def test_errors_by_status():
    def made(status, anonymous=None, **named):
        return checks.status_error(status, headers(**named), "file x", "https://hub", anonymous=anonymous)

    assert isinstance(made(401, X_Error_Code="RepoNotFound"), RemoteMissingError)
    assert "there is none" in str(made(401, "there is none", X_Error_Code="RepoNotFound"))
    assert isinstance(made(403, X_Error_Code="GatedRepo"), ForbiddenError)
    assert "ask for access" in str(made(403))
    assert isinstance(made(503, Retry_After="5"), ThrottledError)
    assert made(429, Retry_After="5").wait == 5


@pytest.mark.parametrize("status", [401, 403, 404, 410])
@pytest.mark.parametrize("code", ["RepoNotFound", "RevisionNotFound", "EntryNotFound", "", "GatedRepo"])
def test_a_listed_file_is_never_missing(status, code):
    error = checks.status_error(
        status, headers(X_Error_Code=code), "file x", "https://hub", anonymous=None, listed=True
    )
    assert isinstance(error, UnreachableError if status in (404, 410) else ForbiddenError)
    assert not isinstance(error, FileNotFoundError)


def test_signed_urls():
    assert _expiry("https://cdn/x?Expires=1700000000&Signature=s") == 1_700_000_000
    amz = "https://s3/x?X-Amz-Date=20250101T000000Z&X-Amz-Expires=3600&X-Amz-Signature=s"
    assert _expiry(amz) == 1_735_693_200
    assert _expiry("https://blob/x?se=2025-01-01T01%3A00%3A00Z&sig=s") == 1_735_693_200
    for odd in ("https://cdn/x", "https://cdn/x?Expires=soon", "https://s3/x?X-Amz-Date=1&X-Amz-Expires=2"):
        assert _expiry(odd) is None


def test_listing_round_trip():
    info = {
        "sha": SHA,
        "siblings": [
            {"rfilename": "b", "size": 3, "blobId": OTHER},
            {"rfilename": "a", "size": 9, "blobId": OTHER, "lfs": {"sha256": DIGEST, "size": 9}},
            {"rfilename": "c"},
        ],
    }
    sha, entries = from_info(info, "x", "here")
    assert sha == SHA
    assert list(entries) == ["a", "b", "c"]
    assert entries["a"] == FileEntry("a", 9, OTHER, DIGEST)
    assert entries["c"] == FileEntry("c")
    assert load(dump(entries)) == entries


LISTINGS = [None, 5, [], {}, {"sha": SHA}, {"sha": SHA, "siblings": [5]},
            {"sha": SHA, "siblings": [{"size": 1}]},
            {"sha": SHA, "siblings": [{"rfilename": "x", "size": "many"}]}]  # fmt: skip


@pytest.mark.parametrize("odd", LISTINGS)
def test_odd_listings(odd):
    with pytest.raises(IntegrityError, match="here"):
        from_info(odd, "x", "here")


@pytest.mark.parametrize("odd", [None, 5, [5], [{"type": "file"}], [{"type": "file", "path": 5}]])
def test_odd_sizes(odd):
    with pytest.raises(IntegrityError, match="here"):
        from_paths_info(odd, "x", "here")


def test_missing_name_in_a_large_tree_is_told_quickly():
    entries = {f"data/images/{n:06}.nii.gz": FileEntry("x") for n in range(50_000)}
    entries["data/masks/knee.nii.gz"] = FileEntry("x")
    with pytest.raises(FileNotFoundError, match=r"closest: data/masks/knee\.nii\.gz"):
        find_entry(entries, "masks/knee.nii.gz", "here")
