"""Released grades against the tables of source grades, and headers that contradict themselves."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
import verify_plants as plant
from verify_plants import counts, examples, report_on

from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.records import to_row
from reasonknee_hf.knee.source_grades import COLUMNS, FOLDER, VISITS, table_path


@pytest.fixture
def root(sample_dir: Path, tmp_path: Path) -> Path:
    return plant.copy_of(sample_dir, tmp_path / "release")


def write_tables(root: Path, change=lambda name, question, attribute, grade: grade) -> None:
    """Source tables that agree with all records, but for what `change` makes of a cell."""
    grades: dict[tuple[str, str, str], dict[tuple[int, str], int]] = {}
    for old in (root / FOLDER).iterdir():
        old.unlink()
    release = open_release(str(root))
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        for record in plant.records(root, name):
            scan = release.scan_of(record["image"], split)
            row, _ = to_row(record, scan, None, None)
            knee = grades.setdefault(
                (scan.visit, scan.patient_id, "1" if scan.knee_side == "right" else "2"), {}
            )
            for grade in row["grades"]:
                knee[row["question_id"], grade["attribute"]] = grade["grade"]
    for visit, number in VISITS.items():
        lines = [["ID", "SIDE", "VERSION", *(name for name, _, _ in COLUMNS)]]
        for (when, patient, side), knee in grades.items():
            if when == visit:
                cells = [change(name, q, a, knee.get((q, a), "")) for name, q, a in COLUMNS]
                lines.append([patient, side, "65", *cells])
        with open(root / table_path("", number), "w", newline="") as file:
            csv.writer(file).writerows(lines)


def sources(root: Path) -> dict[str, int]:
    return {f.kind: f.count for f in report_on(root).findings if f.kind.startswith("grade-")}


def test_tables_that_agree_give_no_finding(root):
    write_tables(root)
    assert sources(root) == {}


def test_another_value_and_an_empty_cell_are_told_apart(root):
    def change(name, question, attribute, grade):
        if (question, attribute) == (16, "depth") and grade != "":
            return (grade + 1) % 4  # the second column of that name
        return "." if (question, attribute) == (42, "grade") else grade

    write_tables(root, change)
    records = [r for name in ("train", "val", "test") for r in plant.records(root, name)]
    scans = len({r["image"] for r in records})
    report = report_on(root)
    found = {f.kind: f.count for f in report.findings if f.kind.startswith("grade-")}
    assert found == {"grade-other": scans, "grade-unsourced": scans}
    assert "depth" in examples(report, "grade-other")
    assert "tables have [" in examples(report, "grade-other")
    assert "tables have none" in examples(report, "grade-unsourced")


@pytest.mark.parametrize("spelling", ["{}.0", "{}"])
def test_one_of_several_rows_is_enough(root, spelling):
    """A knee may be read twice, and the readings may differ; a released grade is one of them."""
    write_tables(root, lambda name, q, a, grade: "" if grade == "" else spelling.format(grade))
    for path in (root / FOLDER).iterdir():
        header, *lines = list(csv.reader(path.read_text().splitlines()))
        again = [[*line[:3], *("5" for _ in line[3:])] for line in lines]
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([header, *again, *lines])
    assert sources(root) == {}


def test_a_release_without_tables_says_so(root):
    for path in (root / FOLDER).iterdir():
        path.unlink()
    report = report_on(root)
    assert any(FOLDER in line for line in report.not_checked)
    assert sources(root) == {}


def test_a_table_that_is_cut_is_reported(root):
    path = root / table_path("", "00")
    path.write_text(path.read_text().rstrip()[:-40])
    report = report_on(root)
    assert counts(report)["table-broken"] == 1
    assert "cells, the header has" in examples(report, "table-broken")


@pytest.mark.parametrize("deep", [True, False])
def test_a_header_whose_forms_differ_is_reported(root, tmp_path, deep):
    images = tmp_path / "images"
    (root / "data/images").rename(images)
    path = sorted(images.rglob("*.nii.gz"))[0]
    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(path.read_bytes()))
    moved = image.affine + np.diag([0, 0, 0, 0])
    moved[:3, 3] += 3
    image.set_qform(moved, 1)
    path.write_bytes(gzip.compress(image.to_bytes()))
    report = report_on(root, str(images), deep=deep)
    (finding,) = [f for f in report.findings if f.kind == "header-note"]
    assert finding.count == 1
    assert "sform and qform differ" in finding.examples[0]
    assert path.name in finding.examples[0]
