"""What is written loads everywhere, holds what the release holds, and comes out the same by any executor."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import datasets
import fsspec
import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest
from publishing import HAS_NIFTI, HAS_PILLOW, read_plainly, rows_of, tables, with_names
from support import files_below

from reasonknee_hf.errors import OptionError, PublishError, RecordError, VolumeMissingError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.question_rows import _json_writer, published_record
from reasonknee_hf.publish.row_selection import Selection

# --- loads for everyone ------------------------------------------------------------------------------------------


def told_volume(release, url: str | None) -> dict | None:
    if url is None:
        return None
    with fsspec.open(url) as file:
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress(file.read()))
    voxels = hashlib.sha256(np.asarray(image.get_fdata()).tobytes()).hexdigest()
    return {"voxels": voxels, "affine": image.affine.tolist()}


def test_loads_without_the_package(bench_folder, sample_dir, tmp_path):
    # `Nifti` came with datasets 4.4; before, the same files load as the struct of bytes.
    configs = ["bench", "bench_volumes_bytes", *(["bench_volumes"] if HAS_NIFTI else [])]
    found = read_plainly(str(bench_folder), "test", configs, tmp_path)
    assert found["package"] is False
    release = open_release(str(sample_dir))
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
        assert rows == with_names(rows_of(sample_dir, "bench", "test"), "bench")
        for config in configs[1:]:
            assert [{name: row[name] for name in volumes[0]} for row in found[config][way]] == volumes
    assert "reasonknee" not in str(found["bench"]["features"]).lower()


def test_pandas_polars_and_duckdb(full_folder, sample_dir):
    expected = rows_of(sample_dir, "full", "train")
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


def test_the_join_of_the_card_runs(full_folder, sample_dir, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    (code,) = re.findall(r"```sql\n(.*?)```", (full_folder / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(full_folder.parent)
    ((scan_id, prompt, image),) = duckdb.sql(code).fetchall()
    row = next(
        one
        for one in rows_of(sample_dir, "full", "train")
        if (one["scan_id"], one["prompt"]) == (scan_id, prompt)
    )
    assert image["bytes"][:2] == b"\x1f\x8b"
    assert image["path"].startswith(row["study"])


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


def test_volumes_cost_one_copy(full_folder, sample_dir):
    release = open_release(str(sample_dir))
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


def test_no_path_of_this_machine_is_written(full_folder, bench_folder, sample_dir):
    for folder in (full_folder, bench_folder):
        for name, content in files_below(folder).items():
            assert str(sample_dir).encode() not in content, name
            assert str(Path.home()).encode() not in content, name


def test_volumes_as_files_beside_the_tables(sample_dir, tmp_path):
    convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", volumes="files")
    (table,) = tables(tmp_path / "o", "bench_volumes")
    release = open_release(str(sample_dir))
    rows = pq.read_table(table).to_pylist()
    for row, scan in zip(rows, release.scans("test"), strict=True):
        assert (tmp_path / "o" / row["image_file"]).read_bytes() == Path(
            release.find_image(scan)
        ).read_bytes()
        with release.fs.open(release.find_mask(scan)) as file:
            assert (tmp_path / "o" / row["mask_file"]).read_bytes() == file.read()


def test_volumes_by_reference_to_the_commit(origin, sample_dir, tmp_path):
    files = files_below(sample_dir)
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


def test_a_missing_volume_is_one_clear_error(sample_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sample_dir, copy)
    scan = open_release(str(sample_dir)).scans("test")[0]
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


def test_selections(sample_dir, tmp_path):
    everything = rows_of(sample_dir, "full", "train")
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
            source=str(sample_dir),
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
        out, "full", source=str(sample_dir), splits="train", on_error="null", volumes="none", limit=5,
        grades={"size": 2},
    )  # fmt: skip
    wanted = [
        r["id"]
        for r in everything
        if {("size", 2)} & {(g["attribute"], g["grade"]) for g in r["grades"] or ()}
    ]
    assert [row["id"] for row in pq.read_table(tables(out, "full")[0]).to_pylist()] == wanted[:5]


def test_only_volumes_of_chosen_rows_travel(sample_dir, tmp_path):
    done = convert(tmp_path / "o", "full", source=str(sample_dir), splits="train", limit=3, on_error="null")
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
        ({"grades": 2.5}, "not a whole number"),
        ({"grades": ["2"]}, "not a whole number"),
        ({"grades": True}, "not a whole number"),
        ({"limit": 2.5}, "not a whole number"),
        ({"where": "text"}, "no function"),
        ({"frames": -1}, "frames=-1"),
        ({"crops": True, "crop_margin": float("nan")}, "crop_margin=nan"),
        ({"crops": True, "crop_margin": float("inf")}, "crop_margin=inf"),
        ({"crops": True, "crop_margin": -3}, "crop_margin=-3"),
    ],
)
def test_bad_options(sample_dir, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        convert(tmp_path / "o", **{"source": str(sample_dir), **options})
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("option", "given", "meant"),
    [
        ("grades", np.int64(2), (2,)),
        ("grades", np.array([3, 2]), (2, 3)),
        ("grades", np.array(2), (2,)),
        ("grades", {"size": {2, 3}}, {"size": (2, 3)}),
        ("grades", {"size": np.int8(2)}, {"size": (2,)}),
        ("limit", np.int64(3), 3),
        ("patients", 9000001, ("9000001",)),
        ("patients", np.array([9000001]), ("9000001",)),
    ],
)
def test_numbers_of_any_kind_are_taken(option, given, meant):
    selection = Selection(**{option: given})
    assert getattr(selection, option) == meant
    assert selection.describe() == Selection(**{option: meant}).describe()


def fails(row):
    return 1 / 0


def test_a_filter_that_fails_names_the_row(sample_dir, tmp_path):
    first = rows_of(sample_dir, "bench", "test")[0]["id"]
    with pytest.raises(OptionError, match=rf"where= failed for row {first}: ZeroDivisionError"):
        convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", volumes="none", where=fails)


def test_nothing_selected_is_an_error(sample_dir, tmp_path):
    with pytest.raises(PublishError, match="keeps no row"):
        convert(
            tmp_path / "o", "bench", source=str(sample_dir), patients="1", on_error="null", volumes="none"
        )


def test_names_that_would_not_load_are_refused(sample_dir, tmp_path):
    with pytest.raises(PublishError, match="'my_config' would"):
        convert(tmp_path / "o", "bench", name="my config", source=str(sample_dir))
    assert not (tmp_path / "o").exists()


def test_a_row_that_does_not_fit_is_named(sample_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sample_dir, copy)
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


def test_records_equal_the_published_json(sample_dir, tmp_path):
    convert(tmp_path / "o", "records", source=str(sample_dir), volumes="none")
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        published = json.loads((sample_dir / "data/generate_data" / f"{name}.json").read_text("utf-8"))
        rows = pq.read_table(tables(tmp_path / "o", "records", split)[0]).to_pylist()
        assert [published_record(row) for row in rows] == published


_ODD = {"a": [1, float("nan"), None], "é": {"big": 2**70, "inf": float("-inf")}, "half": "\ud800", "null": ""}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "value", [_ODD, *({key: value} for key, value in _ODD.items()), [], 1.5, None, "null"]
)
def test_any_diagnosis_comes_back_as_json_reads_it(value, fast, monkeypatch):
    if fast:
        pytest.importorskip("orjson")
    else:
        monkeypatch.setitem(sys.modules, "orjson", None)
    text = _json_writer()(value)
    text.encode()  # Arrow takes it
    assert repr(json.loads(text)) == repr(value)


def test_a_diagnosis_is_the_same_text_with_and_without_a_faster_writer(monkeypatch):
    pytest.importorskip("orjson")
    value = {"bounding_box": [1, 2, 3.5], 'é \\ "': {"size": 2, "none": None, "true": True}}
    fast = _json_writer()(value)
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert _json_writer()(value) == fast


@pytest.mark.parametrize("limit", [None, 1, 7, 10_000])
def test_records_of_some_patients_up_to_a_limit(sample_dir, tmp_path, limit):
    published = json.loads((sample_dir / "data/generate_data/train.json").read_text("utf-8"))
    patients = [record["image"].split("/")[3] for record in published]
    wanted = patients[len(patients) // 2]
    expected = [record for record, patient in zip(published, patients, strict=True) if patient == wanted]
    assert 7 < len(expected) < len(published)
    convert(
        tmp_path / "o", "records", source=str(sample_dir), volumes="none",
        splits="train", patients=wanted, limit=limit,
    )  # fmt: skip
    rows = pq.read_table(tables(tmp_path / "o", "records")[0]).to_pylist()
    assert [published_record(row) for row in rows] == expected[:limit]


def test_the_words_of_load_dataset_choose_the_same_rows(sample_dir, tmp_path):
    from reasonknee_hf import load_dataset

    source, scan = str(sample_dir), open_release(str(sample_dir)).scans("train")[0].scan_id
    for number, chosen in enumerate(
        ({"questions": [5, 7]}, {"scans": scan}, {"fraction": 0.5, "questions": 1})
    ):
        out = tmp_path / str(number)
        convert(out, "full", source=source, on_error="null", volumes="none", masks=False, **chosen)
        written = {row["id"] for file in tables(out, "full") for row in pq.read_table(file).to_pylist()}
        parts = load_dataset(
            "full", streaming=True, source=source, on_error="null", masks=False, prefetch=False, **chosen
        )
        assert written == {row["id"] for part in parts.values() for row in part} != set()
