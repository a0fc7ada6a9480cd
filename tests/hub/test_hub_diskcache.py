"""The disk cache: bounded, least recently used, atomic, private, shared by processes."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import stat
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.disk import DiskCache, entries


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]


def taken_by(cache):
    return sum(taken for _, taken, _ in entries(cache.folder))


def test_round_trip_and_misses(tmp_path):
    cache = DiskCache(tmp_path / "new" / "folder", 10_000)
    assert cache.get("a") is None
    for data in (b"", b"x" * 5000):
        cache.put("a", data)
        assert cache.get("a") == data
    assert taken_by(cache) <= 10_000


def test_a_cache_that_may_only_be_read_is_read(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 10_000)
    cache.put("a", b"x")

    def utime(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", utime)
    assert cache.get("a") == b"x"


def test_least_recently_used_goes_first(tmp_path):
    cache = DiskCache(tmp_path, 3500)
    for number, key in enumerate("abc"):
        cache.put(key, bytes(1000))
        for path in files(tmp_path):
            if path.stat().st_mtime > 1e9:
                os.utime(path, (number, number))
    assert cache.get("a") == bytes(1000)  # now the youngest
    cache.put("d", bytes(1000))
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, True, True]


def test_too_large_is_not_kept_and_pushes_nothing_out(tmp_path):
    cache = DiskCache(tmp_path, 2000)
    cache.put("a", bytes(1000))
    cache.put("b", bytes(3000))
    assert cache.get("a") is not None
    assert cache.get("b") is None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1500)), max_size=25))
def test_never_above_its_bound(tmp_path_factory, puts):
    folder = tmp_path_factory.mktemp("bound")
    cache = DiskCache(folder, 4000)
    for key, size in puts:
        cache.put(str(key), bytes([key]) * size)
        assert taken_by(cache) <= 4000
        assert cache.get(str(key)) == bytes([key]) * size


def test_names_are_hashes_and_only_the_owner_reads(tmp_path):
    folder = tmp_path / "cache"
    cache = DiskCache(folder, 10**6)
    for key in ("../../evil", "/etc/passwd", "patient 9000099"):
        cache.put(key, b"data")
        assert cache.get(key) == b"data"
    assert len(files(folder)) == 3
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert "evil" not in path.name
        assert "patient" not in path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


def test_damage_is_dropped(tmp_path, caplog):
    cache = DiskCache(tmp_path, 10**6)
    cache.put("a", b"data")
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    assert cache.get("a") is None
    assert not path.exists()
    assert "damaged" in caplog.text


def test_leftovers_of_killed_processes_go(tmp_path):
    old, fresh = tmp_path / ".old.part", tmp_path / ".fresh.part"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    DiskCache(tmp_path, 10**6).put("a", b"data")
    assert not old.exists()
    assert fresh.exists()


def test_a_folder_that_cannot_be_written_only_warns(tmp_path, caplog):
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    caplog.set_level(logging.WARNING)
    cache = DiskCache(blocker / "below", 1000)
    cache.put("a", b"data")
    assert cache.get("a") is None
    assert "cannot write" in caplog.text


@pytest.mark.parametrize("size", [0, -1])
def test_size_must_be_positive(tmp_path, size):
    with pytest.raises(OptionError):
        DiskCache(tmp_path, size)


def _hammer(folder, seed):
    cache = DiskCache(folder, 20_000)
    wrong = 0
    for step in range(60):
        key = (seed * 7 + step) % 11
        cache.put(str(key), bytes([key]) * 3000)
        got = cache.get(str((key + 3) % 11))
        wrong += got is not None and got != bytes([(key + 3) % 11]) * 3000
    return wrong


def test_many_processes(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.starmap(_hammer, [(tmp_path, seed) for seed in range(4)]) == [0] * 4
    assert taken_by(DiskCache(tmp_path, 20_000)) <= 20_000
    assert not list(tmp_path.rglob("*.part"))
