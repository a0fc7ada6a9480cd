"""What travels to a repository and what does not: failures of the bytes, files that nobody needs any more."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub.faults import Rule
from publishing import REPO, configs_of, files_of, push_bench

from reasonknee_hf.errors import EndpointError, ForbiddenError, PublishError
from reasonknee_hf.hub.wire import retries
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.publish import destination as repository
from reasonknee_hf.publish.convert import convert


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.02)
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "10")


# --- bytes that do not travel ------------------------------------------------------------------------------------


def answered(code: int):
    def fault(reply) -> None:
        reply.status, reply.body = code, b"{}"

    return fault


def cut(reply) -> None:
    reply.cut_at, reply.cut_how = 0, "rst"


@pytest.mark.parametrize("fault", [answered(500), answered(503), cut])
def test_bytes_that_do_not_travel_are_sent_again(origin, sample_dir, fault, monkeypatch):
    # The client itself tries a few times, after pauses that are cut here; as many faults as that reach this package.
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.05)))
    origin.faults(Rule(fault, r"^PUT .*_lfs", times=8))
    push_bench(origin, sample_dir, volumes="none", limit=4)
    assert list(configs_of(files_of(origin)["README.md"])) == ["bench"]


@pytest.mark.parametrize(("code", "kind"), [(403, ForbiddenError), (400, EndpointError)])
def test_refused_bytes_are_one_clear_error(origin, sample_dir, code, kind):
    origin.faults(Rule(answered(code), r"^PUT .*_lfs"))
    with pytest.raises(kind, match=rf"uploading bench/.*\({code}\)"):
        push_bench(origin, sample_dir, volumes="none", limit=4)


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("late")])
def test_failures_of_other_transports_are_tried_again(error):
    left = [error, error]

    def call() -> str:
        if left:
            raise left.pop()
        return "done"

    assert repository.insist(call, "sending") == "done"
    with pytest.raises(RuntimeError, match="a bug"):
        repository.insist(lambda: exec("raise RuntimeError('a bug')"), "sending")


# --- files that are not needed any more --------------------------------------------------------------------------


def test_withdrawn_files_beside_the_tables_go(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="files")
    first = open_release(str(sample_dir)).scans("test")[0]
    assert sum(name.endswith(".nii.gz") for name in files_of(origin)) == 4
    push_bench(origin, sample_dir, volumes="files", limit=1)
    left = [name for name in files_of(origin) if name.endswith(".nii.gz")]
    published = (first.image_filepath, first.label_filepath)
    assert left == [path.replace("../data/", "bench_volumes/") for path in published]
    push_bench(origin, sample_dir, config="full", volumes="none", splits="test", delete_configs=["bench"])
    assert not [name for name in files_of(origin) if "bench" in name]
    assert "bench" not in files_of(origin)["croissant.json"].decode()


def test_files_that_another_config_names_by_a_deep_pattern_stay(origin, sample_dir):
    table = io.BytesIO()
    pq.write_table(pa.table({"v": [1]}), table)
    card = {
        "configs": [
            {"config_name": "a", "data_files": ["data/one/*.parquet", "data/*.parquet"]},
            {"config_name": "b", "data_files": "data/**/x-*"},
            {"config_name": "c", "data_files": "./data/two/z.parquet"},
        ]
    }
    names = [f"data/{name}.parquet" for name in ("one/x-1", "one/y-1", "one/deep/x-2", "x-3", "two/z")]
    origin.put_tree(
        REPO,
        {"README.md": f"---\n{yaml.safe_dump(card)}---\n", **dict.fromkeys(names, table.getvalue())},
    )
    push_bench(origin, sample_dir, volumes="none", delete_configs=["a"])
    assert [name for name in names if name not in files_of(origin)] == ["data/one/y-1.parquet"]
    push_bench(origin, sample_dir, volumes="none", limit=2, delete_configs=["c"])
    assert [name for name in names if name not in files_of(origin)] == [names[1], names[4]]


def test_files_beside_are_shared_out_by_their_size(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "on_error": "null", "splits": "test", "volumes": "files"}
    assert len(convert(tmp_path, "scans", shard_bytes=5000, **options).files) == 2


KILLED = """
import os, sys
from reasonknee_hf.publish.convert import convert
replace = os.replace
def killed(source, target):
    if str(target).endswith(".nii.gz"):
        os._exit(9)
    return replace(source, target)
os.replace = killed
convert(sys.argv[2], "scans", source=sys.argv[1], on_error="null", volumes="files")
"""


def test_unfinished_files_beside_are_cleared_away(sample_dir, tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(sample_dir), str(tmp_path)], check=False)
    assert killed.returncode == 9
    assert len(list(tmp_path.rglob(".*.part"))) == 1
    convert(tmp_path, "scans", source=str(sample_dir), on_error="null", volumes="files")
    assert list(tmp_path.rglob(".*.part")) == []


def test_volumes_of_a_push_of_scans_do_not_fill_the_disk(origin, sample_dir, monkeypatch):
    monkeypatch.setattr(repository, "COMMIT_FILES", 1)
    held = []
    upload = repository.Repository.upload

    def watched(self, names):
        upload(self, names)
        held.append(sum(1 for path in self._staging.rglob("*.parquet")))

    monkeypatch.setattr(repository.Repository, "upload", watched)
    push_bench(origin, sample_dir, config="scans", shard_bytes=1000)
    assert max(held) == 1
    assert len(held) > 3


def test_splits_without_rows_do_not_travel(origin, sample_dir):
    patient = open_release(str(sample_dir)).scans("test")[0].patient_id
    for _ in range(2):
        push_bench(origin, sample_dir, config="full", patients=patient)
        assert len(origin.store.repos[REPO].commits) - 1 == 1
    tables = [name for name in files_of(origin) if name.endswith(".parquet")]
    assert {name.split("/")[1].split("-")[0] for name in tables} == {"test"}
    assert all(pq.read_metadata(io.BytesIO(files_of(origin)[name])).num_rows for name in tables)


def test_deleting_a_config_takes_its_volumes_and_crops_along(origin, sample_dir):
    push_bench(origin, sample_dir, config="full", splits="test", crops=True, limit=5)
    assert {name.split("/")[0] for name in files_of(origin) if "/" in name} == {
        "full",
        "full_volumes",
        "full_crops",
    }
    push_bench(origin, sample_dir, volumes="none", delete_configs=["full"])
    assert [name for name in files_of(origin) if "full" in name] == []
    assert list(configs_of(files_of(origin)["README.md"])) == ["bench"]
    assert "full" not in {one["@id"] for one in json.loads(files_of(origin)["croissant.json"])["recordSet"]}


@pytest.mark.parametrize(
    ("name", "message"), [("nope", "no config 'nope'.*bench"), ("bench", "pushed and deleted")]
)
def test_configs_that_cannot_be_deleted_are_named(origin, sample_dir, name, message):
    push_bench(origin, sample_dir, volumes="none")
    before = files_of(origin)
    with pytest.raises(PublishError, match=message):
        push_bench(origin, sample_dir, volumes="none", limit=3, delete_configs=[name])
    assert files_of(origin) == before


def test_of_two_pushes_of_one_config_one_says_so(origin, sample_dir, monkeypatch):
    monkeypatch.setattr(repository, "COMMIT_FILES", 1)
    barrier, finish, failures = threading.Barrier(2), repository.Repository.commit, []

    def commit(self, operations, message, parent=None):
        if parent is not None and not getattr(self, "met", False):
            self.met = True
            barrier.wait(60)  # both have sent their tables and merged the card of the same commit
        return finish(self, operations, message, parent)

    def run(category: str) -> None:
        try:
            push_bench(origin, sample_dir, categories=category)
        except Exception as error:
            failures.append(error)

    monkeypatch.setattr(repository.Repository, "commit", commit)
    threads = [threading.Thread(target=run, args=(name,)) for name in ("BML", "Meniscus")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    (error,) = failures
    assert isinstance(error, PublishError)
    assert "another push wrote this config" in str(error)
