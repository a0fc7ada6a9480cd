"""What is written loads everywhere, holds what the release holds, and comes out the same by any executor."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import datasets
import fsspec
import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest
from support import files_below

from reasonknee_hf.errors import OptionError, PublishError, RecordError, VolumeMissingError
from reasonknee_hf.loading import load_dataset
from reasonknee_hf.opening import open_release
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.rows import published_record
from reasonknee_hf.sample import write_sample

READER = Path(__file__).with_name("plain_reader.py")
HAS_NIFTI = hasattr(datasets, "Nifti")
HAS_PILLOW = find_spec("PIL") is not None


@pytest.fixture(scope="module")
def clean_release(tmp_path_factory) -> Path:
    """A release of 6 scans; its irregular rows are accepted by `on_error="null"`."""
    return write_sample(tmp_path_factory.mktemp("release") / "r")


@pytest.fixture(scope="module")
def bench_folder(clean_release, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "knee"
    convert(out, "bench", source=str(clean_release), on_error="null", previews=HAS_PILLOW)
    return out


@pytest.fixture(scope="module")
def full_folder(clean_release, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("full") / "knee"
    convert(out, "full", source=str(clean_release), on_error="null")
    return out


def read_plainly(place: str, split: str, configs: list[str], home: Path, **env: str) -> dict:
    """What an interpreter without this package reads: config → how → rows."""
    done = subprocess.run(
        [sys.executable, str(READER), place, split, *configs],
        env={**os.environ, "HF_HOME": str(home), "PYTHONPATH": "", **env},
        capture_output=True, text=True, cwd=home, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def rows_of(release: Path, config: str, split: str) -> list[dict]:
    rows = load_dataset(
        config, split=split, streaming=True, source=str(release), on_error="null", masks=False
    )
    return [{k: v for k, v in row.items() if k not in ("image", "mask")} for row in rows]


def tables(folder: Path, config: str, split: str | None = None) -> list[Path]:
    return sorted((folder / config).glob(f"{split or ''}*.parquet"))


# --- loads for everyone ------------------------------------------------------------------------------------------


def told_volume(release, url: str | None) -> dict | None:
    if url is None:
        return None
    with fsspec.open(url) as file:
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress(file.read()))
    voxels = hashlib.sha256(np.asarray(image.get_fdata()).tobytes()).hexdigest()
    return {"voxels": voxels, "affine": image.affine.tolist()}


def test_loads_without_the_package(bench_folder, clean_release, tmp_path):
    # `Nifti` came with datasets 4.4; before, the same files load as the struct of bytes.
    configs = ["bench", "bench_volumes_bytes", *(["bench_volumes"] if HAS_NIFTI else [])]
    found = read_plainly(str(bench_folder), "test", configs, tmp_path)
    assert found["package"] is False
    release = open_release(str(clean_release))
    volumes = [
        {
            "scan_id": scan.scan_id,
            "image": told_volume(release, release.find_image(scan)),
            "mask": told_volume(release, release.find_mask(scan)),
        }
        for scan in release.scans("test")
    ]
    for way in ("streamed", "prepared"):
        rows = [
            {name: value for name, value in row.items() if name != "preview"} for row in found["bench"][way]
        ]
        assert rows == rows_of(clean_release, "bench", "test")
        for config in configs[1:]:
            assert [{name: row[name] for name in volumes[0]} for row in found[config][way]] == volumes
    assert "reasonknee" not in str(found["bench"]["features"]).lower()


def test_pandas_polars_and_duckdb(full_folder, clean_release):
    expected = rows_of(clean_release, "full", "train")
    ids = [row["id"] for row in expected]
    pattern = str(full_folder / "full" / "train-*.parquet")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(tables(full_folder, "full", "train")[0])
    assert frame["id"].tolist() == ids
    assert [list(box) if box is not None else None for box in frame["bbox"]] == [
        row["bbox"] for row in expected
    ]
    polars = pytest.importorskip("polars")
    assert polars.scan_parquet(pattern).select("id").collect()["id"].to_list() == ids
    assert polars.read_parquet(pattern)["grades"].to_list() == [row["grades"] for row in expected]
    duckdb = pytest.importorskip("duckdb")
    volumes = str(full_folder / "full_volumes" / "train-*.parquet")
    joined = duckdb.sql(
        f"select count(*), count(distinct v.scan_id), min(octet_length(v.image.bytes)) from '{pattern}' q "
        f"join '{volumes}' v using (scan_id)"
    ).fetchall()[0]
    assert joined[0] == len(ids)
    assert joined[1] == 3
    assert joined[2] > 1000


def test_the_files_load_on_their_own(bench_folder):
    """A table keeps its class labels and pictures without the card."""
    (table,) = tables(bench_folder, "bench")
    rows = datasets.load_dataset("parquet", data_files=str(table), split="train", streaming=True)
    assert rows.features["category"].names[3] == "Meniscus"
    assert not HAS_PILLOW or isinstance(rows.features["preview"], datasets.Image)


def test_declared_types_are_stock(bench_folder, full_folder):
    for path in [*tables(bench_folder, "*"), *tables(full_folder, "*")]:
        told = pq.read_schema(path).metadata[b"huggingface"].decode()
        kinds = {word.split('"')[0] for word in told.split('"_type": "')[1:]}
        assert kinds <= {"Value", "ClassLabel", "Image", "Nifti"}


# --- volumes -----------------------------------------------------------------------------------------------------


def test_volumes_cost_one_copy(full_folder, clean_release):
    release = open_release(str(clean_release))
    for split in ("train", "test"):
        stored = sum(path.stat().st_size for path in tables(full_folder, "full_volumes", split))
        rows = pq.read_table(tables(full_folder, "full_volumes", split)[0]).to_pylist()
        files = sum(len(row[c]["bytes"]) for row in rows for c in ("image", "mask") if row[c] is not None)
        assert (
            stored <= 1.01 * files + 6000
        )  # a schema and a footer; real volumes are 40 times larger than these
        by_id = {scan.scan_id: scan for scan in release.scans(split)}
        for row in rows:
            assert row["image"]["bytes"] == Path(release.find_image(by_id[row["scan_id"]])).read_bytes()
            assert row["image"]["path"] == Path(release.find_image(by_id[row["scan_id"]])).name


def test_no_path_of_this_machine_is_written(full_folder, bench_folder, clean_release):
    for folder in (full_folder, bench_folder):
        for name, content in files_below(folder).items():
            assert str(clean_release).encode() not in content, name
            assert str(Path.home()).encode() not in content, name


def test_volumes_as_files_beside_the_tables(clean_release, tmp_path):
    convert(tmp_path / "o", "bench", source=str(clean_release), on_error="null", volumes="files")
    (table,) = tables(tmp_path / "o", "bench_volumes")
    release = open_release(str(clean_release))
    rows = pq.read_table(table).to_pylist()
    for row, scan in zip(rows, release.scans("test"), strict=True):
        assert (tmp_path / "o" / row["image_file"]).read_bytes() == Path(
            release.find_image(scan)
        ).read_bytes()
        with release.fs.open(release.find_mask(scan)) as file:
            assert (tmp_path / "o" / row["mask_file"]).read_bytes() == file.read()


def test_volumes_by_reference_to_the_commit(origin, clean_release, tmp_path):
    files = files_below(clean_release)
    sha = origin.put_tree("me/release", files)
    convert(
        tmp_path / "o",
        "bench",
        source="me/release",
        endpoint=origin.url,
        on_error="null",
        volumes="reference",
    )
    (table,) = tables(tmp_path / "o", "bench_volumes")
    for row in pq.read_table(table).to_pylist():
        for url in (row["image_url"], row["mask_url"]):
            assert sha in url
            with fsspec.open(url) as file:
                assert file.read(2) == b"\x1f\x8b"
    assert sum(path.stat().st_size for path in tables(tmp_path / "o", "bench_volumes")) < 20_000


def test_a_missing_volume_is_one_clear_error(clean_release, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(clean_release, copy)
    scan = open_release(str(clean_release)).scans("test")[0]
    (copy / scan.image_filepath.removeprefix("../")).unlink()
    options = {"source": str(copy), "config": "scans", "splits": "test"}
    with pytest.raises(VolumeMissingError, match=rf"{scan.scan_id}.*images="):
        convert(tmp_path / "o", **options)
    convert(tmp_path / "null", **options, on_error="null")
    rows = pq.read_table(tables(tmp_path / "null", "scans")[0]).to_pylist()
    assert [row["image"] is None for row in rows] == [True, False]
    convert(tmp_path / "skip", **options, on_error="skip")
    assert pq.read_table(tables(tmp_path / "skip", "scans")[0]).num_rows == 1


# --- selection ---------------------------------------------------------------------------------------------------


def is_long(row):
    return len(row["answer"] or "") > 300


def test_selections(clean_release, tmp_path):
    everything = rows_of(clean_release, "full", "train")
    first = everything[0]
    cases = {
        "categories": (["BML"], lambda row: row["category"] == 0),
        "structures": ("patella", lambda row: row["structure"] == "patella"),
        "patients": (first["patient_id"], lambda row: row["patient_id"] == first["patient_id"]),
        "visits": ([first["visit"]], lambda row: row["visit"] == first["visit"]),
        "grades": ((2, 3), lambda row: any(g["grade"] in (2, 3) for g in row["grades"] or ())),
        "where": (is_long, is_long),
    }
    for number, (option, (value, keeps)) in enumerate(cases.items()):
        out = tmp_path / str(number)
        convert(
            out,
            "full",
            source=str(clean_release),
            splits="train",
            on_error="null",
            volumes="none",
            **{option: value},
        )
        found = [row["id"] for row in pq.read_table(tables(out, "full")[0]).to_pylist()]
        assert found == [row["id"] for row in everything if keeps(row)], option
        assert 0 < len(found) < len(everything), option
    out = tmp_path / "attribute"
    convert(
        out, "full", source=str(clean_release), splits="train", on_error="null", volumes="none", limit=5,
        grades={"size": 2},
    )  # fmt: skip
    wanted = [
        r["id"]
        for r in everything
        if {("size", 2)} & {(g["attribute"], g["grade"]) for g in r["grades"] or ()}
    ]
    assert [row["id"] for row in pq.read_table(tables(out, "full")[0]).to_pylist()] == wanted[:5]


def test_only_volumes_of_chosen_rows_travel(clean_release, tmp_path):
    done = convert(
        tmp_path / "o", "full", source=str(clean_release), splits="train", limit=3, on_error="null"
    )
    questions, volumes = done.configs
    assert (questions.rows, volumes.rows) == (3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": "nope"}, "Valid: full"),
        ({"splits": "nope"}, "Valid: train, validation, test"),
        ({"categories": "nope"}, "Valid: BML"),
        ({"volumes": "nope"}, "Valid: embed"),
        ({"limit": 0}, "at least 1"),
        ({"config": "scans", "categories": "BML"}, "has no columns to choose"),
        ({"grades": {"nope": 1}}, "Unknown attribute"),
    ],
)
def test_bad_options(clean_release, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        convert(tmp_path / "o", **{"source": str(clean_release), **options})
    assert not (tmp_path / "o").exists()


def test_nothing_selected_is_an_error(clean_release, tmp_path):
    with pytest.raises(PublishError, match="keeps no row"):
        convert(
            tmp_path / "o", "bench", source=str(clean_release), patients="1", on_error="null", volumes="none"
        )


def test_names_that_would_not_load_are_refused(clean_release, tmp_path):
    with pytest.raises(PublishError, match="'my_config' would"):
        convert(tmp_path / "o", "bench", name="my config", source=str(clean_release))
    assert not (tmp_path / "o").exists()


def test_a_row_that_does_not_fit_is_named(clean_release, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(clean_release, copy)
    array = copy / "data/generate_data/test.json"
    records = json.loads(array.read_text("utf-8"))
    records[3]["final_diagnosis"] = {"final_diagnosis": {"patella_medial_BML": {"size": "two"}}}
    array.write_text(json.dumps(records), "utf-8")
    options = {"source": str(copy), "splits": "test", "volumes": "none"}
    with pytest.raises(RecordError, match=r"row \S+ \(data/generate_data/.*byte \d+\)"):
        convert(tmp_path / "o", "full", **options)
    assert tables(tmp_path / "o", "full") == []
    convert(tmp_path / "skip", "full", **options, on_error="skip")
    convert(tmp_path / "null", "full", **options, on_error="null")
    assert pq.read_table(tables(tmp_path / "skip", "full")[0]).num_rows == len(records) - 1
    row = pq.read_table(tables(tmp_path / "null", "full")[0]).to_pylist()[3]
    assert row["grades"] is None
    assert "two" in row["final_diagnosis"]


# --- records as published ----------------------------------------------------------------------------------------


def test_records_equal_the_published_json(clean_release, tmp_path):
    convert(tmp_path / "o", "records", source=str(clean_release), volumes="none")
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        published = json.loads((clean_release / "data/generate_data" / f"{name}.json").read_text("utf-8"))
        rows = pq.read_table(tables(tmp_path / "o", "records", split)[0]).to_pylist()
        assert [published_record(row) for row in rows] == published


# --- more than one machine ---------------------------------------------------------------------------------------


def outcome(out: Path) -> dict[str, bytes]:
    return files_below(out)


def test_any_executor_gives_the_same_bytes(clean_release, tmp_path, full_folder):
    options = {"source": str(clean_release), "on_error": "null"}
    with ProcessPoolExecutor(2) as pool:
        convert(tmp_path / "p" / "knee", "full", executor=pool, **options)
    with ThreadPoolExecutor(2) as pool:
        convert(tmp_path / "t" / "knee", "full", executor=pool, **options)
    assert outcome(tmp_path / "p" / "knee") == outcome(full_folder)
    assert outcome(tmp_path / "t" / "knee") == outcome(full_folder)


def test_dask_cluster_gives_the_same_bytes(clean_release, tmp_path, full_folder):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        convert(
            tmp_path / "d" / "knee", "full", executor=executor, source=str(clean_release), on_error="null"
        )
    assert outcome(tmp_path / "d" / "knee") == outcome(full_folder)


def test_a_filter_that_cannot_travel_is_named(clean_release, tmp_path):
    with ProcessPoolExecutor(1) as pool, pytest.raises(OptionError, match="where="):
        convert(
            tmp_path / "o", "bench", source=str(clean_release), on_error="null", where=lambda row: True, executor=pool,
            volumes="none",
        )  # fmt: skip


def test_only_missing_shards_are_made_again(clean_release, tmp_path, full_folder, monkeypatch):
    from reasonknee_hf.publish import tasks

    out = tmp_path / "knee"
    shutil.copytree(full_folder, out)
    lost = tables(out, "full_volumes", "train") + tables(out, "full", "test")
    for path in lost:
        path.unlink()
    (out / "full" / ".train-00000-of-00001-aaaaaaaa.unfinished").mkdir()
    made = []
    run = tasks.run_task
    monkeypatch.setattr(tasks, "run_task", lambda task: made.append((task.config, task.split)) or run(task))
    convert(out, "full", source=str(clean_release), on_error="null")
    assert made == [("full", "test"), ("full_volumes", "train")]
    shutil.rmtree(out / "full" / ".train-00000-of-00001-aaaaaaaa.unfinished")
    assert outcome(out) == outcome(full_folder)


def test_other_options_give_other_files(clean_release, tmp_path):
    out = tmp_path / "o"
    options = {"source": str(clean_release), "on_error": "null", "volumes": "none"}
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


def test_a_killed_conversion_goes_on(clean_release, tmp_path, full_folder):
    out = tmp_path / "knee"
    for survivors in (2, 1):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(clean_release), str(out), str(survivors)], check=False
        )
        assert done.returncode == 9
        assert not (out / "README.md").exists()
    assert len(list(out.glob("*/*.parquet"))) == 3
    convert(out, "full", source=str(clean_release), on_error="null")
    assert outcome(out) == outcome(full_folder)
