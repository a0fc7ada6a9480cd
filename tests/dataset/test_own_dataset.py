"""The example of a dataset of one's own does what the datasets of the package do."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import datasets
import nibabel
import numpy as np
import pytest

import reasonknee_hf as rk

pytestmark = pytest.mark.floor


@pytest.fixture
def chest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    pytest.importorskip("own_dataset")
    questions, volumes = tmp_path / "questions", tmp_path / "volumes"
    questions.mkdir()
    (volumes / "valid").mkdir(parents=True)
    with (questions / "train.jsonl").open("w") as file:
        for scan in range(3):
            voxels = np.random.default_rng(scan).integers(0, 99, (9, 8, 5), np.int16)
            nibabel.save(
                nibabel.Nifti1Image(voxels, np.diag([1.0, 1, 3, 1])), volumes / f"valid/v{scan}.nii.gz"
            )
            for number in range(4):
                record = {
                    "VolumeName": f"v{scan}.nii.gz",
                    "Id": number,
                    "Question": f"What is {number}?",
                    "Answer": f"<think>It is {scan}.</think><answer>{scan}</answer>",
                }
                file.write(json.dumps(record) + "\n")
    return {"source": str(questions), "images": str(volumes)}


def test_it_streams_shuffles_resumes_and_converts(chest, tmp_path):
    rows = list(rk.load_dataset("chest/", split="train", streaming=True, **chest))
    assert [row["id"] for row in rows] == [f"v{scan}-{n}" for scan in range(3) for n in range(4)]
    assert (rows[5]["cot"], rows[5]["answer"]) == ("It is 1.", "1")
    assert rows[0]["image"].shape == (5, 9, 8)  # slices first
    stock = {"trust_remote_code": True} if datasets.__version__.startswith("3.") else {}
    ds = datasets.load_dataset("chest", split="train", streaming=True, shuffle=2, **chest, **stock)
    order = [row["id"] for row in ds]
    begun = [row["id"] for row in islice(ds, 5)]
    ds.load_state_dict(ds.state_dict())
    assert begun + [row["id"] for row in ds] == order != sorted(order)
    volumes = list(rk.load_dataset("chest/scans", split="train", streaming=True, **chest))
    assert [row["scan_id"] for row in volumes] == ["v0", "v1", "v2"]
