"""The column type: stock storage, lazy values, every way a table travels."""

from __future__ import annotations

import pickle
from pathlib import Path

import datasets
import fsspec
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, IterableDataset, Value
from datasets.table import embed_table_storage
from volume_files import gzip_bytes, image, voxels, write

from reasonknee_hf.errors import OptionError, PublishError, VolumeMissingError, VolumeTypeError
from reasonknee_hf.volumes.feature import VolumeFeature
from reasonknee_hf.volumes.volume import KneeVolume

STOCK = getattr(datasets, "Nifti", None)
needs_stock = pytest.mark.skipif(STOCK is None, reason="this version of datasets has no Nifti feature")


@pytest.fixture
def volume_file(tmp_path):
    return write(tmp_path / "9000001" / "00M" / "scan.nii.gz", voxels())


@pytest.fixture
def features():
    return Features(
        {"id": Value("string"), "image": VolumeFeature(), "mask": VolumeFeature(mask=True, labels={"a": 1})}
    )


@pytest.fixture
def rows(volume_file):
    return [
        {"id": "0", "image": str(volume_file), "mask": str(volume_file)},
        {"id": "1", "image": None, "mask": None},
    ]


def check(row, expected):
    assert isinstance(row["image"], KneeVolume)
    np.testing.assert_array_equal(row["image"].array(), np.moveaxis(expected, -1, 0))
    assert row["mask"].mask
    assert not row["image"].mask


def test_map_style_rows_decode_lazily(rows, features):
    dataset = Dataset.from_list(rows, features=features)
    check(dataset[0], voxels())
    assert dataset[1]["image"] is None
    assert dataset[0]["mask"].structure("a").dtype == bool


def test_decoding_reads_nothing(features):
    dataset = Dataset.from_list([{"id": "0", "image": "/nowhere/a.nii.gz", "mask": None}], features=features)
    assert dataset[0]["image"].path == "/nowhere/a.nii.gz"


def test_streaming_rows_decode_lazily(rows, features):
    stream = IterableDataset.from_generator(lambda: iter(rows), features=features)
    first, second = list(stream)
    check(first, voxels())
    assert second["image"] is None


def test_map_that_reads_voxels_keeps_the_column(rows, features):
    dataset = Dataset.from_list(rows[:1], features=features)
    mapped = dataset.map(lambda row: {"top": int(row["image"].array().max())})
    assert mapped[0]["top"] == voxels().max()
    check(mapped[0], voxels())
    assert isinstance(mapped.features["image"], VolumeFeature)


@pytest.mark.parametrize("batched", [False, True])
def test_map_may_put_something_else_in_the_place_of_a_volume(rows, features, batched):
    pixels = np.zeros((2, 3, 4), np.uint8)
    dataset = Dataset.from_list(rows[:1], features=features)
    mapped = dataset.map(lambda row: {"image": [pixels] if batched else pixels}, batched=batched)
    assert mapped[0]["image"] == pixels.tolist()
    assert mapped[0]["mask"].mask


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("style", ["map", "stream"])
def test_formats_give_voxels(rows, features, kind, style):
    if kind == "torch":
        pytest.importorskip("torch")

    def formatted(rows):
        dataset = Dataset.from_list(rows, features=features)
        return (dataset.to_iterable_dataset() if style == "stream" else dataset).with_format(kind)

    expected = np.moveaxis(voxels(), -1, 0)
    first, second = formatted(rows)
    np.testing.assert_array_equal(np.asarray(first["image"]), expected)
    assert second["image"] is None
    batch = next(formatted([rows[0], rows[0]]).iter(2))
    np.testing.assert_array_equal(np.asarray(batch["mask"]), np.stack([expected, expected]))


def test_map_may_return_the_row_it_was_given(rows, features):
    def touch(row):
        row["slices"] = row["image"].shape[0]
        return row

    dataset = Dataset.from_list(rows[:1], features=features).map(touch)
    assert dataset.with_format("arrow")[0]["image"].to_pylist() == [{"bytes": None, "path": rows[0]["image"]}]
    check(dataset[0], voxels())
    stream = Dataset.from_list(rows[:1], features=features).to_iterable_dataset().map(touch, features=None)
    check(next(iter(stream)), voxels())


def test_torch_loaders_leave_a_volume_whole():
    collate = pytest.importorskip("torch.utils.data._utils.collate")
    volume = KneeVolume("/a.nii")
    with pytest.raises(OptionError, match="collate_fn="):
        collate.default_collate([volume, volume])
    assert volume.pin_memory() is volume


@needs_stock
@pytest.mark.parametrize("style", ["map", "stream"])
def test_casting_to_the_stock_feature_gives_stock_behaviour(rows, features, style):
    if style == "map":
        dataset = Dataset.from_list(rows[:1], features=features)
    else:
        dataset = IterableDataset.from_generator(lambda: iter(rows[:1]), features=features)
    stock = next(iter(dataset.cast_column("image", STOCK())))["image"]
    assert isinstance(stock, nibabel.Nifti1Image)
    np.testing.assert_array_equal(np.asanyarray(stock.dataobj), voxels())
    raw = next(iter(dataset.cast_column("image", STOCK(decode=False))))["image"]
    assert raw == {"bytes": None, "path": rows[0]["image"]}


def test_decode_false_gives_the_stored_dict(rows, features):
    dataset = Dataset.from_list(rows[:1], features=features).cast_column("image", VolumeFeature(decode=False))
    assert dataset[0]["image"] == {"bytes": None, "path": rows[0]["image"]}


def test_serialised_form_is_the_stock_one(features):
    stored = features.to_dict()["mask"]
    assert stored["_type"] == "Nifti"
    assert set(stored) <= {"_type", "decode", "id"}
    again = Features.from_dict(features.to_dict())
    assert type(again["mask"]) is (STOCK or VolumeFeature)
    assert VolumeFeature.pa_type == pa.struct({"bytes": pa.binary(), "path": pa.string()})


def test_features_copy_pickle_and_compare(features):
    assert features.copy() == features
    again = pickle.loads(pickle.dumps(features))
    assert again == features
    assert again["mask"].labels == {"a": 1}
    assert VolumeFeature() != VolumeFeature(mask=True)


def test_embedding_stores_bytes_and_base_names(rows, features, volume_file):
    dataset = Dataset.from_list(rows, features=features)
    table = embed_table_storage(dataset.with_format("arrow")[:])
    assert table["image"].to_pylist() == [{"bytes": volume_file.read_bytes(), "path": "scan.nii.gz"}, None]


def test_parquet_reads_back_without_the_source(rows, features, tmp_path, volume_file):
    dataset = Dataset.from_list(rows, features=features)
    embedded = dataset.with_format("arrow").map(embed_table_storage, batched=True).with_format(None)
    embedded.to_parquet(tmp_path / "x.parquet")
    volume_file.unlink()
    back = Dataset.from_parquet(str(tmp_path / "x.parquet"), cache_dir=str(tmp_path / "cache"))
    assert str(tmp_path) not in str(pq.read_table(tmp_path / "x.parquet")["image"].to_pylist())
    assert back.features["image"]._type == "Nifti"
    ours = back.cast_column("image", VolumeFeature()).cast_column("mask", VolumeFeature(mask=True))
    check(ours[0], voxels())
    assert ours[1]["image"] is None


@pytest.mark.parametrize("kind", ["nii", "nii.gz", "url", "zip", "bytes"])
def test_embedding_from_every_kind_of_source(kind, tmp_path):
    array = voxels(seed=3)
    data = gzip_bytes(array)
    stored = {"bytes": None, "path": str(tmp_path / f"dir/a.{kind}")}
    if kind in ("nii", "nii.gz"):
        data = write(Path(stored["path"]), array).read_bytes()
    elif kind == "url":
        stored["path"] = "memory://embed/dir/a.nii.gz"
        with fsspec.open(stored["path"], "wb") as file:
            file.write(data)
    elif kind == "zip":
        import zipfile

        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            archive.writestr("masks/a.nii.gz", data)
        stored["path"] = f"zip://masks/a.nii.gz::{tmp_path}/m.zip"
    else:
        stored = {"bytes": data, "path": "/somewhere/else/a.nii.gz"}
    feature = VolumeFeature()
    [embedded] = feature.embed_storage(pa.array([stored], VolumeFeature.pa_type)).to_pylist()
    assert embedded["bytes"] == data
    assert "/" not in embedded["path"]
    np.testing.assert_array_equal(feature.decode_example(embedded).array(), np.moveaxis(array, -1, 0))


def test_rows_of_one_scan_read_the_file_once(tmp_path, monkeypatch):
    from reasonknee_hf.volumes import volume_bytes as source

    path = str(write(tmp_path / "a.nii.gz", voxels()))
    opened = []
    original = source.chunks
    monkeypatch.setattr(source, "chunks", lambda p, data=None: opened.append(p) or original(p, data))
    VolumeFeature().embed_storage(pa.array([{"bytes": None, "path": path}] * 62, VolumeFeature.pa_type))
    assert opened == [path]


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        ({"bytes": None, "path": None}, PublishError),
        ({"bytes": None, "path": "/nowhere/a.nii.gz"}, VolumeMissingError),
        ({"bytes": None, "path": "/nowhere/a.hdr"}, PublishError),
    ],
)
def test_embedding_refuses_to_leave_nulls(stored, error):
    with pytest.raises(error):
        VolumeFeature().embed_storage(pa.array([stored], VolumeFeature.pa_type))


def test_embedding_leaves_what_was_not_asked_for(tmp_path):
    path = str(write(tmp_path / "a.nii.gz", voxels()))
    storage = pa.array([{"bytes": None, "path": path}], VolumeFeature.pa_type)
    assert VolumeFeature().embed_storage(storage, local_files=False).to_pylist() == storage.to_pylist()


def test_encode_accepts_what_users_hold(tmp_path):
    array = voxels()
    path = write(tmp_path / "a.nii", array)
    feature = VolumeFeature()
    assert feature.encode_example(KneeVolume(str(path))) == {"bytes": None, "path": str(path)}
    assert feature.encode_example(path) == {"bytes": None, "path": str(path)}
    assert feature.encode_example(b"x") == {"bytes": b"x", "path": None}
    for held in (image(array), image(array, second=True), nibabel.load(path)):
        stored = feature.encode_example(held)
        np.testing.assert_array_equal(feature.decode_example(stored).array(), np.moveaxis(array, -1, 0))
    for wrong in (3, {"bytes": None, "path": None}, object()):
        with pytest.raises(VolumeTypeError):
            feature.encode_example(wrong)


def test_decode_is_idempotent_and_keeps_nothing_as_none():
    feature = VolumeFeature()
    volume = KneeVolume("/a.nii")
    assert feature.decode_example(volume) is volume
    assert feature.decode_example({"bytes": None, "path": None}) is None
    assert feature.decode_example("gzip://a.nii::/x/a.nii.gz").path == "/x/a.nii.gz"


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["/a.nii", None]),
        pa.array(["/a.nii", None], pa.large_string()),
        pa.array([{"path": "/a.nii"}, None]),
        pa.array(
            [{"path": "/a.nii", "bytes": None}, None], pa.struct({"path": pa.string(), "bytes": pa.binary()})
        ),
        pa.array([None, "/a.nii", None])[1:],
    ],
)
def test_cast_storage(array):
    cast = VolumeFeature().cast_storage(array)
    assert cast.type == VolumeFeature.pa_type
    assert cast.to_pylist() == [{"bytes": None, "path": "/a.nii"}, None]


def test_cast_storage_of_bytes_nulls_and_nonsense():
    assert VolumeFeature().cast_storage(pa.array([b"x"])).to_pylist() == [{"bytes": b"x", "path": None}]
    assert VolumeFeature().cast_storage(pa.nulls(2)).to_pylist() == [None, None]
    with pytest.raises(VolumeTypeError):
        VolumeFeature().cast_storage(pa.array([1]))
