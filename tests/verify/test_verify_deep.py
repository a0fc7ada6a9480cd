"""Defects of volumes, masks and boxes, planted in a copy of the clean sample: reported, and only they."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import verify_plants as plant
from verify_plants import counts, examples, report_on

from reasonknee_hf import open_release
from reasonknee_hf.knee.checks.box_evidence import DECLARED, Convention
from reasonknee_hf.knee.sample import write_sample
from reasonknee_hf.verify import verify
from reasonknee_hf.volumes.volume_cache import volume_cache

pytestmark = pytest.mark.floor
PLANTS, planted = plant.registry()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("clean") / "release", flaws=False)


@pytest.fixture
def root(clean: Path, tmp_path: Path) -> Path:
    return plant.copy_of(clean, tmp_path / "release")


def mask_key(root, split):
    return f"masks/{plant.mask_name(root, split)}"


def edit_mask(root, split, edit):
    key = mask_key(root, split)
    plant.edit_members(root, lambda masks: masks.update({key: plant.edit_nifti(masks[key], edit)}))


@planted()
def nothing_deep(root):
    pass


@planted(volume_broken=1)
def a_volume_is_cut(root):
    path = plant.volume(root, "train")
    path.write_bytes(path.read_bytes()[:-2000])


@planted(volume_broken=1)
def a_volume_is_something_else(root):
    plant.volume(root, "train").write_bytes(b"<html>" * 500)


@planted(volume_broken=1)
def the_header_of_a_volume_says_a_shape_that_no_memory_holds(root):
    path = plant.volume(root, "train")
    header = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<3h", header, 42, *[32767] * 3)
    struct.pack_into("<h", header, 70, 64)  # doubles
    path.write_bytes(gzip.compress(header))


@planted(mask_broken=1)
def a_mask_is_something_else(root):
    plant.edit_members(root, lambda masks: masks.update({mask_key(root, "val"): b"<html>" * 500}))


@planted(volume_empty=1)
def a_volume_is_all_zero(root):
    path = plant.volume(root, "train")
    path.write_bytes(plant.edit_nifti(path.read_bytes(), lambda array, affine: (array * 0, affine)))


@planted(mask_empty=1, structure_absent=62)
def a_mask_is_all_zero(root):
    edit_mask(root, "val", lambda array, affine: (array * 0, affine))


@planted(identical_in_two_splits=1)
def a_volume_is_in_two_splits_packed_anew(root):
    twin = next(scan for scan in (("train", 0), ("train", 1), ("train", 2), ("test", 0), ("test", 1))
                if grid_of(root, *scan) == grid_of(root, "val", 0))  # fmt: skip
    content = gzip.decompress(plant.volume(root, *twin).read_bytes())
    plant.volume(root, "val").write_bytes(gzip.compress(content, 1))


def grid_of(root, split, number):
    """The sample has three grids in turn."""
    return int(plant.mask_name(root, split, number)[5:8]) % 3


@planted(grid_mismatch=1)
def a_mask_lies_elsewhere(root):
    def edit(array, affine):
        affine[:3, 3] += 2
        return array, affine

    edit_mask(root, "val", edit)


@planted(label_unnamed=1)
def a_mask_has_a_label_without_name(root):
    def edit(array, affine):
        array.flat[np.flatnonzero(array == 0)[0]] = 200
        return array, affine

    edit_mask(root, "val", edit)


def with_box(records, number, change):
    """Changes the box of one of the records that have one."""
    record = [r for r in records if r["final_diagnosis"]["bounding_box"]][number]
    plant.set_box(record, change(record["final_diagnosis"]["bounding_box"]))


@planted(box_outside=1)
def a_box_leaves_the_volume(root):
    plant.edit_records(root, "val", lambda records: with_box(records, 0, lambda box: [*box[:5], 10_000]))


@planted(box_outside=1)
def a_box_begins_before_the_volume(root):
    plant.edit_records(
        root, "val", lambda records: with_box(records, 0, lambda box: [*box[:2], -1, *box[3:]])
    )


@planted(box_not_structure=1)
def a_box_is_not_that_of_its_structure(root):
    def moved(box):
        return [box[0], box[1], box[2] + 1, box[3] + 1, box[4], box[5]]

    plant.edit_records(root, "val", lambda records: with_box(records, 7, moved))


@planted(structure_absent=2)  # a BML and a cartilage question look at it
def a_structure_is_not_in_the_mask(root):
    labels = json.loads((root / "data/question_files/labels.json").read_text())
    label = labels["tibia medial central"]
    edit_mask(root, "val", lambda array, affine: (np.where(array == label, 0, array).astype("u1"), affine))


@planted(box_convention=372)
def upper_ends_are_exclusive(root):
    plant.rewrite_boxes(root, lambda box: [end + side % 2 for side, end in enumerate(box)])


@planted(box_convention=372)
def slices_come_last(root):
    plant.rewrite_boxes(root, lambda box: [*box[2:], *box[:2]])


@planted(table_broken=1)
def the_labels_are_no_object(root):
    (root / "data/question_files/labels.json").write_text("[1, 2]")


@pytest.mark.parametrize(
    ("twins", "expected"), [(False, {"volume-broken": 1}), (True, {"file-unreadable": 2})]
)
def test_volumes_that_cannot_be_read_are_reported(twins, expected, root):
    one, other = plant.volume(root, "train", 0), plant.volume(root, "train", 1)
    if twins:
        other.write_bytes(one.read_bytes())
    release = open_release(str(root))
    release.tree.entries()
    for path in (one, other)[: 1 + twins]:  # nobody who runs tests as root lacks permissions
        path.unlink()
        path.mkdir()
    assert counts(verify(release, deep=True)) == expected


@pytest.mark.parametrize("name", PLANTS)
def test_a_defect_planted_in_volumes_is_reported_and_only_it(name, root):
    plant_it, expected = PLANTS[name]
    plant_it(root)
    assert counts(report_on(root, deep=True)) == expected


def test_what_the_boxes_show(clean, root):
    """The evidence, in three releases that write boxes differently."""
    plant.rewrite_boxes(root, lambda box: [box[0], box[2], box[4], box[1] + 1, box[3] + 1, box[5] + 1])
    evidence = report_on(clean, deep=True).boxes
    assert evidence.best == DECLARED
    assert evidence.conclusive
    assert evidence.ranking[0][1:] == (evidence.compared, 0.0)
    assert evidence.compared == sum(
        len(plant.boxes_of(plant.records(clean, n))) for n in ("train", "val", "test")
    )
    report = report_on(root, deep=True)
    assert report.boxes.best == Convention((0, 1, 2), inclusive=False, corners=True)
    assert report.boxes.conclusive
    assert report.boxes.compared == evidence.compared
    # Written like that, some boxes have a "minimum" above their "maximum", and all are read wrongly.
    assert {f.kind for f in report.level("error")} == {"record-unfit", "box-convention"}


def test_boxes_that_fit_no_convention_settle_nothing(root):
    plant.rewrite_boxes(root, lambda box: [3, 20, 5, 50, 7, 60])
    report = report_on(root, deep=True)
    assert counts(report) == {}
    assert not report.boxes.conclusive
    assert any(text.startswith("single boxes against masks") for text in report.not_checked)


def test_a_limit_reads_that_many_scans(clean):
    volume_cache().clear()
    before = volume_cache().decodes
    report = report_on(clean, deep=True, limit_scans=2)
    assert report.scans_read == 2
    assert volume_cache().decodes - before == 4  # image and mask
    assert report.boxes.compared == 124
    assert "volumes and masks of 4 of 6 scans: by request" in report.not_checked
    assert report_on(clean, deep=True, limit_scans=100).scans_read == 6


def test_without_names_of_labels_boxes_are_not_compared(root):
    shutil.rmtree(root / "data/question_files")
    report = report_on(root, deep=True)
    assert counts(report) == {}
    assert report.boxes is None
    assert "boxes against masks: no box has a structure that a mask shows" in report.not_checked


def test_masks_alone_are_enough_to_judge_boxes(root):
    shutil.rmtree(root / "data/images")
    report = report_on(root, deep=True)
    assert counts(report) == {"volumes-absent": 6}
    assert report.boxes.conclusive


def test_volumes_under_another_root(root, tmp_path):
    (root / "data/images").rename(tmp_path / "mri")
    report = report_on(root, images=str(tmp_path / "mri"), deep=True)
    assert counts(report) == {}
    assert report.scans_read == 6


def test_another_root_beside_volumes_of_the_release(root, tmp_path):
    """The other root is asked first; what the release has of its own is listed all the same."""
    other = tmp_path / "mri"
    shutil.copytree(root / "data/images", other)
    name = plant.volume(root, "train").relative_to(root / "data/images")
    (other / name).write_bytes(b"")
    (other / plant.volume(root, "test").relative_to(root / "data/images")).write_bytes(plant.POINTER)
    (other / plant.volume(root, "val").relative_to(root / "data/images")).unlink()
    assert counts(report_on(root, images=str(other), deep=True)) == {"empty-file": 1, "pointer-file": 1}


def test_unpacked_masks(root):
    masks = plant.members(root)
    for part in ("aa", "ab"):
        (root / f"data/masks_{part}").unlink()
    for name, content in masks.items():
        path = root / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    report = report_on(root, deep=True)
    assert counts(report) == {}
    assert report.boxes.conclusive


def test_listed_but_absent_and_present_but_not_the_real_content(root):
    """All at once, each kind apart: found without reading volumes, but for the one that is all zero."""
    plant.volume(root, "train", 0).unlink()
    plant.volume(root, "train", 1).write_bytes(plant.POINTER)
    plant.volume(root, "train", 2).write_bytes(b"")
    zero = plant.volume(root, "val")
    extra = zero.with_name("20041222_10309999_1.nii.gz")
    extra.write_bytes(zero.read_bytes())
    zero.write_bytes(plant.edit_nifti(zero.read_bytes(), lambda array, affine: (array * 0, affine)))
    plant.edit_members(root, lambda masks: masks.pop(mask_key(root, "test")))
    expected = {
        "volume-missing": 1,
        "pointer-file": 1,
        "empty-file": 1,
        "file-unlisted": 1,
        "mask-missing": 1,
    }
    assert counts(report_on(root)) == expected
    report = report_on(root, deep=True)
    assert counts(report) == {**expected, "volume-empty": 1}
    assert zero.name in examples(report, "volume-empty")
    assert extra.name in examples(report, "file-unlisted")
