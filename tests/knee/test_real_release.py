"""The same calls over a release built out of real volumes, real label maps and the real prompts."""

from __future__ import annotations

import json

import numpy as np
import pytest

import reasonknee_hf
from reasonknee_hf.errors import VolumeMissingError

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def rows(real_release):
    ds = reasonknee_hf.load_dataset("full", streaming=True, source=str(real_release), on_error="raise")
    return {split: list(ds[split]) for split in ds}


def every(rows):
    return [row for split in rows.values() for row in split]


def test_every_real_prompt_is_known(rows):
    found = every(rows)
    assert sorted({row["question_id"] for row in found}) == list(range(1, 63))
    assert all(row["question_id"] is not None and row["category"] is not None for row in found)


def test_grades_and_diagnosis_are_those_of_the_records(rows, real_release):
    names = {"train": "train", "validation": "val", "test": "test"}
    for split, found in rows.items():
        records = json.loads((real_release / f"data/generate_data/{names[split]}.json").read_text())
        assert len(records) == len(found)
        for record, row in zip(records, found, strict=True):
            assert row["prompt"] == record["prompt"]
            assert json.loads(row["final_diagnosis"]) == record["final_diagnosis"]
            ((_, grades),) = record["final_diagnosis"]["final_diagnosis"].items()
            assert {g["attribute"]: g["grade"] for g in row["grades"]} == (
                grades if isinstance(grades, dict) else {"grade": grades}
            )


def test_boxes_bound_the_real_labels(rows):
    checked = 0
    for row in every(rows):
        if row["bbox"] is None or row["mask"] is None:
            continue
        mask = row["mask"].array()
        inside = np.unique(row["mask"].crop(row["bbox"]))
        assert mask.dtype.kind in "ui"
        assert (inside > 0).any()
        checked += 1
    assert checked > 50


def test_volumes_open_or_say_where_to_get_them(rows):
    opened = missing = 0
    for scan, row in {row["scan_id"]: row for row in every(rows)}.items():
        try:
            array = row["image"].array()
        except VolumeMissingError as error:
            missing += scan in str(error)
        else:
            assert array.ndim == 3
            assert np.ptp(array) > 0
            opened += 1
    assert opened >= 3
    assert missing >= 1


def test_slices_come_first_on_the_real_grid(rows):
    shapes = {row["mask"].shape for row in every(rows) if row["mask"] is not None}
    assert (160, 384, 384) in shapes  # stored as 384 x 384 x 160


def test_expert_segmentations_choose_the_high_fidelity_scans(real_release):
    release = reasonknee_hf.open_release(str(real_release))
    ds = reasonknee_hf.load_dataset("high_fidelity", streaming=True, source=str(real_release))
    found = {row["scan_id"] for split in ds.values() for row in split}
    assert found == set(release.expert_files) != set()
