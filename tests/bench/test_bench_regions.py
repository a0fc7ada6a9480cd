"""Regions of rows whose volumes are stored in other orders than their masks: by `nibabel`, apart from this package."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pyarrow.parquet as pq
import pytest
from nibabel.orientations import io_orientation, ornt_transform
from publishing import HAS_PILLOW, tables

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import GridMismatchError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.harness.functions import dataset, doc_to_image
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.volumes.boxes import box_slices
from reasonknee_hf.volumes.volume import KneeVolume


def on_the_mask(image_path: str, mask: KneeVolume) -> np.ndarray:
    """The image in the order of its mask's file, slices first."""
    image, target = nibabel.load(image_path), mask.nifti
    turned = image.as_reoriented(ornt_transform(io_orientation(image.affine), io_orientation(target.affine)))
    slices = int(np.flatnonzero(io_orientation(target.affine)[:, 0] == 0)[0])
    return np.moveaxis(np.asanyarray(turned.dataobj), slices, 0)


@pytest.fixture(scope="module")
def expected(sample_dir: Path) -> dict[str, tuple[list[int], np.ndarray]]:
    """Box and region of one row of every scan, and at least four orders among them."""
    found: dict[str, tuple[list[int], np.ndarray]] = {}
    codes, arrays = set(), {}
    for row in load_dataset("bench", split="test", streaming=True, source=str(sample_dir)):
        scan = row["scan_id"]
        if scan not in arrays:
            arrays[scan] = on_the_mask(row["image"].path, row["mask"])
            codes.add("".join(nibabel.aff2axcodes(nibabel.load(row["image"].path).affine)))
        if row["bbox"] is not None:
            found[row["id"]] = row["bbox"], arrays[scan][box_slices(row["bbox"])]
            np.testing.assert_array_equal(row["image"].crop(row["bbox"]), found[row["id"]][1])
    assert len(codes) > 1
    return found


def test_crops_of_a_conversion_are_the_regions(expected, sample_dir: Path, tmp_path: Path) -> None:
    options = {"source": str(sample_dir), "on_error": "null", "splits": "test", "volumes": "none"}
    convert(tmp_path / "o", "bench", crops=True, **options)
    rows = [row for path in tables(tmp_path / "o", "bench_crops") for row in pq.read_table(path).to_pylist()]
    assert {row["id"] for row in rows} == expected.keys()
    for row in rows:
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress(row["crop"]["bytes"]))
        np.testing.assert_array_equal(np.asanyarray(image.dataobj), expected[row["id"]][1])


@pytest.mark.skipif(not HAS_PILLOW, reason="drawn by Pillow")
def test_the_harness_shows_the_regions(expected, sample_dir: Path) -> None:
    documents = dataset(source=str(sample_dir), setting="gt_region", frames=3, window=(0, 400))["test"]
    seen = set()
    for doc in documents:
        if doc["bbox"] is None or doc["scan_id"] in seen or doc["bbox"][1] - doc["bbox"][0] < 2:
            continue
        seen.add(doc["scan_id"])
        box, region = expected[doc["id"]]
        for frame, slice_ in zip(
            doc_to_image(doc), np.linspace(0, len(region) - 1, 3).round().astype(int), strict=True
        ):
            grey = (np.clip(region[slice_].astype(float), 0, 400) / 400 * 255).astype(np.uint8)
            shown = np.asarray(frame)[box[2] : box[3] + 1, box[4] : box[5] + 1]
            np.testing.assert_array_equal(shown, grey)
    assert len(seen) == len({row["scan_id"] for row in documents if row["bbox"]})


@pytest.mark.skipif(not HAS_PILLOW, reason="drawn by Pillow")
@pytest.mark.parametrize("setting", ["gt_region", "zero_shot"])  # boxes are told, or answered
def test_the_harness_refuses_a_volume_of_another_space(
    sample_dir: Path, tmp_path: Path, setting: str
) -> None:
    release = open_release(str(sample_dir))
    scan = release.scans("test")[0]
    image = nibabel.load(release.image_url(scan))
    affine = image.affine.copy()
    affine[:3, 3] += 300
    path = tmp_path / scan.image_filepath.split("../")[-1]
    path.parent.mkdir(parents=True)
    nibabel.Nifti1Image(np.asanyarray(image.dataobj), affine).to_filename(path)
    documents = dataset(source=str(sample_dir), images=str(tmp_path), setting=setting, frames=3, scans=1)[
        "test"
    ]
    doc = next(doc for doc in documents if doc["bbox"])
    with pytest.raises(GridMismatchError, match="lies elsewhere"):
        list(doc_to_image(doc))
