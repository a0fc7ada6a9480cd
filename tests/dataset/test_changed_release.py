"""A local release whose files are replaced while a process works with it."""

from __future__ import annotations

import io
import zipfile

import pytest

import reasonknee_hf
from reasonknee_hf.knee.sample import write_sample

pytestmark = pytest.mark.floor


def give_each_mask_to_the_next_scan(root):
    """Replaces the archive of the masks by one that holds them under each other's names."""
    parts = sorted((root / "data").glob("masks_*"))
    with zipfile.ZipFile(io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in zip(contents, [*contents.values()][1:] + [*contents.values()][:1], strict=True):
            archive.writestr(name, content)
    size = -(-len(out.getvalue()) // len(parts))
    for number, part in enumerate(parts):
        part.write_bytes(out.getvalue()[number * size : (number + 1) * size])


def test_a_replaced_archive_shows_the_new_masks(tmp_path):
    """In the same process, whoever keeps what was known of the old one."""
    root = write_sample(tmp_path / "release")

    def rows():
        ds = reasonknee_hf.load_dataset("scans", split="train", streaming=True, source=str(root))
        return [row for row in ds if row["mask"] is not None]

    kept = rows()
    before = [row["mask"].array().copy() for row in kept]
    give_each_mask_to_the_next_scan(root)
    after = [row["mask"].array().copy() for row in rows()]
    assert any(one.tobytes() != other.tobytes() for one, other in zip(before, after, strict=True))
    again = [row["mask"].array() for row in kept]
    assert all((one == other).all() for one, other in zip(again, after, strict=True))
