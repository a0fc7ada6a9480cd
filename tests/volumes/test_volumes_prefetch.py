"""The background thread: same rows, same order, bounded, gone with its iterator."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from volume_files import voxels, write

from reasonknee_hf.errors import VolumeDataError
from reasonknee_hf.volumes.prefetch import _Loader, _Scan, prefetched
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

SCANS, EACH = 6, 5


@pytest.fixture
def rows(tmp_path):
    volume_cache().clear()
    paths = [str(write(tmp_path / f"{i}.nii.gz", voxels((9, 8, 40), seed=i))) for i in range(SCANS)]
    return [
        {"id": f"{i}-{j}", "scan": i, "image": KneeVolume(path), "mask": None, "bbox": [0, j, 1, 2, 3, 4]}
        for i, path in enumerate(paths)
        for j in range(EACH)
    ]


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reasonknee-prefetch")]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_same_rows_same_order_one_decode_a_scan(rows):
    before = volume_cache().decodes
    got = []
    for row in prefetched(rows):
        crop = row["image"].crop(row["bbox"])
        expected = np.moveaxis(voxels((9, 8, 40), seed=row["scan"]), -1, 0)
        np.testing.assert_array_equal(crop, expected[0 : row["bbox"][1] + 1, 1:3, 3:5])
        got.append(row)
    assert got == rows
    assert volume_cache().decodes - before == SCANS
    assert threads() == []


def test_the_next_scan_is_loaded_while_this_one_is_used_and_no_more(rows):
    cache = volume_cache()
    before = cache.decodes
    stream = prefetched(rows)
    next(stream)
    assert wait_for(lambda: cache.decodes - before == 1)
    next(stream)
    assert wait_for(lambda: cache.decodes - before == 2)  # nobody touched a volume
    for _ in range(EACH - 2):
        next(stream)
    time.sleep(0.05)
    assert cache.decodes - before == 2
    stream.close()
    assert threads() == []


def test_abandoned_iterators_leave_no_thread(rows):
    stream = prefetched(rows)
    next(stream)
    assert len(threads()) == 1
    del stream
    gc.collect()
    assert threads() == []
    stream = prefetched(rows)
    next(stream)
    with pytest.raises(RuntimeError, match="stop here"):
        stream.throw(RuntimeError("stop here"))
    assert threads() == []


def test_an_iterator_may_be_closed_in_its_own_thread(rows):
    loader = _Loader()

    class Closing(KneeVolume):
        def load(self, *args, **options):
            loader.close()

    assert loader.submit(_Scan([Closing("x")]), False).result(5) is None
    assert wait_for(lambda: not threads())
    assert loader.submit(_Scan([rows[0]["image"]]), False) is None


def test_volumes_may_be_given_by_a_generator(rows):
    before = volume_cache().decodes
    for row in prefetched(rows, volumes=lambda row: (v for v in [row["image"]])):
        row["image"].crop(row["bbox"])
    assert volume_cache().decodes - before == SCANS


def test_a_broken_volume_fails_at_its_own_row(rows, tmp_path):
    (tmp_path / "2.nii.gz").write_bytes((tmp_path / "2.nii.gz").read_bytes()[:-20])
    for row in prefetched(rows):
        if row["scan"] == 2:
            with pytest.raises(VolumeDataError, match=r"2\.nii\.gz"):
                row["image"].array()
        else:
            row["image"].array()


def test_rows_are_not_read_further_than_the_next_scan(rows):
    pulled = []
    stream = prefetched(pulled.append(row["id"]) or row for row in rows)
    next(stream)
    assert pulled == ["0-0"]
    next(stream)
    assert pulled[-1] == "1-0"
    stream.close()


def test_rows_that_repeat_few_volumes_are_not_collected_without_end(rows):
    pulled = []
    stream = prefetched(pulled.append(1) or rows[0] for _ in range(5000))
    for _ in range(10):
        next(stream)
    assert len(pulled) <= 1010
    stream.close()
