"""What has been fetched is not fetched again: by this process or another, by us or by the Hub's own client."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache

from reasonknee_hf.errors import EndpointError, IntegrityError, OfflineError, OptionError
from reasonknee_hf.hub.disk import Cache, chosen_cache
from reasonknee_hf.hub.trees import kept_files
from reasonknee_hf.hub.trees.cached_tree import CachedTree

from . import faults as f

pytestmark = pytest.mark.floor

REPO = "owner/kept"
VOLUME, TABLE, ARRAY = "data/images/1.nii.gz", "data/split.csv", "data/all.json"
FILES = {
    VOLUME: random.Random(1).randbytes(600_000),
    TABLE: b"a,b\n" * 2000,
    ARRAY: random.Random(2).randbytes(9_000_000),
    "empty": b"",
}


@pytest.fixture
def sha(origin):
    return origin.put_tree(REPO, FILES)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "hub", tmp_path / "ours")


@pytest.fixture
def tree(origin, sha, cache):
    return CachedTree(REPO, "main", origin.url, cache=cache)


def opened(origin, cache, revision):
    """The same in another process, as far as what is known goes."""
    kept_files._verified.clear()
    return CachedTree(REPO, revision, origin.url, cache=cache)


def large(origin):
    """Ranges of the array but for the short ones that prove that an endpoint cuts them honestly."""
    return [request for request in origin.requests(ARRAY) if request.range and request.sent > 4096]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)


def drained(tree, path, *bounds):
    return b"".join(tree.stream(path, *bounds))


def blob_of(cache, tree, path):
    entry = tree.entry(path)
    return cache.hub / "datasets--owner--kept" / "blobs" / (entry.sha256 or entry.blob_id)


def download(origin, cache, path, revision):
    return hf_hub_download(
        REPO, path, repo_type="dataset", revision=revision, endpoint=origin.url, cache_dir=cache.hub
    )


class TestTheHubsOwnCache:
    def test_what_its_client_fetched_is_used(self, origin, sha, cache, monkeypatch):
        snapshot_download(
            REPO, repo_type="dataset", revision="main", endpoint=origin.url, cache_dir=cache.hub
        )
        origin.clear()
        tree = opened(origin, cache, "main")
        assert tree.read(TABLE) == FILES[TABLE]
        assert drained(tree, VOLUME) == FILES[VOLUME]
        assert drained(tree, ARRAY, 5, 70_000) == FILES[ARRAY][5:70_000]
        assert tree.ranges(ARRAY, [(3, 9), (8_000_000, 9_000_000)]) == [
            FILES[ARRAY][3:9],
            FILES[ARRAY][8_000_000:],
        ]
        assert origin.requests("/resolve/") == []
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        for revision in (sha, "main"):
            assert opened(origin, cache, revision).read(TABLE) == FILES[TABLE]

    def test_offline_without_having_been_here_before(self, origin, sha, cache, monkeypatch):
        download(origin, cache, TABLE, "main")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        tree = CachedTree(REPO, "main", origin.url, cache=cache)
        assert tree.sha == sha
        assert tree.read(TABLE) == FILES[TABLE]
        # Nobody knows what else the commit holds: that is no missing file.
        with pytest.raises(OfflineError, match=f"has not been fetched.*{sha}"):
            tree.read(VOLUME)

    def test_a_file_of_another_commit_is_used_by_its_hash(self, origin, sha, cache):
        download(origin, cache, VOLUME, sha)
        later = origin.put_tree(REPO, {**FILES, TABLE: b"new"})
        origin.clear()
        assert drained(opened(origin, cache, later), VOLUME) == FILES[VOLUME]
        assert origin.requests("/resolve/") == []

    def test_its_client_finds_what_we_kept(self, origin, sha, cache, tree):
        tree.read(TABLE)
        drained(tree, VOLUME)
        origin.clear()
        for path in (TABLE, VOLUME):
            found = try_to_load_from_cache(REPO, path, cache.hub, sha, "dataset")
            assert Path(found).read_bytes() == FILES[path]
            assert download(origin, cache, path, sha) == found
        assert origin.log == []
        found = scan_cache_dir(cache.hub)
        assert not found.warnings
        assert {repo.repo_id for repo in found.repos} == {REPO}
        assert not list(cache.hub.rglob("*.incomplete"))

    def test_a_branch_that_the_user_fetched_stays_where_it_was(self, origin, sha, cache):
        snapshot_download(
            REPO, repo_type="dataset", revision="main", endpoint=origin.url, cache_dir=cache.hub
        )
        later = origin.put_tree(REPO, {**FILES, TABLE: b"new"})
        assert opened(origin, cache, "main").read(TABLE) == b"new"
        ref = cache.hub / "datasets--owner--kept" / "refs" / "main"
        assert ref.read_text() == sha != later

    def test_a_large_file_that_is_not_what_its_name_says_is_not_used(self, origin, sha, cache, monkeypatch):
        """Of a large file the hash is compared once, and that it was right is remembered by all processes."""
        monkeypatch.setattr(kept_files, "_HASHED", 1_000_000)
        download(origin, cache, ARRAY, sha)
        tree = opened(origin, cache, sha)
        blob = blob_of(cache, tree, ARRAY)
        damaged = bytearray(FILES[ARRAY])
        damaged[4_000_000] ^= 1
        blob.write_bytes(damaged)
        os.utime(blob, (1_000, 1_000))
        # What its reader can prove by itself is read without a hash of the whole; the rest is not.
        span = (3_999_000, 4_001_000)
        assert tree.ranges(ARRAY, [span], checked_later=True) == [bytes(damaged[slice(*span)])]
        assert opened(origin, cache, sha).ranges(ARRAY, [span]) == [FILES[ARRAY][slice(*span)]]
        assert drained(opened(origin, cache, sha), ARRAY) == FILES[ARRAY]
        assert opened(origin, cache, sha).ranges(ARRAY, [span]) == [FILES[ARRAY][slice(*span)]]
        status = blob.stat()
        blob.write_bytes(damaged)
        os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
        origin.clear()
        assert opened(origin, cache, sha).ranges(ARRAY, [span]) == [bytes(damaged[slice(*span)])]
        assert origin.log == []

    @pytest.mark.parametrize("path", ["../../../evil", "/evil", "data/../../../../evil", "a\\..\\evil"])
    def test_no_name_leads_out(self, origin, cache, path, tmp_path):
        sha = origin.put_tree(REPO, {path: b"x" * 2000})
        tree = CachedTree(REPO, sha, origin.url, cache=cache)
        with tree.kept.grow(sha, tree.entry(path)) as growth:
            assert growth is None
        assert not list(tmp_path.rglob("*evil*"))


class TestNothingTwice:
    @pytest.mark.parametrize("bounds", [(), (0, 5_000_000), (4_000_000,), (70_000, 170_000)])
    def test_streams(self, origin, sha, cache, tree, bounds):
        assert (
            drained(tree, ARRAY, *bounds)
            == FILES[ARRAY][slice(*(bounds if len(bounds) > 1 else (*bounds, None)))]
        )
        origin.clear()
        again = opened(origin, cache, sha)
        assert drained(again, ARRAY, *bounds) == drained(tree, ARRAY, *bounds)
        assert origin.log == []

    @pytest.mark.parametrize("bounds", [(), (100_000, 8_900_000)])
    def test_streams_that_end_early_go_on_from_there(self, origin, sha, cache, tree, bounds):
        for taken in (3, 3, 80, 80):
            stream = opened(origin, cache, sha).stream(ARRAY, *bounds)
            got = b"".join(next(stream) for _ in range(taken))
            stream.close()
            start = bounds[0] if bounds else 0
            assert got == FILES[ARRAY][start : start + len(got)]
        whole = FILES[ARRAY][slice(*bounds)] if bounds else FILES[ARRAY]
        for _ in range(2):
            assert drained(opened(origin, cache, sha), ARRAY, *bounds) == whole
        rest = 3 if bounds else 2  # the first one asks for the whole, without a range
        wait_for(lambda: len(large(origin)) >= rest)  # they are logged when they have ended
        assert len(large(origin)) == rest

    def test_an_endpoint_without_ranges_gives_the_rest_of_what_was_begun(self, origin, sha, cache, tree):
        stream = tree.stream(VOLUME)
        next(stream)
        stream.close()
        origin.faults(f.ignore_range)
        assert drained(opened(origin, cache, sha), VOLUME) == FILES[VOLUME]
        assert blob_of(cache, tree, VOLUME).read_bytes() == FILES[VOLUME]

    def test_what_an_endpoint_without_ranges_gave_whole_is_there_for_the_next_process(
        self, origin, sha, cache, tree
    ):
        origin.faults(f.ignore_range)
        assert tree.ranges(ARRAY, [(5, 70_000)]) == [FILES[ARRAY][5:70_000]]
        origin.clear()
        origin.faults(f.ignore_range)
        assert opened(origin, cache, sha).ranges(ARRAY, [(8_000_000, 8_000_009)]) == [
            FILES[ARRAY][8_000_000:8_000_009]
        ]
        assert origin.log == []

    def test_threads_and_processes_that_find_no_ranges_fetch_the_whole_once(self, origin, sha, cache):
        origin.faults(f.ignore_range)
        trees = [opened(origin, cache, sha) for _ in range(4)]  # as four processes have them
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda tree: tree.ranges(ARRAY, [(5, 9)]), trees))
        assert found == [[FILES[ARRAY][5:9]]] * 4
        wait_for(lambda: sum(one.sent == len(FILES[ARRAY]) for one in origin.requests(ARRAY)))
        assert sum(one.sent == len(FILES[ARRAY]) for one in origin.requests(ARRAY)) == 1

    def test_ranges(self, origin, sha, cache, tree):
        spans = [(0, 4096), (77, 99), (8_999_000, 9_000_000)]
        wanted = tree.ranges(ARRAY, spans)
        origin.clear()
        assert opened(origin, cache, sha).ranges(ARRAY, spans) == wanted
        assert tree.ranges(ARRAY, [(0, 10)]) == [FILES[ARRAY][:10]]
        assert origin.log == []

    def test_sizes_that_a_listing_leaves_out(self, origin, sha, cache):
        origin.bare = True
        opened(origin, cache, sha).read(TABLE)
        origin.log.clear()
        assert opened(origin, cache, sha).read(TABLE) == FILES[TABLE]
        assert origin.log == []

    def test_an_empty_file(self, tree):
        assert tree.read("empty") == drained(tree, "empty") == b""

    def test_cold_processes_fetch_a_table_once(self, origin, sha, cache):
        with get_context("fork").Pool(8) as pool:
            contents = pool.starmap(_read_table, [(origin.url, sha, cache)] * 8, chunksize=1)
        assert contents == [FILES[TABLE]] * 8
        assert len(origin.requests("/resolve/")) == 1
        assert len(origin.requests("/api/")) == 1

    def test_threads_that_stream_the_same_file(self, origin, sha, cache, tree):
        found = []
        threads = [threading.Thread(target=lambda: found.append(drained(tree, VOLUME))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [FILES[VOLUME]] * 6
        assert blob_of(cache, tree, VOLUME).read_bytes() == FILES[VOLUME]

    def test_a_file_that_is_streamed_twice_at_once(self, origin, sha, cache, tree):
        pairs = list(zip(tree.stream(VOLUME), tree.stream(VOLUME), strict=True))
        assert b"".join(one for one, _ in pairs) == b"".join(other for _, other in pairs) == FILES[VOLUME]
        assert drained(tree, VOLUME) == FILES[VOLUME]

    def test_a_stream_that_is_read_on_in_a_forked_child(self, origin, sha, cache, tree):
        global _STREAM
        _STREAM = tree.stream(VOLUME)
        first = next(_STREAM)
        with get_context("fork").Pool(1) as pool:
            rest = pool.apply(_read_on)
        assert first + rest == first + b"".join(_STREAM) == FILES[VOLUME]
        assert drained(opened(origin, cache, sha), VOLUME) == FILES[VOLUME]
        assert blob_of(cache, tree, VOLUME).read_bytes() == FILES[VOLUME]


_STREAM = None


def _read_on():
    return b"".join(_STREAM)


def _read_table(url, sha, cache):
    return CachedTree(REPO, sha, url, cache=cache).read(TABLE)


class TestDamage:
    @pytest.mark.parametrize("how", ["flip", "cut", "long"])
    def test_a_kept_file_is_fetched_anew(self, origin, sha, cache, tree, how):
        tree.read(TABLE)
        blob = blob_of(cache, tree, TABLE)
        content = bytearray(FILES[TABLE])
        content[999] ^= 16
        blob.write_bytes({"flip": bytes(content), "cut": FILES[TABLE][:-1], "long": FILES[TABLE] + b"x"}[how])
        assert opened(origin, cache, sha).read(TABLE) == FILES[TABLE]
        assert blob.read_bytes() == FILES[TABLE]
        assert (
            Path(try_to_load_from_cache(REPO, TABLE, cache.hub, sha, "dataset")).read_bytes() == FILES[TABLE]
        )

    def test_a_damaged_start_is_told_once_and_not_kept(self, origin, sha, cache, tree):
        stream = tree.stream(VOLUME)
        next(stream)
        stream.close()
        (unfinished,) = cache.hub.rglob("*.incomplete")
        unfinished.write_bytes(b"wrong" * 5000)
        with pytest.raises(IntegrityError):
            drained(opened(origin, cache, sha), VOLUME)
        assert not unfinished.exists()
        assert drained(opened(origin, cache, sha), VOLUME) == FILES[VOLUME]

    @pytest.mark.parametrize("outage", [f.html, f.status(503), f.cut(0)])
    def test_an_outage_says_nothing_of_what_is_here(self, origin, sha, cache, tree, outage, monkeypatch):
        stream = tree.stream(ARRAY)
        begun = b"".join(next(stream) for _ in range(30))
        stream.close()
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.2")
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.2")
        origin.faults(outage)
        with pytest.raises(EndpointError):
            drained(opened(origin, cache, sha), ARRAY)
        origin.clear()
        assert drained(opened(origin, cache, sha), ARRAY) == FILES[ARRAY]
        (request,) = large(origin)
        assert request.range == f"bytes={len(begun)}-{len(FILES[ARRAY]) - 1}"

    def test_what_an_endpoint_gave_wrong_is_not_kept(self, origin, sha, cache, tree):
        origin.faults(f.swapped(headers=False), times=1)
        with pytest.raises(IntegrityError):
            drained(tree, VOLUME)
        assert not [path for path in cache.hub.rglob("*") if path.is_file() and path.suffix != ".lock"]
        assert drained(tree, VOLUME) == FILES[VOLUME]

    def test_every_flip_in_a_piece_is_seen(self, origin, sha, cache, tree):
        tree.ranges(ARRAY, [(0, 300)])
        (piece,) = [p for p in (cache.ours / "pieces").rglob("*") if p.is_file() and p.name[0] != "."]
        stored = piece.read_bytes()
        for position in range(0, len(stored), 7):
            broken = bytearray(stored)
            broken[position] ^= 1 << position % 8
            piece.write_bytes(broken)
            assert tree.kept.piece(sha, ARRAY, 0) is None

    def test_killed_in_the_middle(self, origin, sha, cache):
        code = """if True:
            import sys
            from pathlib import Path
            from reasonknee_hf.hub.disk import Cache
            from reasonknee_hf.hub.trees.cached_tree import CachedTree
            url, sha, hub, ours = sys.argv[1:]
            tree = CachedTree("owner/kept", sha, url, cache=Cache(Path(hub), Path(ours)))
            for number, _ in enumerate(tree.stream("data/all.json")):
                if number == 40:
                    print("there", flush=True)
                    sys.stdin.read()
        """
        child = subprocess.Popen(
            [sys.executable, "-c", code, origin.url, sha, str(cache.hub), str(cache.ours)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )
        with child:
            child.stdout.readline()
            # While another process writes the file, this one reads it all the same.
            assert drained(opened(origin, cache, sha), ARRAY) == FILES[ARRAY]
            child.send_signal(signal.SIGKILL)
        origin.clear()
        assert drained(opened(origin, cache, sha), ARRAY) == FILES[ARRAY]
        (request,) = large(origin)
        assert request.sent < len(FILES[ARRAY]) - 2_000_000
        assert opened(origin, cache, sha).kept.find(sha, opened(origin, cache, sha).entry(ARRAY))

    def test_a_full_disk_costs_speed_only(self, origin, sha, cache):
        context = get_context("fork")
        with context.Pool(1) as pool:
            assert pool.apply(_read_with_little_room, (origin.url, sha, cache)) == [FILES[VOLUME]] * 2
        assert not list(cache.hub.rglob("*.incomplete"))

    @pytest.mark.parametrize("blocked", ["hub", "ours"])
    def test_a_folder_that_cannot_be_written_costs_speed_only(self, origin, sha, tmp_path, blocked):
        (tmp_path / blocked).write_bytes(b"")
        cache = Cache(tmp_path / "hub", tmp_path / "ours")
        tree = CachedTree(REPO, "main", origin.url, cache=cache)
        for _ in range(2):
            assert tree.read(TABLE) == FILES[TABLE]
            assert drained(tree, VOLUME) == FILES[VOLUME]
            assert tree.ranges(ARRAY, [(3, 9)]) == [FILES[ARRAY][3:9]]
            assert drained(tree, ARRAY, 3, 99_999) == FILES[ARRAY][3:99_999]


def _read_with_little_room(url, sha, cache):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (200_000, 200_000)
    )  # larger files cannot be written from here on
    tree = CachedTree(REPO, sha, url, cache=cache)
    return [drained(tree, VOLUME) for _ in range(2)]


class TestBounds:
    def test_nothing_is_kept_above_the_bound_and_nothing_is_removed(self, origin, cache):
        files = {f"{n}.nii.gz": random.Random(n).randbytes(100_000) for n in range(5)}
        sha = origin.put_tree(REPO, files)
        download(origin, cache, "4.nii.gz", sha)
        bounded = Cache(cache.hub, cache.ours, 250_000)
        for _ in range(2):
            tree = CachedTree(REPO, sha, origin.url, cache=bounded)
            assert {name: drained(tree, name) for name in files} == files
        blobs = list((cache.hub / "datasets--owner--kept" / "blobs").iterdir())
        assert sum(blob.stat().st_size for blob in blobs) == 200_000
        assert try_to_load_from_cache(REPO, "4.nii.gz", cache.hub, sha, "dataset")

    def test_processes_that_fill_it_together_stay_below(self, origin, cache):
        files = {f"{n}.nii.gz": random.Random(n).randbytes(100_000) for n in range(8)}
        sha = origin.put_tree(REPO, files)
        bounded = Cache(cache.hub, cache.ours, 350_000)
        with get_context("fork").Pool(4) as pool:
            found = pool.starmap(_drain, [(origin.url, sha, bounded, n) for n in files], chunksize=1)
        assert dict(zip(files, found, strict=True)) == files
        taken = sum(p.stat().st_size for p in (cache.hub / "datasets--owner--kept" / "blobs").iterdir())
        assert 0 < taken <= 350_000

    def test_how_it_is_chosen(self, monkeypatch, tmp_path):
        from huggingface_hub import constants

        hub = Path(constants.HF_HUB_CACHE)
        assert chosen_cache() is None  # as the environment of the tests says
        monkeypatch.delenv("REASONKNEE_CACHE")
        assert chosen_cache().hub == hub
        assert (chosen_cache("auto").limit, chosen_cache(True).limit) == (10 * 1024**3, None)
        assert chosen_cache(True, "2 GiB").limit == 2 * 1024**3
        assert chosen_cache(tmp_path).hub == tmp_path
        assert chosen_cache(False) is None
        assert chosen_cache("off") is chosen_cache("0") is None
        for wrong in (1, b"auto", ["auto"]):
            with pytest.raises(OptionError, match="none of 'auto', True, False and a folder"):
                chosen_cache(wrong)
        with pytest.raises(OptionError, match="cache_size must be a number of bytes"):
            chosen_cache("auto", "plenty")
        monkeypatch.setenv("REASONKNEE_CACHE", str(tmp_path))
        monkeypatch.setenv("REASONKNEE_CACHE_SIZE", "500")
        assert chosen_cache() == Cache(tmp_path, tmp_path / ".reasonknee_hf", 500)
        monkeypatch.setenv("REASONKNEE_CACHE", "off")
        assert chosen_cache() is None


def _drain(url, sha, cache, path):
    return drained(CachedTree(REPO, sha, url, cache=cache), path)


class TestWithoutTheHub:
    def test_a_branch_is_what_it_was(self, origin, sha, cache, tree, caplog, monkeypatch):
        monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.2")
        monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.2")
        tree.read(TABLE)
        origin.faults(f.status(503), match=".")
        again = opened(origin, cache, "main")
        assert again.sha == sha
        assert again.read(TABLE) == FILES[TABLE]
        assert f"going on with commit {sha}" in caplog.text

    def test_a_login_portal_is_an_outage(self, origin, sha, cache, tree, caplog):
        tree.read(TABLE)
        origin.faults(f.html, match=".")
        again = opened(origin, cache, "main")
        assert (again.sha, again.read(TABLE)) == (sha, FILES[TABLE])
        assert "web page (HTML)" in caplog.text

    def test_a_refusal_is_not_an_outage(self, origin, sha, cache, tree):
        tree.read(TABLE)
        for status in (403, 404):
            origin.faults(f.status(status), match=".")
            with pytest.raises(OSError, match=str(status)):
                opened(origin, cache, "main")

    def test_what_is_missing_is_named(self, origin, sha, cache, tree, monkeypatch):
        tree.read(TABLE)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        again = opened(origin, cache, "main")
        for read in (
            again.read,
            lambda path: drained(again, path),
            lambda path: again.ranges(path, [(0, 9)]),
        ):
            with pytest.raises(OfflineError, match=f"1.nii.gz.*not in a cache.*commits of owner/kept.*{sha}"):
                read(VOLUME)


def test_nothing_of_a_secret_and_nothing_in_the_environment(origin, sha, cache):
    before = dict(os.environ)
    tree = CachedTree(REPO, sha, origin.url, "hf_secret_token", cache=cache)
    tree.read(TABLE)
    for file in [*cache.hub.rglob("*"), *cache.ours.rglob("*")]:
        assert not file.is_file() or b"hf_secret" not in file.read_bytes()
    assert dict(os.environ) == before
