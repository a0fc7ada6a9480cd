"""Any place that fsspec writes to gets the same files as a folder, is gone on with, and is a source again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import uuid
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from publishing import rows_of
from support import files_below

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import EndpointError, ExtraMissingError, OptionError, PublishError, ReasonKneeError
from reasonknee_hf.publish import tasks
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.places import Place
from reasonknee_hf.publish.push import push
from reasonknee_hf.publish.viewer import check_card


@pytest.fixture(scope="session")
def s3():
    """A bucket on a server that speaks S3, for this process and those that it starts."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("knees")
        yield "s3://knees"
    server.stop()


@pytest.fixture(scope="session")
def gs():
    """A bucket on a server that speaks the JSON API of GCS, for this process."""
    # Said before it is imported: else it asks by gRPC, which the server lacks.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("localhost", port, in_memory=True, default_bucket="knees")
    server.start()
    url = f"http://localhost:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon", "project": "knees", "endpoint_url": url})
        yield "gs://knees"
    server.stop()


@pytest.fixture(params=["memory", "file", "s3", "gs"])
def place(request, tmp_path):
    """A URL of a place of each kind that nothing lies in."""
    if request.param in ("s3", "gs"):
        return f"{request.getfixturevalue(request.param)}/{uuid.uuid4().hex}/knee"
    return f"file://{tmp_path}/knee" if request.param == "file" else f"memory://{uuid.uuid4().hex}/knee"


def files_at(place: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(place)
    fs.invalidate_cache()
    return {path[len(root) + 1 :]: fs.cat_file(path) for path in fs.find(root)}


def options_of(sample_dir: Path, **given) -> dict:
    return {"source": str(sample_dir), "on_error": "null", **given}


def test_every_place_gets_the_files_of_a_folder(place, sample_dir, full_folder, monkeypatch):
    done = convert(place, "full", **options_of(sample_dir))
    assert done.stale == ()
    assert files_at(place) == files_below(full_folder)
    assert [one for one in check_card(place) if one.blocking] == []
    rows = load_dataset("full", split="test", streaming=True, source=place, on_error="null")
    found = [{k: v for k, v in row.items() if k not in ("image", "mask")} for row in rows]
    assert found == rows_of(sample_dir, "full", "test")
    seen = [row for row in load_dataset("scans", split="test", streaming=True, source=place) if row["image"]]
    assert seen
    assert seen[0]["image"].shape
    # What lies there is not made again; what was lost or cut is.
    made = []
    run = tasks.run_task
    monkeypatch.setattr(tasks, "run_task", lambda task: made.append((task.config, task.split)) or run(task))
    convert(place, "full", **options_of(sample_dir))
    assert made == []
    fs, root = fsspec.core.url_to_fs(place)
    lost, cut = (
        next(name for name in done.files if name.startswith(one)) for one in ("full/tr", "full_volumes/te")
    )
    fs.rm_file(f"{root}/{lost}")
    fs.pipe_file(f"{root}/{cut}", files_at(place)[cut][:-1])
    convert(place, "full", **options_of(sample_dir))
    assert sorted(made) == [("full", "train"), ("full_volumes", "test")]
    assert files_at(place) == files_below(full_folder)


def test_volumes_as_files_lie_beside_the_tables_everywhere(place, sample_dir, tmp_path):
    given = options_of(sample_dir, volumes="files", splits="test")
    convert(tmp_path / "f" / "knee", "bench", **given)
    convert(place, "bench", **given)
    assert files_at(place) == files_below(tmp_path / "f" / "knee")
    rows = load_dataset("bench", split="test", streaming=True, source=place, on_error="null")
    assert any(row["image"] is not None and row["image"].shape for row in rows)


def test_workers_need_no_disk_of_ours(s3, sample_dir, full_folder, tmp_path, monkeypatch):
    """Each works in a temporary folder of its own, and leaves nothing there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    place = f"{s3}/{uuid.uuid4().hex}/knee"
    with ProcessPoolExecutor(2) as pool:
        convert(place, "full", executor=pool, **options_of(sample_dir))
    assert files_at(place) == files_below(full_folder)
    assert list(tmp_path.rglob("*.parquet")) == []


class OneProcessATask(Executor):
    """As engines do: each task in a process of its own; those of some calls die."""

    def __init__(self, dying: int) -> None:
        self.dying, self.pools = dying, []

    def submit(self, function, /, *args, **kwargs) -> Future:
        self.pools.append(ProcessPoolExecutor(1))
        self.dying -= 1
        return self.pools[-1].submit(*((os._exit, 9) if self.dying >= 0 else (function, *args)), **kwargs)

    def shutdown(self, wait=True, *, cancel_futures=False) -> None:
        for pool in self.pools:
            pool.shutdown()


@pytest.mark.parametrize("dying", [1, 9])
def test_tasks_whose_process_died_are_repeated(sample_dir, tmp_path, dying, caplog):
    given = options_of(sample_dir, volumes="none", splits="test", limit=2)
    convert(tmp_path / "a" / "knee", "bench", **given)
    with OneProcessATask(dying) as executor:
        if dying > 3:
            with pytest.raises(PublishError, match="died"):
                convert(tmp_path / "b" / "knee", "bench", executor=executor, **given)
            assert len(executor.pools) == 3
            return
        convert(tmp_path / "b" / "knee", "bench", executor=executor, **given)
    assert files_below(tmp_path / "a" / "knee") == files_below(tmp_path / "b" / "knee")
    assert "died" in caplog.text


def dies_once(row) -> bool:
    """A filter that takes its process along, the first time that it is asked."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(os.environ["DIES_ONCE"], os.O_CREAT | os.O_EXCL))
        os._exit(9)
    return True


def test_a_worker_of_dask_that_dies_costs_nothing_but_time(s3, sample_dir, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    given = options_of(sample_dir, volumes="none", splits="test", where=dies_once)
    monkeypatch.setenv("DIES_ONCE", str(tmp_path / "died"))
    place = f"{s3}/{uuid.uuid4().hex}/knee"
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        convert(place, "bench", executor=client.get_executor(), **given)
    assert (tmp_path / "died").exists()
    convert(tmp_path / "knee", "bench", **given)
    assert files_at(place) == files_below(tmp_path / "knee")


def test_workers_that_do_not_see_the_place_are_said(sample_dir):
    place = f"memory://{uuid.uuid4().hex}/knee"
    with ProcessPoolExecutor(1) as pool, pytest.raises(PublishError, match="workers"):
        convert(place, "bench", executor=pool, **options_of(sample_dir, volumes="none", limit=2))
    with ThreadPoolExecutor(1) as threads:
        convert(place, "bench", executor=threads, **options_of(sample_dir, volumes="none", limit=2))


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("nothing://b/knee", OptionError, "nothing://b/knee"),
        ("oci://b/knee", ExtraMissingError, "package"),
        ("hf://datasets/me/knee", PublishError, "push"),
        ("https://example.org/knee", ReasonKneeError, "knee"),
    ],
)
def test_places_that_cannot_be_written_are_one_error_first(
    sample_dir, tmp_path, monkeypatch, place, kind, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "run_task", lambda task: pytest.fail("made"))
    with pytest.raises(kind, match=message):
        convert(place, "bench", **options_of(sample_dir))
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_not_there_is_one_error_first(s3, sample_dir, monkeypatch):
    monkeypatch.setattr(tasks, "run_task", lambda task: pytest.fail("made"))
    with pytest.raises(EndpointError, match="s3://absent/knee"):
        convert("s3://absent/knee", "bench", **options_of(sample_dir))
    assert not fsspec.filesystem("s3").exists("absent")


def test_a_home_and_a_folder_from_here_are_what_they_are_elsewhere(sample_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    given = options_of(sample_dir, volumes="none", limit=2)
    for out in ("~/knee", "below/knee"):
        convert(out, "bench", **given)
        assert convert(out, "bench", **given).configs[0].rows == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below", "home"]
    assert files_below(tmp_path / "home" / "knee") == files_below(tmp_path / "below" / "knee")


def test_push_says_where_other_places_are_written(sample_dir):
    for place in ("s3://b/knee", "buckets/me/b"):
        with pytest.raises(PublishError, match=r"convert .*writes to"):
            push(place, "bench", source=str(sample_dir))


def test_what_others_put_there_stays(place, sample_dir):
    here = Place(place)
    here.write("README.md", b"---\nlicense: mit\n---\n# Theirs\n")
    here.write("notes.txt", b"theirs")
    convert(place, "bench", **options_of(sample_dir, volumes="none", limit=2))
    found = files_at(place)
    assert found["notes.txt"] == b"theirs"
    assert b"# Theirs\n" in found["README.md"]
    here.write("bench/test-0.parquet", b"theirs")
    done = convert(place, "bench", **options_of(sample_dir, volumes="none", limit=1))
    assert done.stale
    assert set(done.stale) <= set(found)
    again = convert(place, "bench", remove_stale=True, **options_of(sample_dir, volumes="none", limit=1))
    assert again.stale == ()
    left = files_at(place)
    assert not set(done.stale) & set(left)
    assert left["bench/test-0.parquet"] == b"theirs"
    assert {json.loads(left[name])["config"] for name in left if name.startswith("bench/reason")} == {"bench"}


def test_rows_of_a_place_are_shuffled_globally_and_resume_exactly(place, sample_dir, full_folder):
    """One shard with a window of all scans mixes the rows of all: any may come next, and a state leads to that one."""
    convert(place, "full", **options_of(sample_dir, volumes="none"))

    def stream(source, seed=7):
        how = {"shuffle": seed, "window": 10**6, "num_shards": 1, "masks": False, "on_error": "null"}
        return load_dataset("full", split="train", streaming=True, source=source, **how)

    rows = stream(place)
    ids = [row["id"] for row in rows]
    assert sorted(ids) == sorted(row["id"] for row in rows_of(sample_dir, "full", "train"))
    scans = [one.rpartition("_")[0] for one in ids]
    changes = sum(one != other for one, other in itertools.pairwise(scans))
    assert changes > len(ids) / 2  # by windows of one scan it would be the number of scans
    assert ids == [row["id"] for row in stream(str(full_folder))]
    assert ids != [row["id"] for row in stream(place, 8)]
    for stop in (1, 40, len(ids) - 3):
        going = iter(rows)
        for _ in range(stop):
            next(going)
        state = rows.state_dict()
        other = stream(place)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert [row["id"] for row in other] == ids[stop:]
