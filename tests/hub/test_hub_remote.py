"""A repository over real sockets: pinning, failover, redirects, tokens, throttling, proxies, processes."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub import faults as f
from reasonknee_hf.errors import (
    AnswerError,
    EndpointError,
    FileMissingError,
    ForbiddenError,
    IntegrityError,
    OfflineError,
    OptionError,
    RemoteMissingError,
    ThrottledError,
    UnreachableError,
)
from reasonknee_hf.hub.disk import Cache
from reasonknee_hf.hub.trees.cached_tree import CachedTree
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.trees.open_tree import open_tree
from reasonknee_hf.hub.wire import mirrors, retries

REPO = "owner/name"
BIG = random.Random(1).randbytes(2_000_000)
TEXT = b"x,y\n1,2\n" * 100
FILES = {"README.md": b"hello", "data/table.csv": TEXT, "data/masks_aa": BIG, "data/a b+%ü#?.csv": TEXT}
PART = "data/masks_aa"
SECRET = "hf_s3cretvalue"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "5")
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(mirrors, "_health", {})


@pytest.fixture
def sha(origin):
    return origin.put_tree(REPO, FILES)


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TestPinning:
    def test_one_request_resolves_and_lists(self, origin, sha):
        tree = HubTree(REPO, "main", origin.url)
        assert tree.sha == sha
        assert tree.identity == f"{REPO}@{sha}"
        assert sha[:12] in tree.name
        assert origin.url in tree.name
        assert list(tree.entries()) == sorted(FILES)
        assert tree.entry(PART).size == len(BIG)
        assert len(origin.log) == 1

    def test_full_sha_costs_nothing_and_everything_is_asked_by_sha(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        assert origin.log == []
        origin.put_tree(REPO, {PART: b"new"})
        for path, content in FILES.items():
            assert tree.read(path) == content
        assert all(sha in request.path for request in origin.log)

    def test_long_listing_needs_no_pages(self, origin):
        origin.page_size = 10
        files = {f"data/images/{n:04}.bin": b"%d" % n for n in range(1200)}
        origin.put_tree(REPO, files)
        origin.bare = True
        tree = HubTree(REPO, "main", origin.url)
        assert len(tree.entries()) == 1200
        assert tree.entry("data/images/1199.bin").size == 4
        assert tree.entry("data/images/0000.bin").size == 1
        assert tree.read("data/images/0007.bin") == b"7"
        assert [r.path.split("/")[5] for r in origin.log if "/api/" in r.path] == [
            "revision", "paths-info", "paths-info",
        ]  # fmt: skip
        assert not origin.requests("/tree/")

    @pytest.mark.parametrize("revision", ["nope", "0" * 40])
    def test_unknown_revision(self, origin, sha, revision):
        with pytest.raises(RemoteMissingError) as caught:
            HubTree(REPO, revision, origin.url).entries()
        for part in (origin.url, revision, "name a branch"):
            assert part in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)

    def test_unknown_repository_and_file(self, origin, sha):
        with pytest.raises(RemoteMissingError, match="repository is not there"):
            HubTree("owner/other", None, origin.url)
        tree = HubTree(REPO, None, origin.url)
        with pytest.raises(FileMissingError, match=r"closest: data/table\.csv"):
            tree.read("data/table.cs")
        with pytest.raises(FileMissingError):
            tree.url("../x")

    def test_branch_with_a_slash(self, origin, sha):
        other = origin.put_tree(REPO, {"x": b"1"}, ref="refs/pr/1")
        assert HubTree(REPO, "refs/pr/1", origin.url).sha == other

    def test_prefix(self):
        from hub.server import Origin

        with Origin(prefix="/hf") as origin:
            sha = origin.put_tree(REPO, FILES)
            tree = HubTree(REPO, None, origin.url + "/")
            assert (tree.sha, tree.read("README.md")) == (sha, b"hello")
            assert not any("//" in request.path for request in origin.log)

    def test_endpoint_is_read_when_the_call_is_made(self, origin, second_origin, sha, monkeypatch):
        other = second_origin.put_tree(REPO, {"x": b"1"})
        monkeypatch.setenv("HF_ENDPOINT", origin.url)
        assert HubTree(REPO).sha == sha
        monkeypatch.setenv("HF_ENDPOINT", second_origin.url)
        assert HubTree(REPO).sha == other

    def test_bad_names(self, origin):
        for bad in ("name", "a/b/c", "../x", "a/..", "a b/c"):
            with pytest.raises(OptionError):
                HubTree(bad, None, origin.url)


class TestReading:
    def test_all_ways(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        assert tree.ranges(PART, [(5, 1000), (7, 7), (1_999_999, 2_000_000)]) == [BIG[5:1000], b"", BIG[-1:]]
        chunks = list(tree.stream(PART))
        assert b"".join(chunks) == BIG
        assert len(chunks[0]) <= 32 * 1024
        assert max(map(len, chunks)) <= 64 * 1024
        assert b"".join(tree.stream(PART, 100)) == BIG[100:]
        assert b"".join(tree.stream(PART, 100, 70_000)) == BIG[100:70_000]
        assert b"".join(tree.stream(PART, 0, len(BIG))) == BIG
        assert b"".join(tree.stream(PART, 5, 5)) == b""

    def test_what_is_on_the_wire(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        tree.entries()
        origin.clear()
        tree.ranges(PART, [(10, 20)], checked_later=True)
        (request,) = origin.log
        assert (request.range, request.sent, request.method) == ("bytes=10-19", 10, "GET")
        assert request.headers["Accept-Encoding"] == "identity"
        origin.clear()
        list(tree.stream(PART))
        assert [(r.range, r.sent) for r in origin.log] == [(None, len(BIG))]

    def test_spans_outside(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        for span in [(-1, 5), (5, 4), (0, len(BIG) + 1)]:
            with pytest.raises(ValueError, match="span"):
                tree.ranges(PART, [span])

    def test_closing_a_stream_stops_it(self, origin):
        content = random.Random(2).randbytes(20_000_000)
        tree = HubTree(REPO, origin.put_tree(REPO, {PART: content}), origin.url)
        stream = tree.stream(PART)
        next(stream)
        stream.close()
        time.sleep(0.2)
        assert origin.sent(PART) < 8_000_000

    def test_connections_are_kept(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        seen = []
        setup = origin._servers[0].RequestHandlerClass.setup
        try:
            origin._servers[0].RequestHandlerClass.setup = lambda self: (seen.append(1), setup(self))[1]
            for n in range(20):
                tree.ranges(PART, [(n, n + 10)], checked_later=True)
        finally:
            origin._servers[0].RequestHandlerClass.setup = setup
        assert len(seen) == 1

    def test_empty_file(self, origin):
        tree = HubTree(REPO, origin.put_tree(REPO, {"empty": b""}), origin.url)
        assert tree.read("empty") == b""
        assert list(tree.stream("empty")) == []
        assert tree.ranges("empty", [(0, 0)]) == [b""]

    def test_git_lfs_pointer_is_named(self, origin):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
        tree = HubTree(REPO, origin.put_tree(REPO, {"x.csv": pointer}), origin.url)
        for way in (tree.read, lambda p: tree.ranges(p, [(0, 5)]), lambda p: list(tree.stream(p))):
            with pytest.raises(IntegrityError, match=r"git-LFS pointer.*12345"):
                way("x.csv")

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_span(self, origin, sha, data):
        tree = HubTree(REPO, sha, origin.url)
        start = data.draw(st.integers(0, len(BIG)))
        stop = data.draw(st.integers(start, min(len(BIG), start + 200_000)))
        assert tree.ranges(PART, [(start, stop)], checked_later=True) == [BIG[start:stop]]
        assert b"".join(tree.stream(PART, start, stop)) == BIG[start:stop]


class TestRedirects:
    def test_signed_url_is_kept(self, origin, sha):
        origin.cdn = True
        tree = HubTree(REPO, sha, origin.url)
        tree.entries()
        origin.log.clear()
        for n in range(5):
            assert tree.ranges(PART, [(n, n + 9)], checked_later=True) == [BIG[n : n + 9]]
        assert [request.side for request in origin.log] == ["hub"] + ["cdn"] * 5

    def test_expired_before_use(self, origin, sha):
        origin.cdn, origin.cdn_ttl = True, 1.0
        tree = HubTree(REPO, sha, origin.url)
        for n in range(2):
            assert tree.ranges(PART, [(n, n + 9)], checked_later=True) == [BIG[n : n + 9]]
        assert len([r for r in origin.requests("resolve") if r.status == 302]) == 2

    def test_signed_url_that_fails_is_asked_for_again(self, origin, sha):
        origin.cdn = True
        tree = HubTree(REPO, sha, origin.url)
        tree.ranges(PART, [(0, 9)], checked_later=True)
        origin.faults(f.status(403), match="Signature", times=1)
        assert tree.ranges(PART, [(1, 9)], checked_later=True) == [BIG[1:9]]

    def test_token_does_not_follow(self, origin, sha):
        origin.cdn, origin.token = True, SECRET
        tree = HubTree(REPO, sha, origin.url, SECRET)
        assert tree.read(PART) == BIG
        assert {(r.side, r.auth) for r in origin.log} == {("hub", f"Bearer {SECRET}"), ("cdn", None)}

    def test_token_is_not_added_again_on_the_way_back(self, origin, second_origin, sha):
        tree = HubTree(REPO, sha, origin.url, SECRET)
        tree.entries()
        origin.log.clear()
        path = f"/datasets/{REPO}/resolve/{sha}/{PART}"
        origin.faults(f.redirect(second_origin.url + path), times=1)
        second_origin.faults(f.redirect(origin.url + path))
        assert tree.read(PART) == BIG
        assert [r.auth for r in (*origin.log, *second_origin.log)] == [f"Bearer {SECRET}", None, None]

    def test_resolved_once_however_many_threads_ask(self, origin, sha):
        origin.cdn, origin.latency = True, 0.05
        tree = HubTree(REPO, sha, origin.url)
        with ThreadPoolExecutor(8) as pool:
            spans = [(n, n + 100) for n in range(24)]
            found = list(pool.map(lambda span: tree.ranges(PART, [span], checked_later=True)[0], spans))
        assert found == [BIG[start:stop] for start, stop in spans]
        assert len(origin.requests("/api/")) == 1
        assert len(origin.requests("/resolve/")) == 1

    @pytest.mark.parametrize(
        "goal", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://[bad", "javascript:1"]
    )
    def test_odd_goals(self, origin, sha, goal):
        tree = HubTree(REPO, sha, origin.url)
        tree.entries()
        origin.faults(f.redirect(goal))
        with pytest.raises(EndpointError):
            tree.read(PART)

    def test_storage_that_refuses_is_not_a_question_of_rights(self, origin, sha):
        origin.cdn = True
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.status(403), match="Signature")
        with pytest.raises(UnreachableError, match=r"sends us on to .*answers 403"):
            tree.read(PART)

    def test_loop_and_nowhere(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        tree.entries()
        origin.faults(f.redirect(f"{origin.url}/datasets/{REPO}/resolve/{sha}/{PART}"))
        with pytest.raises(IntegrityError, match="redirects more than"):
            tree.read(PART)
        origin.faults(f.status(302))
        with pytest.raises(IntegrityError, match="without saying where"):
            tree.read(PART)

    def test_unreachable_storage_names_who_sent_us(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        port = dead_port()
        origin.faults(f.redirect(f"http://127.0.0.1:{port}/cas?sig=hidden"))
        alone = HubTree(REPO, sha, origin.url)
        with pytest.raises(UnreachableError) as caught:
            alone.ranges(PART, [(0, 9)], checked_later=True)
        for part in (str(port), PART, origin.url):
            assert part in str(caught.value)
        assert "hidden" not in str(caught.value)
        both = HubTree(REPO, sha, [origin.url, second_origin.url])
        assert both.ranges(PART, [(0, 9)], checked_later=True) == [BIG[:9]]


class TestFailover:
    def test_sticky_and_counted(self, origin, second_origin, sha):
        assert second_origin.put_tree(REPO, FILES) == sha
        tree = HubTree(REPO, sha, [origin.url, second_origin.url])
        tree.entries()
        origin.faults(f.status(503))
        assert tree.read(PART) == BIG
        origin.clear()
        assert tree.read("README.md") == b"hello"
        assert origin.log == []
        counts = {row["url"]: (row["failures"], row["failovers"]) for row in mirrors.endpoint_counts()}
        assert counts == {origin.url: (1, 1), second_origin.url: (0, 0)}

    def test_dead_first_endpoint(self, second_origin):
        sha = second_origin.put_tree(REPO, FILES)
        tree = HubTree(REPO, None, [f"http://127.0.0.1:{dead_port()}", second_origin.url])
        assert tree.sha == sha
        assert tree.read(PART) == BIG

    def test_mirror_that_lags_or_mixes_is_not_used(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, {**FILES, PART: bytes(len(BIG))})
        lagging = second_origin.store.repos[REPO]
        lagging.commits[sha] = lagging.commits[
            lagging.refs["main"]
        ]  # answers for our sha with another commit
        tree = HubTree(REPO, sha, [second_origin.url, origin.url])
        assert tree.read(PART) == BIG
        assert tree.ranges(PART, [(5, 50)]) == [BIG[5:50]]
        second_origin.log.clear()
        assert tree.read("README.md") == b"hello"
        assert second_origin.log == []  # known to be stale: asked last
        alone = HubTree(REPO, sha, second_origin.url)
        with pytest.raises(IntegrityError, match=sha[:12]):
            alone.read(PART)

    def test_token_is_not_sent_to_the_next_endpoint(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        origin.faults(f.status(503), match=".")
        tree = HubTree(REPO, sha, [origin.url, second_origin.url], SECRET)
        assert tree.read(PART) == BIG
        assert {r.auth for r in origin.log} == {f"Bearer {SECRET}"}
        assert {r.auth for r in second_origin.log} == {None}
        own = [origin.url, {"url": second_origin.url, "token": "hf_own"}]
        assert HubTree(REPO, sha, own, SECRET).read(PART) == BIG
        assert second_origin.log[-1].auth == "Bearer hf_own"

    def test_wrong_copy_is_replaced(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        tree = HubTree(REPO, sha, [origin.url, second_origin.url])
        origin.faults(f.swapped(headers=False))
        assert tree.read(PART) == BIG
        assert tree.ranges("data/table.csv", [(3, 30)]) == [TEXT[3:30]]

    def test_kinds_of_failure(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        kinds = {401: ForbiddenError, 403: ForbiddenError, 404: UnreachableError, 410: UnreachableError}
        for code, kind in {**kinds, 418: IntegrityError, 503: UnreachableError}.items():
            tree = HubTree(REPO, sha, [origin.url, second_origin.url])
            for one in (origin, second_origin):
                one.faults(f.status(code))
            with pytest.raises(kind) as caught:
                tree.read(PART)
            for part in (origin.url, second_origin.url, sha[:12], PART, str(code)):
                assert part in str(caught.value)
            origin.clear(), second_origin.clear()

    def test_mixed_failures(self, origin, sha):
        dead = f"http://127.0.0.1:{dead_port()}"
        with pytest.raises(EndpointError) as caught:  # who is silent may have it
            HubTree(REPO, "nope", [dead, origin.url])
        assert not isinstance(caught.value, FileNotFoundError)
        assert dead in str(caught.value)
        assert "no such revision" in str(caught.value)

    def test_forbidden_says_why_no_token_was_sent(self, origin, sha):
        origin.token = SECRET
        with pytest.raises(RemoteMissingError, match="no token was sent"):
            HubTree(REPO, None, origin.url)
        tree = HubTree(REPO, sha, origin.url, SECRET)
        tree.entries()
        origin.token = "hf_other"
        with pytest.raises(ForbiddenError, match="token is not accepted"):
            tree.read(PART)
        assert HubTree(REPO, None, origin.url, "hf_other").sha == sha


class TestRangesThatAreIgnored:
    @pytest.mark.parametrize("framing", [f.ignore_range, f.both(f.ignore_range, f.without("Content-Length"))])
    def test_closed_at_once_and_marked(self, origin, second_origin, framing):
        files = {"data/masks_aa": random.Random(4).randbytes(50_000_000)}
        sha = origin.put_tree(REPO, files)
        second_origin.put_tree(REPO, files)
        part = files[PART][30_000_000:30_020_000]
        origin.faults(framing)
        both = HubTree(REPO, sha, [origin.url, second_origin.url])
        assert both.ranges(PART, [(30_000_000, 30_020_000)], checked_later=True) == [part]
        assert mirrors.endpoint_counts()[0]["state"] == "no ranges"
        assert len(origin.requests(PART)) == 1  # the mark holds for the process, so it is not asked again
        assert origin.sent(PART) < 1_000_000
        assert second_origin.sent(PART) == 20_000

    def test_whole_files_still_come_from_there(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        origin.faults(f.ignore_range)
        tree = HubTree(REPO, sha, [origin.url, second_origin.url])
        tree.ranges(PART, [(5, 10)])
        assert HubTree(REPO, sha, [origin.url, second_origin.url]).read(PART) == BIG
        assert origin.sent(PART) >= len(BIG)


class TestPatience:
    @pytest.mark.parametrize("code", [408, 500, 502, 503, 504])
    def test_metadata_and_files_are_retried(self, origin, sha, code):
        origin.faults(f.status(code), match="/api/", times=2)
        tree = HubTree(REPO, None, origin.url)
        origin.faults(f.status(code), times=2)
        assert tree.read(PART) == BIG

    @pytest.mark.parametrize(
        "headers", [{"Retry_After": "1"}, {"RateLimit": '"api";r=0;t=1'}, {"RateLimit_Reset": "1"}]
    )
    def test_waits_as_told(self, origin, sha, headers, caplog):
        caplog.set_level(logging.INFO, logger=retries.__name__)
        tree = HubTree(REPO, None, origin.url)
        origin.faults(f.status(429, **headers), times=1)
        assert tree.read("README.md") == b"hello"
        (waited,) = [record for record in caplog.records if record.name == retries.__name__]
        assert 0.9 <= waited.args[1] <= 1.3
        assert "README.md" in waited.getMessage()

    def test_date_of_retry(self, origin, sha):
        import email.utils

        tree = HubTree(REPO, None, origin.url)
        origin.faults(
            f.status(503, Retry_After=email.utils.formatdate(time.time() + 2, usegmt=True)), times=1
        )
        assert tree.read("README.md") == b"hello"

    def test_too_long_a_wait_ends(self, origin, second_origin, sha):
        tree = HubTree(REPO, None, origin.url)
        origin.faults(f.status(429, Retry_After="3600"))
        with pytest.raises(ThrottledError, match="patience"):
            tree.read(PART)
        assert len(origin.requests("resolve")) == 1
        with pytest.raises(ThrottledError):
            HubTree(REPO, sha, origin.url).read(PART)
        assert len(origin.requests("resolve")) == 1  # known to be throttled: not even asked

    def test_throttled_fails_over_at_once(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        tree = HubTree(REPO, None, [origin.url, second_origin.url])
        origin.faults(f.status(429, Retry_After="3600"))
        assert tree.read(PART) == BIG
        assert mirrors.endpoint_counts()[0]["state"] == "throttled"

    def test_throttled_for_ever_is_bounded(self, origin, sha):
        tree = HubTree(REPO, None, origin.url)
        origin.faults(f.status(429, Retry_After="0"))
        with pytest.raises(ThrottledError):
            tree.read(PART)
        assert 2 <= len(origin.requests("resolve")) <= 20

    def test_slow_mirror_within_the_timeout(self, origin, sha, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "4")
        origin.faults(f.stall(1.5), match=".", times=2)
        assert HubTree(REPO, None, origin.url).read("README.md") == b"hello"
        assert len(origin.log) == 2

    def test_silent_address_gives_up_in_time(self, sha, origin, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "2")
        with socket.socket() as full, socket.socket() as one, socket.socket() as two:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for filler in (one, two):
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            with pytest.raises(UnreachableError) as caught:
                HubTree(REPO, "main", url)
            assert url in str(caught.value)
            assert "main" in str(caught.value) or REPO in str(caught.value)
            with pytest.raises(UnreachableError):  # several of them cost no more than one
                HubTree(REPO, "main", [url, url + "/a", url + "/b"])
            assert HubTree(REPO, None, [url, origin.url]).sha == sha

    def test_server_that_accepts_and_says_nothing(self, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "1")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(UnreachableError, match=r"in time.*REASONKNEE_TIMEOUT"):
                HubTree(REPO, "main", url)

    def test_not_a_hub(self, origin, sha):
        origin.faults(f.html, match=".")
        with pytest.raises(IntegrityError, match="HTML"):
            HubTree(REPO, None, origin.url)

    def test_an_outage_is_survived_as_long_as_the_setting_says(self, origin, sha, monkeypatch, caplog):
        tree = HubTree(REPO, None, origin.url)
        origin.faults(f.status(503), match="README", times=12)
        monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.05)
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "60")
        assert tree.read("README.md") == b"hello"
        assert len(origin.requests("README")) == 13
        origin.clear()
        origin.faults(f.status(503), match="README")
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.2")
        with pytest.raises(UnreachableError):
            tree.read("README.md")
        assert 2 <= len(origin.requests("README")) < 13

    def test_by_default_a_run_survives_an_outage_of_a_minute(self, monkeypatch):
        monkeypatch.delenv("REASONKNEE_RETRY_TIME")
        clock = [0.0]
        monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(retries.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
        patience = retries.Patience("x")
        while patience.wait("503"):
            pass
        assert 60 < clock[0] <= 120
        asked = retries.Patience("x", 1.0)
        assert asked.wait("429", 200.0)
        assert not asked.wait("429", 200.0)
        assert not retries.Patience("x").wait("429", 3600.0)

    def test_a_name_that_never_answered_costs_little(self, origin, monkeypatch):
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "600")
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.1")
        with pytest.raises(UnreachableError):
            HubTree(REPO, None, f"http://127.0.0.1:{dead_port()}")


class TestListingTheOtherWay:
    @pytest.mark.parametrize("door", ["revision/.*blobs", "revision/"])
    @pytest.mark.parametrize("pages", [1000, 2])
    def test_by_the_tree_api(self, origin, second_origin, sha, door, pages):
        origin.page_size = pages
        origin.faults(f.status(404), match=door)
        tree = HubTree(REPO, None if "blobs" in door else sha, origin.url)
        assert tree.sha == sha
        listed = {path: entry.size for path, entry in tree.entries().items()}
        assert listed == {path: len(FILES[path]) for path in sorted(FILES)}
        assert tree.entry(PART).sha256
        assert tree.read(PART) == BIG

    def test_pages_of_another_host_are_asked_for_here(self, origin, second_origin, sha):
        origin.page_size = 2
        link = f'<{second_origin.url}/api/datasets/{REPO}/tree/{sha}?recursive=true&cursor=2>; rel="next"'
        tree_api = f.Rule(lambda reply: reply.headers.update(Link=link), match="tree/[^?]*.recursive=true$")
        origin.faults(f.Rule(f.status(404), match="revision/"), tree_api)
        assert len(HubTree(REPO, sha, origin.url, SECRET).entries()) == len(FILES)
        assert second_origin.log == []

    def test_what_is_not_there_is_not_looked_for_elsewhere(self, origin, sha):
        with pytest.raises(RemoteMissingError, match="no such revision"):
            HubTree(REPO, "nope", origin.url)
        assert len(origin.log) == 1
        origin.faults(f.status(404), match=".")
        with pytest.raises(RemoteMissingError, match="check the name"):
            HubTree(REPO, "main", origin.url)


class TestListedFilesAreNeverMissing:
    def test_a_lone_endpoint_that_lost_it(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.status(404, X_Error_Code="EntryNotFound"), match="table")
        for ask in (
            tree.read,
            lambda path: tree.ranges(path, [(0, 9)]),
            lambda path: list(tree.stream(path)),
        ):
            with pytest.raises(UnreachableError, match=r"404.*is listed") as caught:
                ask("data/table.csv")
            assert not isinstance(caught.value, FileNotFoundError)

    def test_one_lags_and_the_other_is_ill(self, origin, second_origin, sha):
        second_origin.put_tree(REPO, FILES)
        tree = HubTree(REPO, sha, [origin.url, second_origin.url])
        tree.entries()
        origin.faults(f.status(404, X_Error_Code="RevisionNotFound"))
        second_origin.faults(f.status(503))
        with pytest.raises(UnreachableError) as caught:
            tree.read(PART)
        assert not isinstance(caught.value, FileNotFoundError)
        second_origin.faults(f.status(503), times=3)
        assert tree.read(PART) == BIG


class TestHonestParts:
    @staticmethod
    def early(by):
        def fault(reply):
            if reply.span:
                start, stop = max(0, reply.span[0] - by), reply.span[1]
                reply.body = reply.whole[start:stop]
                f._place(reply, start, stop)

        return fault

    @staticmethod
    def longer(by):
        def fault(reply):
            if reply.span:
                start, stop = reply.span[0], min(len(reply.whole), reply.span[1] + by)
                reply.body = reply.whole[start:stop]
                f._place(reply, start, stop)

        return fault

    @pytest.mark.parametrize("fault", [f.short_range, early(100), longer(100)])
    @pytest.mark.parametrize("later", [True, False])
    def test_are_put_together(self, origin, sha, fault, later):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(fault)
        spans = [(1_000_000, 1_020_000), (5, 6), (0, len(BIG))]
        assert tree.ranges(PART, spans, checked_later=later) == [BIG[a:b] for a, b in spans]
        assert b"".join(tree.stream(PART, 300_000)) == BIG[300_000:]
        assert b"".join(tree.stream(PART, 300_000, 400_000)) == BIG[300_000:400_000]

    def test_but_not_for_ever(self, origin, sha):
        def one_byte(reply):
            if reply.span:
                reply.body = reply.whole[reply.span[0] : reply.span[0] + 1]
                f._place(reply, reply.span[0], reply.span[0] + 1)

        tree = HubTree(REPO, sha, origin.url)
        origin.faults(one_byte)
        with pytest.raises(AnswerError, match="too small pieces"):
            tree.ranges(PART, [(10, 100_000)], checked_later=True)
        assert len(origin.requests(PART)) < 200


class TestEndpointsWithoutRanges:
    def test_the_whole_file_once(self, origin, sha, caplog):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.ignore_range)
        for _ in range(3):
            assert tree.ranges(PART, [(5, 50), (1_000_000, 1_000_100)]) == [
                BIG[5:50],
                BIG[1_000_000:1_000_100],
            ]
        assert b"".join(tree.stream(PART, 1_500_000)) == BIG[1_500_000:]
        assert [r.range for r in origin.requests(PART) if r.sent == len(BIG)] == [None]
        assert "Fetching the whole file of 2,000,000 bytes" in caplog.text
        assert pickle.loads(pickle.dumps(tree)).ranges(PART, [(5, 50)]) == [BIG[5:50]]

    def test_a_damaged_copy_is_not_taken(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.both(f.ignore_range, f.swapped(headers=False)))
        with pytest.raises(AnswerError, match="hash of the listing"):
            tree.ranges(PART, [(5, 50)], checked_later=True)

    def test_without_room_it_says_so(self, origin, sha, monkeypatch):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.ignore_range)
        usage = type(shutil.disk_usage("/"))(1, 1, 0)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(AnswerError, match="does not fit into"):
            tree.ranges(PART, [(5, 50)], checked_later=True)

    def test_ranges_that_lie_for_one_kind_of_files_alone(self, origin):
        volumes = {f"v{n}.nii.gz": random.Random(n).randbytes(3000 + n) for n in range(3)}
        sha = origin.put_tree(REPO, {**FILES, **volumes})
        tree = HubTree(REPO, sha, origin.url)
        assert tree.ranges("data/table.csv", [(5, 50)]) == [TEXT[5:50]]
        origin.faults(f.shifted(7, lie=True), match="nii.gz")
        assert tree.ranges("v2.nii.gz", [(5, 50)]) == [volumes["v2.nii.gz"][5:50]]
        assert [r.range for r in origin.requests("v2.nii.gz")] == [None]

    def test_ranges_that_lie_for_large_files_alone(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.shifted(7, lie=True), match=PART)
        assert tree.ranges(PART, [(5, 50)]) == [BIG[5:50]]


class TestProxies:
    def test_proxy_and_no_proxy(self, origin, sha, monkeypatch):
        recorder = []
        with socket.create_server(("127.0.0.1", 0)) as proxy:

            def serve():
                while True:
                    try:
                        client, _ = proxy.accept()
                    except OSError:
                        return
                    with client:
                        recorder.append(client.recv(4096).split(b"\r\n")[0])
                        client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

            threading.Thread(target=serve, daemon=True).start()
            for name in ("no_proxy", "NO_PROXY"):
                monkeypatch.setenv(name, "")
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
            with pytest.raises(UnreachableError, match="502"):
                HubTree(REPO, None, origin.url)
            assert recorder[0].startswith(b"GET " + origin.url.encode() + b"/api/")
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
            with pytest.raises(UnreachableError):
                HubTree(REPO, None, "https://hub.invalid")
            assert recorder[-1].startswith(b"CONNECT hub.invalid:443")
            assert origin.log == []
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert HubTree(REPO, None, origin.url).sha == sha


class TestSecrets:
    def test_nowhere(self, origin, sha, caplog, tmp_path, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "1")
        caplog.set_level(logging.DEBUG)
        origin.cdn = True
        tree = CachedTree(REPO, None, origin.url, SECRET, cache=Cache(tmp_path, tmp_path / "ours"))
        assert tree.read(PART) == BIG
        shown = repr(tree) + tree.name + tree.identity + tree.url(PART) + str(mirrors.endpoint_counts())
        origin.faults(f.status(403))
        with pytest.raises(EndpointError) as caught:
            tree.read("README.md")
        origin.faults(f.stall(2), match="cdn|Signature")
        with pytest.raises(EndpointError) as slow:
            HubTree(REPO, tree.sha, origin.url, SECRET).ranges(PART, [(0, 9)], checked_later=True)
        shown += str(caught.value) + str(slow.value) + caplog.text + " ".join(map(str, tmp_path.rglob("*")))
        pickled = pickle.dumps(tree)
        for secret in (SECRET, "secret-sig"):
            assert secret not in shown
            assert secret.encode() not in pickled
        for file in tmp_path.rglob("*"):
            assert file.is_dir() or SECRET.encode() not in file.read_bytes()


def _read_range(tree, start):
    return tree.ranges(PART, [(start, start + 1000)])[0]


class TestProcesses:
    def test_threads(self, origin, sha):
        tree = HubTree(REPO, sha, origin.url)
        with ThreadPoolExecutor(8) as pool:
            starts = range(0, 1_000_000, 25_000)
            for start, got in zip(starts, pool.map(lambda s: _read_range(tree, s), starts), strict=True):
                assert got == BIG[start : start + 1000]

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_fork_and_spawn(self, origin, sha, method):
        tree = HubTree(REPO, sha, origin.url)
        assert _read_range(tree, 0) == BIG[:1000]
        origin.log.clear()
        with multiprocessing.get_context(method).Pool(2) as pool:
            starts = list(range(0, 300_000, 10_000))
            for start, got in zip(
                starts, pool.starmap(_read_range, [(tree, s) for s in starts]), strict=True
            ):
                assert got == BIG[start : start + 1000]
        assert not origin.requests("/api/")  # the listing travels with the tree
        assert _read_range(tree, 5) == BIG[5:1005]


def test_stream_that_is_read_on_in_a_forked_child(origin, sha):
    tree = HubTree(REPO, sha, origin.url)
    stream = tree.stream(PART)
    head = next(stream)
    with multiprocessing.get_context("fork").Pool(1, initializer=_take, initargs=(stream,)) as pool:
        assert pool.apply(_rest) == BIG[len(head) :]
    assert head + b"".join(stream) == BIG


def _take(stream):
    global _stream
    _stream = stream


def _rest():
    return b"".join(_stream)


class TestHeadersThatAreMissing:
    KNOBS = ("X-Repo-Commit", "ETag", "X-Linked-Size", "Content-Length", "Content-Range")

    @pytest.mark.parametrize("bare", [False, True])
    @pytest.mark.parametrize("names", [*((name,) for name in KNOBS), KNOBS])
    def test_survived(self, origin, sha, names, bare):
        origin.bare = bare
        origin.faults(f.without(*names, "X-Linked-Etag"))
        tree = HubTree(REPO, sha, origin.url)
        assert tree.read("data/table.csv") == TEXT
        assert tree.ranges(PART, [(5, 5000)]) == [BIG[5:5000]]
        assert b"".join(tree.stream(PART)) == BIG

    def test_size_that_nobody_tells(self, origin, sha):
        origin.bare = True
        tree = HubTree(REPO, sha, origin.url)
        gone = f.Rule(f.status(404), match="paths-info")
        origin.faults(gone, f.Rule(f.without("X-Linked-Size", "Content-Range")))
        assert tree.read(PART) == BIG  # a file of unknown size still downloads
        with pytest.raises(IntegrityError) as caught:
            tree.size(PART)
        for part in ("X-Linked-Size", "Content-Range", origin.url, PART):
            assert part in str(caught.value)
        origin.faults(gone, f.Rule(f.without("X-Linked-Size")))
        assert tree.size(PART) == len(BIG)

    def test_a_head_that_drips_is_not_waited_for(self, sha, origin, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.2")
        with socket.create_server(("127.0.0.1", 0)) as server:

            def drip():
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = server.accept()
                        with connection, contextlib.suppress(OSError):
                            connection.recv(65536)
                            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                            while True:
                                connection.sendall(b"x")
                                time.sleep(0.02)

            threading.Thread(target=drip, daemon=True).start()
            slow = f"http://127.0.0.1:{server.getsockname()[1]}"
            assert HubTree(REPO, sha, [slow, origin.url]).read("README.md") == b"hello"

    def test_hashes_are_asked_for_again_after_a_failure(self, origin, sha):
        origin.bare = True
        tree = HubTree(REPO, sha, origin.url)
        origin.faults(f.Rule(f.status(500), match="paths-info"))
        assert tree.entry("data/table.csv").blob_id is None
        origin.faults(f.Rule(f.swapped(headers=False)))
        with pytest.raises(IntegrityError):
            tree.read("data/table.csv")

    def test_proof_by_the_api_must_be_of_the_same_endpoint(self, origin, second_origin, sha):
        other = second_origin.put_tree(REPO, {"README.md": b"other"})
        repo = second_origin.store.repos[REPO]
        repo.commits[sha] = repo.commits[other]
        tree = HubTree(REPO, sha, [origin.url, second_origin.url])
        tree.entries()
        second_origin.faults(f.both(f.without("X-Repo-Commit", "ETag")))
        origin.faults(f.status(503))
        with pytest.raises(EndpointError, match="shows commit"):
            tree.read("README.md")


class TestOffline:
    def test_works_from_the_cache_and_names_what_is_there(self, origin, sha, tmp_path, monkeypatch):
        cache = Cache(tmp_path, tmp_path / "ours")
        CachedTree(REPO, "main", origin.url, cache=cache).read(PART)
        origin.log.clear()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        tree = CachedTree(REPO, "main", origin.url, cache=cache)
        assert tree.sha == sha
        assert tree.read(PART) == BIG
        assert tree.ranges(PART, [(3, 9)]) == [BIG[3:9]]
        assert b"".join(tree.stream(PART)) == BIG
        with pytest.raises(OfflineError):
            tree.read("README.md")
        for revision in ("other", "1" * 40):
            with pytest.raises(OfflineError, match=sha):
                CachedTree(REPO, revision, origin.url, cache=cache).entries()
        with pytest.raises(OfflineError, match="offline mode is on"):
            HubTree(REPO, "main", origin.url)
        assert origin.log == []


class TestSource:
    def test_kinds(self, origin, sha, tmp_path):
        (tmp_path / "x").write_bytes(b"1")
        assert open_tree(tmp_path).read("x") == b"1"
        assert open_tree(str(tmp_path)).sha is None
        assert open_tree(tmp_path.as_uri()).read("x") == b"1"
        assert open_tree(REPO, None, origin.url).sha == sha
        assert open_tree(f"hf://datasets/{REPO}@main", None, origin.url).sha == sha
        converted = origin.put_tree(REPO, {"0000.parquet": b"x"}, ref="refs/convert/parquet")
        for ref in ("refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
            assert open_tree(f"hf://datasets/{REPO}@{ref}", None, origin.url).sha == converted
        with pytest.raises(OptionError, match="not the root"):
            open_tree(f"hf://datasets/{REPO}/data", None, origin.url)
        for bad in ("no such", "a/b/c", ""):
            with pytest.raises(OptionError, match="neither"):
                open_tree(bad)
        with pytest.raises(OptionError, match="no revision"):
            open_tree(tmp_path, "main")

    def test_url_names_explicit_endpoints(self, origin, sha, monkeypatch):
        place = origin.url.replace(":", "%3A").replace("/", "%2F")
        tree = HubTree(REPO, sha, origin.url)
        assert tree.url(PART) == f"reasonknee://{place}/{REPO}@{sha}/{PART}"
        monkeypatch.setenv("HF_ENDPOINT", origin.url)
        assert HubTree(REPO, sha).url(PART) == f"reasonknee://{REPO}@{sha}/{PART}"


def test_through_a_real_mirror(olah, olah_origin, monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "10")
    files = {path: content for path, content in FILES.items() if "#" not in path}  # olah cannot ask for those
    sha = olah_origin.put_tree("owner/mirrored", files)
    olah_origin.page_size = 2
    tree = HubTree("owner/mirrored", "main", olah, SECRET)
    assert tree.sha == sha
    assert tree.entry(PART).sha256 is not None
    for path, content in files.items():
        assert tree.read(path) == content
    assert tree.ranges(PART, [(123_456, 124_456), (0, 10)]) == [BIG[123_456:124_456], BIG[:10]]
    assert b"".join(tree.stream(PART, 1_000_000)) == BIG[1_000_000:]


def test_environment_is_not_touched(origin, sha):
    before = dict(os.environ)
    HubTree(REPO, None, origin.url).read(PART)
    assert dict(os.environ) == before
