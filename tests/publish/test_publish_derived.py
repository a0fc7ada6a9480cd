"""Pictures and crops show the region of the box, and crops stay where they were in the world."""

from __future__ import annotations

import gzip
import io

import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest
from publishing import HAS_PILLOW, tables

from reasonknee_hf.errors import RecordError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.look.planes import scene, side_by_side
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.derived import crop_file
from reasonknee_hf.publish.job import Derived
from reasonknee_hf.volumes.boxes import box_slices
from reasonknee_hf.volumes.volume import KneeVolume

BOX = [4, 9, 10, 30, 12, 20]


@pytest.fixture(scope="module")
def volume(sample_dir) -> KneeVolume:
    release = open_release(str(sample_dir))
    return KneeVolume(release.find_image(release.scans("test")[0]))


@pytest.mark.parametrize("margin", [0.0, 3.0, 1000.0])
def test_crops_stay_where_they_were(volume, margin):
    content, inner = crop_file(volume, BOX, margin)
    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
    assert np.array_equal(np.asarray(image.dataobj)[box_slices(inner)], volume.array()[box_slices(BOX)])
    for corner in (slice(0, None, 2), slice(1, None, 2)):
        there = image.affine @ [*inner[corner], 1]
        assert np.allclose(there, volume.affine @ [*BOX[corner], 1], atol=1e-3)
    assert (inner == [0, 5, 0, 20, 0, 8]) is (margin == 0)
    assert crop_file(volume, BOX, margin)[0] == content


def test_a_margin_stops_at_the_volume(volume):
    content, inner = crop_file(volume, BOX, 1000.0)
    assert nibabel.Nifti1Image.from_bytes(gzip.decompress(content)).shape == volume.shape
    assert inner == BOX


def test_planes_show_the_box(volume):
    picture = side_by_side(scene(volume, box=BOX), 192)
    assert picture.shape == (192, 576, 3)
    red = (picture == (255, 64, 64)).all(axis=2)
    for plane in range(3):
        rows, columns = np.nonzero(red[:, 192 * plane : 192 * (plane + 1)])
        assert rows.size
        outline = 2 * (np.ptp(rows) + np.ptp(columns))
        assert rows.size == max(outline, 1)


@pytest.mark.skipif(not HAS_PILLOW, reason="drawn by Pillow")
def test_columns(sample_dir, tmp_path):
    from PIL import Image

    options = {"source": str(sample_dir), "on_error": "null", "limit": 6, "splits": "test", "volumes": "none"}
    convert(tmp_path / "o", "bench", previews=True, frames=3, crops=True, crop_margin=2.0, **options)
    rows = pq.read_table(tables(tmp_path / "o", "bench")[0]).to_pylist()
    crops = {row["id"]: row for row in pq.read_table(tables(tmp_path / "o", "bench_crops")[0]).to_pylist()}
    assert any(row["bbox"] is None for row in rows) or len(rows) == len(crops)
    for row in rows:
        assert (row["bbox"] is None) == (row["preview"] is None) == (row["frames"] is None)
        assert (row["bbox"] is not None) == (row["id"] in crops)
        if row["bbox"] is not None:
            assert row["preview"]["path"] == f"{row['id']}.png"
            assert Image.open(io.BytesIO(row["preview"]["bytes"])).size == (576, 192)
            shapes = {Image.open(io.BytesIO(frame["bytes"])).size for frame in row["frames"]}
            low, high = row["bbox"][2::2], row["bbox"][3::2]
            assert shapes == {(high[0] - low[0] + 1, high[1] - low[1] + 1)}
            assert len(row["frames"]) == 3


def test_a_box_outside_the_volume_is_named(volume, sample_dir, tmp_path):
    from reasonknee_hf.publish.derived import crop_rows

    class Job:
        on_error = "raise"
        config = "bench"
        derived = Derived(crops=True)

        @staticmethod
        def opened():
            return open_release(str(sample_dir))

    row = {"id": "a_1", "scan_id": "a", "bbox": [0, 500, 0, 1, 0, 1], "image": {"path": volume.path}}
    with pytest.raises(RecordError, match=r"a_1.*on_error='null'"):
        list(crop_rows([row], Job))
    Job.on_error = "null"
    assert list(crop_rows([row], Job)) == []
