"""However the masks of a release are packed, rows have the same masks."""

from __future__ import annotations

import shutil
import zipfile

import fsspec
import pytest

import reasonknee_hf

pytestmark = pytest.mark.floor


def masks(source, **options):
    stream = reasonknee_hf.load_dataset("scans", split="train", streaming=True, source=str(source), **options)
    return {row["scan_id"]: row["mask"].array().tobytes() for row in stream}


def as_published(data):
    return None


def in_another_folder(data):
    (data / "archives").mkdir()
    for part in ("masks_aa", "masks_ab"):
        shutil.move(data / part, data / "archives" / part)


def as_one_zip(data):
    parts = [data / "masks_aa", data / "masks_ab"]
    (data / "masks.zip").write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()


def as_numbered_parts(data):
    (data / "masks_aa").rename(data / "masks.zip.001")
    (data / "masks_ab").rename(data / "masks.zip.002")


def unpacked(data):
    as_one_zip(data)
    with zipfile.ZipFile(data / "masks.zip") as archive:
        archive.extractall(data)
    (data / "masks.zip").unlink()
    assert (data / "masks" / "knee_000.nii.gz").is_file()


def packed_from_the_root(data):
    unpacked(data)
    with zipfile.ZipFile(data / "masks.zip", "w") as archive:
        for file in sorted((data / "masks").iterdir()):
            archive.write(file, f"home/someone/project/data/masks/{file.name}")
    shutil.rmtree(data / "masks")


LAYOUTS = [as_published, in_another_folder, as_one_zip, as_numbered_parts, unpacked, packed_from_the_root]


@pytest.mark.parametrize("pack", LAYOUTS)
def test_masks_are_found(sample_dir, tmp_path, pack):
    root = shutil.copytree(sample_dir, tmp_path / "release")
    pack(root / "data")
    expected = masks(sample_dir)
    assert masks(root) == expected
    assert masks(root, on_error="null") == expected
    release = reasonknee_hf.open_release(str(root))
    assert all(release.mask_url(scan) == release.find_mask(scan) for scan in release.all_scans())


def test_any_fsspec_url_is_a_source(sample_dir):
    memory = fsspec.filesystem("memory")
    memory.put(str(sample_dir), "/knees/release", recursive=True)
    try:
        assert masks("memory://knees/release") == masks(sample_dir)
        rows = [
            [
                row["id"]
                for row in reasonknee_hf.load_dataset("full", split="test", streaming=True, source=source)
            ]
            for source in ("memory://knees/release", str(sample_dir))
        ]
        assert rows[0] == rows[1] != []
    finally:
        memory.rm("/knees", recursive=True)
