"""Shards are independent tasks: any executor gives the same bytes, and only missing ones are made again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import datasets
import pytest
from publishing import tables
from support import files_below

from reasonknee_hf.errors import OptionError
from reasonknee_hf.publish import tasks
from reasonknee_hf.publish.convert import convert


def test_any_executor_gives_the_same_bytes(sample_dir, tmp_path, full_folder):
    options = {"source": str(sample_dir), "on_error": "null"}
    with ProcessPoolExecutor(2) as pool:
        convert(tmp_path / "p" / "knee", "full", executor=pool, **options)
    with ThreadPoolExecutor(2) as pool:
        convert(tmp_path / "t" / "knee", "full", executor=pool, **options)
    assert files_below(tmp_path / "p" / "knee") == files_below(full_folder)
    assert files_below(tmp_path / "t" / "knee") == files_below(full_folder)


def test_dask_cluster_gives_the_same_bytes(sample_dir, tmp_path, full_folder):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        convert(tmp_path / "d" / "knee", "full", executor=executor, source=str(sample_dir), on_error="null")
    assert files_below(tmp_path / "d" / "knee") == files_below(full_folder)


def test_ray_gives_the_same_bytes(sample_dir, tmp_path, full_folder):
    ray = pytest.importorskip("ray")

    class RayExecutor(Executor):
        def submit(self, function, /, *args, **kwargs):
            return ray.remote(function).remote(*args, **kwargs).future()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        convert(
            tmp_path / "r" / "knee", "full", executor=RayExecutor(), source=str(sample_dir), on_error="null"
        )
    finally:
        ray.shutdown()
    assert files_below(tmp_path / "r" / "knee") == files_below(full_folder)


def test_a_filter_that_cannot_travel_is_named(sample_dir, tmp_path):
    with ProcessPoolExecutor(1) as pool, pytest.raises(OptionError, match="where="):
        convert(
            tmp_path / "o", "bench", source=str(sample_dir), on_error="null", where=lambda row: True, executor=pool,
            volumes="none",
        )  # fmt: skip


def test_only_missing_shards_are_made_again(sample_dir, tmp_path, full_folder, monkeypatch):

    out = tmp_path / "knee"
    shutil.copytree(full_folder, out)
    lost = tables(out, "full_volumes", "train") + tables(out, "full", "test")
    for path in lost:
        path.unlink()
    (out / "full" / ".train-00000-of-00001-aaaaaaaa.unfinished").mkdir()
    made = []
    run = tasks.run_task
    monkeypatch.setattr(tasks, "run_task", lambda task: made.append((task.config, task.split)) or run(task))
    convert(out, "full", source=str(sample_dir), on_error="null")
    assert made == [("full", "test"), ("full_volumes", "train")]
    shutil.rmtree(out / "full" / ".train-00000-of-00001-aaaaaaaa.unfinished")
    assert files_below(out) == files_below(full_folder)


def test_other_options_give_other_files(sample_dir, tmp_path):
    out = tmp_path / "o"
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none"}
    convert(out, "bench", **options)
    before = tables(out, "bench")
    convert(out, "bench", categories="BML", **options)
    assert len(tables(out, "bench")) == 2
    found = datasets.load_dataset(str(out), "bench", split="test", streaming=True)
    assert {row["category"] for row in found} == {0}
    assert before[0].exists()


# --- killed -------------------------------------------------------------------------------------------------------

KILLED = """
import os, sys
from reasonknee_hf.publish import tasks
from reasonknee_hf.publish.convert import convert

run, left = tasks.run_task, int(sys.argv[3])
def limited(task):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return run(task)
tasks.run_task = limited
convert(sys.argv[2], "full", source=sys.argv[1], on_error="null")
"""


def test_a_killed_conversion_goes_on(sample_dir, tmp_path, full_folder):
    out = tmp_path / "knee"
    for survivors in (2, 1):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(sample_dir), str(out), str(survivors)], check=False
        )
        assert done.returncode == 9
        assert not (out / "README.md").exists()
    assert len(list(out.glob("*/*.parquet"))) == 3
    convert(out, "full", source=str(sample_dir), on_error="null")
    assert files_below(out) == files_below(full_folder)
