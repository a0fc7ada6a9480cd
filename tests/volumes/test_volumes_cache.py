"""The cache of the process, and what long runs cost: memory, descriptors, decodes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from volume_files import PIR, gzip_bytes, voxels, write

from reasonknee_hf.errors import OptionError
from reasonknee_hf.volumes import volume_cache as cache_module
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import DEFAULT_BYTES, Decoded, VolumeCache, volume_cache


def entry(size):
    return Decoded(None, np.zeros(size, np.uint8))


def test_bounded_in_bytes_and_the_oldest_leaves_first():
    cache = VolumeCache(100)
    for name in "abc":
        cache.get(name, lambda: entry(40))
    assert ("a" in cache, "b" in cache, "c" in cache, cache.nbytes) == (False, True, True, 80)
    cache.get("b", lambda: pytest.fail("it is there"))
    cache.get("d", lambda: entry(30))
    assert ("b" in cache, "c" in cache) == (True, False)
    cache.resize(30)
    assert (len(cache), cache.nbytes) == (1, 30)
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)


def test_what_is_larger_than_the_bound_is_handed_out_and_not_kept():
    cache = VolumeCache(10)
    assert cache.get("a", lambda: entry(11)).array.nbytes == 11
    assert len(cache) == 0


def test_a_part_is_replaced_by_more():
    cache = VolumeCache(100)
    cache.get("a", lambda: entry(10))
    cache.get("a", lambda: entry(30), lambda found: found.array.size >= 30)
    assert (cache.decodes, cache.nbytes, len(cache)) == (2, 30, 1)
    cache.get("a", lambda: pytest.fail("it is there"), lambda found: found.array.size >= 20)


def test_threads_that_ask_at_once_share_one_load():
    cache = VolumeCache(100)
    start, loads = threading.Barrier(8), []
    release = threading.Event()

    def load():
        loads.append(1)
        release.wait(5)
        return entry(10)

    got = []

    def ask():
        start.wait()
        got.append(cache.get("a", load))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    while not loads:
        pass
    release.set()
    for thread in asking:
        thread.join()
    assert len(loads) == 1
    assert all(one is got[0] for one in got)


def test_a_failed_load_reaches_all_who_wait_and_is_tried_again():
    cache = VolumeCache(100)
    entered, release = threading.Event(), threading.Event()

    def fail():
        entered.set()
        release.wait(5)
        raise OSError("broken")

    errors = []

    def ask():
        try:
            cache.get("a", fail)
        except OSError as error:
            errors.append(error)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    asking[0].start()
    entered.wait(5)
    for thread in asking[1:]:
        thread.start()
    release.set()
    for thread in asking:
        thread.join()
    assert len(errors) == 3
    assert cache.get("a", lambda: entry(1)).array.size == 1


def test_two_threads_decode_a_volume_once(tmp_path):
    volume_cache().clear()
    path = str(write(tmp_path / "a.nii.gz", voxels((64, 64, 64))))
    before = volume_cache().decodes
    threads = [threading.Thread(target=KneeVolume(path).array) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert volume_cache().decodes - before == 1


def test_size_comes_from_the_environment(monkeypatch):
    monkeypatch.setattr(cache_module, "_cache", None)
    assert volume_cache().max_bytes == DEFAULT_BYTES
    monkeypatch.setattr(cache_module, "_cache", None)
    monkeypatch.setenv("REASONKNEE_VOLUME_CACHE", "12345")
    assert volume_cache().max_bytes == 12345
    monkeypatch.setattr(cache_module, "_cache", None)
    for wrong in ("1G", "-5", "1.5", "9" * 5000):
        monkeypatch.setenv("REASONKNEE_VOLUME_CACHE", wrong)
        with pytest.raises(OptionError, match="REASONKNEE_VOLUME_CACHE must be a number of bytes"):
            volume_cache()


def test_the_default_holds_a_window_of_four_scans_and_one_ahead():
    image, mask = 160 * 384 * 384 * 2, 160 * 384 * 384
    assert 5 * (image + mask) <= DEFAULT_BYTES


def test_same_bytes_are_decoded_once_and_other_bytes_are_not_mixed_up():
    volume_cache().clear()
    before = volume_cache().decodes
    one, other = gzip_bytes(voxels(seed=1)), gzip_bytes(voxels(seed=2))
    for data in (one, bytes(bytearray(one)), other):
        KneeVolume(None, data).array()
    assert volume_cache().decodes - before == 2
    np.testing.assert_array_equal(KneeVolume(None, other).array(), np.moveaxis(voxels(seed=2), -1, 0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_start_empty_and_work(tmp_path):
    path = str(write(tmp_path / "a.nii.gz", voxels()))
    KneeVolume(path).array()
    with volume_cache()._lock:  # as another thread may hold it at the moment of the fork
        child = os.fork()
        if child == 0:
            fine = len(volume_cache()) == 0 and KneeVolume(path).array().shape == (5, 8, 9)
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pickles_hold_no_voxels(tmp_path):
    volume = KneeVolume(str(write(tmp_path / "a.nii.gz", voxels((64, 64, 64)))))
    volume.array()
    assert len(pickle.dumps([volume] * 10)) < 2000


# --- long runs, in a process of their own -------------------------------------------------------------------


def run(code, *arguments):
    """Runs code in a fresh process and returns what it printed, as numbers."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


PEAK = """
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

    def restart():
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
"""
linux = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs VmHWM of Linux")


@linux
def test_one_volume_needs_little_more_than_its_voxels(tmp_path):
    random = np.random.default_rng(0)
    array = random.integers(0, 60, (160, 192, 192)).astype(np.int16)  # 11.25 MiB
    path = write(tmp_path / "a.nii.gz", array, PIR[:, [2, 0, 1, 3]])
    over, nbytes = run(
        PEAK
        + """
    import sys
    import numpy
    from reasonknee_hf.volumes import volume_bytes as inflate
    from reasonknee_hf.volumes.volume import KneeVolume
    volume = KneeVolume(sys.argv[1])
    volume.header, inflate.inflater()
    restart()
    base = peak()
    array = volume.array()
    print(peak() - base, array.nbytes)
    """,
        path,
    )
    assert nbytes == array.nbytes
    assert over < nbytes + (6 << 20)  # less than the compressed file on top


@linux
def test_memory_is_flat_over_200_scans_and_no_descriptor_stays_open(tmp_path):
    made = [write(tmp_path / f"{i}.nii.gz", voxels((64, 64, 40), seed=i)) for i in range(20)]
    paths = [tmp_path / f"scan-{i}.nii.gz" for i in range(200)]
    for number, path in enumerate(paths):
        path.hardlink_to(made[number % len(made)])
    early, late, descriptors = run(
        PEAK
        + """
    import os, resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.environ["REASONKNEE_VOLUME_CACHE"] = str(1 << 20)
    from reasonknee_hf.volumes.volume import KneeVolume
    before = len(os.listdir("/proc/self/fd"))
    keep = []
    for row in range(500):
        volume = KneeVolume(sys.argv[1 + row % 200])
        volume.header, volume.crop([0, 3, 0, 3, 0, 3])
        keep.append(volume)
        if row == 99:
            early = peak()
    print(early, peak(), len(os.listdir("/proc/self/fd")) - before)
    """,
        *paths,
    )
    assert late - early < 2 << 20
    assert descriptors <= 0


def test_volumes_import_neither_torch_nor_matplotlib():
    run(
        """
    import sys
    from reasonknee_hf.volumes import feature, prefetch, volume
    assert not {"torch", "matplotlib"} & set(sys.modules)
    """
    )
