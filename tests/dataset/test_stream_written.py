"""Streams that stock code writes: the bytes of volumes travel, not paths of this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import datasets
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import in_fresh_process

import reasonknee_hf
from reasonknee_hf.errors import OptionError, VolumeMissingError

pytestmark = pytest.mark.floor


needs_parquet = pytest.mark.skipif(
    not hasattr(datasets.IterableDataset, "push_to_hub"), reason="this version of datasets writes no streams"
)


@pytest.fixture(scope="module")
def scans(sample_dir):
    return partial(reasonknee_hf.load_dataset, "scans", split="test", streaming=True, source=str(sample_dir))


def check_bytes(table, scans):
    rows = {row["scan_id"]: row for row in scans()}
    written = table.select(["scan_id", "image", "mask"]).to_pylist()
    assert len(written) == len(rows) > 0
    for row in written:
        for column in ("image", "mask"):
            stored, volume = row[column], rows[row["scan_id"]][column]
            assert stored["path"] == Path(volume.path).name
            again = scans().features[column].decode_example(stored)
            assert (again.array() == volume.array()).all()


@needs_parquet
def test_to_parquet_holds_the_bytes(scans, tmp_path):
    chains = {
        "plain": scans(),
        "filtered": scans().filter(lambda row: row["image"] is not None),
        "columns": scans().select_columns(["scan_id", "image", "mask"]),
        "mapped": scans().map(lambda row: {"visit": row["visit"].lower()}, features=scans().features),
    }
    for name, ds in chains.items():
        ds.to_parquet(str(tmp_path / f"{name}.parquet"))
        check_bytes(pq.read_table(tmp_path / f"{name}.parquet"), scans)
    assert all(row["image"].path for row in scans())


@needs_parquet
def test_shards_whose_scans_have_no_records_are_files_without_rows(sample_dir, tmp_path):
    ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=str(sample_dir))
    shards = [ds.select_columns(["id", "image"]).shard(ds.num_shards, n) for n in range(ds.num_shards)]
    for number, shard in enumerate(shards):
        shard.to_parquet(str(tmp_path / f"{number}.parquet"))
    tables = [pq.read_table(tmp_path / f"{number}.parquet") for number in range(ds.num_shards)]
    assert 0 in [table.num_rows for table in tables]
    features = [datasets.Features.from_arrow_schema(table.schema) for table in tables]
    assert all(one == features[0] for one in features)
    assert features[0]["image"]._type == "Nifti"
    assert pa.concat_tables(tables)["id"].to_pylist() == [row["id"] for row in ds]


@needs_parquet
def test_what_cannot_be_embedded_is_one_error_and_nothing_is_written(scans, tmp_path):
    target = tmp_path / "rows.parquet"
    with pytest.raises(OptionError, match="features="):
        scans().map(lambda row: {"n": 1}).to_parquet(str(target))
    absent = scans().map(break_path, features=scans().features)
    with pytest.raises(VolumeMissingError):
        absent.to_parquet(str(target))
    assert not target.exists()


@needs_parquet
def test_a_pushed_stream_loads_anywhere(origin, scans, sample_dir, tmp_path):
    script = """
    import sys
    import reasonknee_hf
    rows = reasonknee_hf.load_dataset("scans", split="test", streaming=True, source=sys.argv[1])
    rows.filter(lambda row: True).push_to_hub("me/stream", split="test", token="hf_x")
    """
    home = str(tmp_path / "home")
    in_fresh_process(script, tmp_path, str(sample_dir), HF_ENDPOINT=origin.url, HF_HOME=home)
    files = origin.store.repos["me/stream"].at("main").files
    written = [bytes(file.content) for name, file in files.items() if name.endswith(".parquet")]
    tables = [pq.read_table(pa.BufferReader(data)) for data in written]
    assert all(len(table) for table in tables)  # no shard is empty
    check_bytes(pa.concat_tables(tables), scans)


@needs_parquet
def test_a_stream_with_shards_without_rows_is_pushed(origin, sample_dir, tmp_path):
    script = """
    import sys
    import datasets
    import reasonknee_hf
    rows = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=sys.argv[1])
    rows.select_columns(["id", "image"]).push_to_hub("me/empty", split="train", token="hf_x")
    read = datasets.load_dataset("me/empty", split="train", streaming=True, token="hf_x")
    assert read.features["image"]._type == "Nifti"
    assert [row["id"] for row in read.select_columns(["id"])] == [row["id"] for row in rows]
    """
    home = str(tmp_path / "home")
    in_fresh_process(script, tmp_path, str(sample_dir), HF_ENDPOINT=origin.url, HF_HOME=home)


def break_path(row):
    return {"image": reasonknee_hf.KneeVolume("/nowhere/volume.nii.gz")}


@pytest.fixture(scope="module")
def prepared(sample_dir):
    return reasonknee_hf.load_dataset("scans", split="test", source=str(sample_dir))


def test_what_is_saved_to_disk_opens_again(prepared, tmp_path):
    prepared.save_to_disk(str(tmp_path / "saved"))
    axes = prepared.features["image"].axes
    again = datasets.load_from_disk(str(tmp_path / "saved"))
    for column, feature in {
        "image": reasonknee_hf.VolumeFeature(axes=axes),
        "mask": reasonknee_hf.VolumeFeature(mask=True, axes=axes),
    }.items():
        again = again.cast_column(column, feature)
    for row, read in zip(prepared, again, strict=True):
        for column in ("image", "mask"):
            assert (read[column].array() == row[column].array()).all()


@pytest.mark.parametrize("style", ["prepared", "stream"])
def test_the_stock_feature_reads_the_columns(prepared, scans, style):
    if not hasattr(datasets, "Nifti"):
        pytest.skip("this version of datasets has no Nifti")
    ds = prepared if style == "prepared" else scans()
    volume = next(iter(ds))
    opens_archives = tuple(int(part) for part in datasets.__version__.split(".")[:2]) >= (5, 1)
    for column in ("image", "mask") if opens_archives else ("image",):
        stock = next(iter(ds.cast_column(column, datasets.Nifti())))[column]
        codes = "".join(nibabel.aff2axcodes(stock.affine))
        assert (np.asanyarray(stock.dataobj) == volume[column].oriented(codes).array()).all()
