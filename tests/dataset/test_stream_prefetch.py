"""Streams load the next scan in the background: only what rows touch, in the same order, with the same states."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import plain

import reasonknee_hf
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.sample import write_sample
from reasonknee_hf.volumes.volume_cache import volume_cache

pytestmark = pytest.mark.floor

EACH = 62  # rows of a scan


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release whose train split has several scans, all with volume and mask."""
    root = write_sample(tmp_path_factory.mktemp("prefetch") / "release", scans=7, flaws=False)
    return str(root)


@pytest.fixture(autouse=True)
def empty_cache():
    volume_cache().clear()
    yield
    volume_cache().clear()


def stream(release, **options):
    return reasonknee_hf.load_dataset("full", split="train", streaming=True, source=release, **options)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reasonknee-prefetch")]


def settled(count, before):
    """Waits until so many volumes have been decoded, and some more time for one too many."""
    deadline = time.monotonic() + 5
    while volume_cache().decodes - before < count and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    return volume_cache().decodes - before == count


def test_rows_that_touch_nothing_load_nothing(release):
    before = volume_cache().decodes
    for row in stream(release):
        assert row["image"].path
        assert not threads()
    assert volume_cache().decodes == before


def test_the_next_scan_is_there_before_its_first_row(release):
    before = volume_cache().decodes
    scans, rows = {}, iter(stream(release))
    for number, row in enumerate(rows):
        scan = scans.setdefault(row["scan_id"], len(scans))
        if number % EACH == 0:
            # The first scan is loaded by its row, each other one during the rows of the one before.
            assert settled(scan + (scan > 0), before)
        row["image"].crop(row["bbox"] or [0] * 6)
    assert settled(len(scans), before)
    assert len(scans) > 2
    assert not threads()


@pytest.mark.parametrize("column", ["image", "mask"])
def test_only_the_column_that_is_touched_is_loaded(release, column):
    before = volume_cache().decodes
    rows = [row[column].array().shape for row in stream(release)]
    assert volume_cache().decodes - before == len(rows) / EACH


def test_loading_ends_when_rows_touch_no_more(release):
    before = volume_cache().decodes
    for number, row in enumerate(stream(release)):
        if number < EACH:
            row["image"].array()
    assert settled(2, before)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": 3}, {"shuffle": 3, "window": 2}, {"equal_steps": "pad", "num_shards": 2}],
)
def test_rows_and_states_are_those_of_a_stream_without_it(release, options):
    def walk(dataset):
        found = []
        for row in dataset:
            row["image"].array()
            found.append((plain(row), json.dumps(dataset.state_dict())))
        return found

    expected = walk(stream(release, prefetch=False, **options))
    assert walk(stream(release, **options)) == expected
    place = len(expected) // 2 + 5
    resumed = stream(release, **options)
    resumed.load_state_dict(json.loads(expected[place - 1][1]))
    assert [row for row, _ in walk(resumed)] == [row for row, _ in expected[place:]]


def test_off_by_one_option(release):
    before = volume_cache().decodes
    rows = iter(stream(release, prefetch=False))
    for _ in range(3):
        next(rows)["image"].array()
        assert not threads()
    assert settled(1, before)


def test_no_thread_outlives_its_iterator(release):
    rows = iter(stream(release))
    next(rows)["image"].array()
    next(rows)
    assert len(threads()) == 1
    del rows
    gc.collect()
    assert not threads()


@pytest.mark.parametrize("touch", [False, True])
def test_an_iterator_that_is_left_to_the_end_of_the_program_says_nothing(release, touch):
    code = f"""
import contextlib
with contextlib.suppress(ImportError):
    import torch.utils.data  # imported first, it outlives what the iterator needs
import reasonknee_hf
rows = iter(reasonknee_hf.load_dataset("full", split="train", streaming=True, source={release!r}))
for _ in range(3):
    row = next(rows)
    if {touch}:
        row["image"].array()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_cache_that_does_not_hold_two_volumes_is_not_filled_ahead(release):
    cache, before = volume_cache(), volume_cache().decodes
    kept = cache.max_bytes
    try:
        rows = iter(stream(release))
        size = next(rows)["image"].array().nbytes
        cache.resize(2 * size - 1)
        next(rows)
        assert settled(1, before)
        cache.resize(2 * size)
        next(rows)
        assert settled(2, before)
    finally:
        cache.resize(kept)


def test_a_record_that_does_not_fit_fails_behind_the_rows_before_it(release, tmp_path):
    records = json.loads(Path(release, "data/generate_data/train.json").read_text())[: 2 * EACH]
    bad = EACH - 5
    records[bad] = records[bad] | {"image": "/data/images/1/00M/1_1_1.nii.gz"}
    for folder in ("split_files", "images"):
        (tmp_path / "data" / folder).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / folder).symlink_to(Path(release, "data", folder))
    (tmp_path / "data/generate_data").mkdir()
    (tmp_path / "data/generate_data/train.json").write_text(json.dumps(records))
    rows = iter(stream(str(tmp_path), masks=False))
    for _ in range(bad):
        next(rows)["image"].array()
    with pytest.raises(RecordError, match="volume of no scan"):
        next(rows)


def test_a_pass_that_touches_nothing_loads_nothing_after_one_that_did(release):
    for row in stream(release):
        size = row["image"].array().nbytes
    kept = volume_cache().max_bytes
    try:
        volume_cache().resize(2 * size)
        before = volume_cache().decodes
        for _ in stream(release):
            pass
        assert settled(0, before)
    finally:
        volume_cache().resize(kept)


def test_rows_that_read_parts_of_volumes_load_none_ahead(release):
    before, scans = volume_cache().decodes, set()
    for row in stream(release):
        scans.add(row["scan_id"])
        row["image"].crop([0, 2, 0, 2, 0, 2], whole=False)
    assert settled(len(scans), before)


def test_rows_go_on_in_a_thread_that_outlives_the_main_one(release):
    code = f"""
import threading, time
import reasonknee_hf
rows = reasonknee_hf.load_dataset("full", split="train", streaming=True, source={release!r})
def read():
    for number, row in enumerate(rows):
        if number == 0:
            time.sleep(0.5)  # the main thread is over by then
        row["image"].array()
    print(number + 1)
threading.Thread(target=read).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(done.stdout), done.stderr) == (sum(1 for _ in stream(release)), "")


def test_it_is_for_streams(release):
    with pytest.raises(OptionError, match=r"prefetch.*streaming=True"):
        reasonknee_hf.load_dataset("full", split="train", source=release, prefetch=False)
    with pytest.raises(OptionError, match="prefetch"):
        stream(release, prefetch="no")
