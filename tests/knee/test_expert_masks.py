"""The column `expert_mask`: the expert segmentations of the scans of `high_fidelity`, where a release has them."""

from __future__ import annotations

import pickle
import shutil

import nibabel
import numpy as np
import pytest

import reasonknee_hf as rk
from reasonknee_hf.errors import VolumeDataError
from reasonknee_hf.knee.description import open_release, row_features


def load(sample_dir, tmp_path, config="high_fidelity", streaming=True, **options):
    cache = {} if streaming else {"cache_dir": str(tmp_path / "cache")}
    return rk.load_dataset(
        config, split="test", source=str(sample_dir), streaming=streaming, **cache, **options
    )


@pytest.mark.floor
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_carry_every_structure_by_name(sample_dir, tmp_path, streaming):
    rows = load(sample_dir, tmp_path, streaming=streaming)
    assert list(rows.features) == list(row_features("high_fidelity", experts=True))
    row = next(iter(rows))
    release = open_release(str(sample_dir))
    files = release.expert_files[row["scan_id"]]
    assert len(row["expert_mask"]) == len(files) > 6
    masks = {part["structure"]: part["mask"] for part in row["expert_mask"]}
    # As labels.json spells them; a structure that it does not name keeps the name of its file.
    assert {"femoral cartilage", "tibia medial central", "Loose Bodies"} <= masks.keys()
    assert masks.keys() - {"Loose Bodies"} <= release.labels.keys()
    (path,) = [file for file in files if file.endswith("Femoral Cartilage.nii.gz")]
    expected = np.asarray(nibabel.load(sample_dir / path).dataobj)
    mask = masks["femoral cartilage"]
    assert mask.array().sum() == expected.sum() > 0
    assert mask.relation_to(row["image"]) == "equal"
    assert mask.label == row["id"]
    assert not masks["Loose Bodies"].array().any()
    assert pickle.loads(pickle.dumps(mask)).labels() == {1: 1}


def test_an_error_of_one_names_the_row(sample_dir, tmp_path):
    root = tmp_path / "release"
    shutil.copytree(sample_dir, root)
    for path in root.rglob("Femoral Cartilage.nii.gz"):
        path.write_bytes(path.read_bytes()[:-20])
    row = next(iter(load(root, tmp_path)))
    mask = next(part["mask"] for part in row["expert_mask"] if part["structure"] == "femoral cartilage")
    with pytest.raises(VolumeDataError, match=rf"{row['id']}, .*Femoral Cartilage"):
        mask.array()


def test_nothing_else_has_the_column(sample_dir, tmp_path):
    for config in ("full", "bench", "scans"):
        assert "expert_mask" not in load(sample_dir, tmp_path, config).features
    assert "expert_mask" not in load(sample_dir, tmp_path, masks=False).features
    root = tmp_path / "release"
    shutil.copytree(sample_dir, root)
    shutil.rmtree(root / "data/OAI")
    scan = next(iter(load(sample_dir, tmp_path)))["scan_id"]
    rows = load(root, tmp_path, high_fidelity=[scan])
    assert list(next(iter(rows))) == list(rows.features) == list(row_features("full"))


def test_a_scan_that_was_chosen_without_one_has_an_empty_list(sample_dir, tmp_path):
    release = open_release(str(sample_dir))
    other = [scan.scan_id for scan in release.scans("test") if scan.scan_id not in release.expert_files][:1]
    rows = load(sample_dir, tmp_path, high_fidelity=other)
    assert next(iter(rows))["expert_mask"] == []
