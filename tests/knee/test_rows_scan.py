"""Split tables and scan ids."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.knee.scans import Scan, read_split_csv, scan_from_image_path

HEADER = "patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"
ROW = (
    "9000001,00M,20041222,10300001,2,../data/OAI/00mDESS/0.C.2/9000001/20041222/10300001,"
    "../data/images/9000001/00M/20041222_10300001_2.nii.gz,../data/masks/knee_003.nii.gz"
)


def read(text: str) -> list[Scan]:
    return read_split_csv(text.encode(), name="train_split.csv", split="train")


def test_published_line() -> None:
    (scan,) = read(f"{HEADER}\n{ROW}\n")
    assert scan == Scan(
        patient_id="9000001",
        visit="00M",
        study="20041222",
        series="10300001",
        knee_side="left",
        image_filepath="../data/images/9000001/00M/20041222_10300001_2.nii.gz",
        label_filepath="../data/masks/knee_003.nii.gz",
        split="train",
        published_side="2",
    )
    assert scan.scan_id == "9000001_00M_20041222_10300001_2"


def test_untidy_table_keeps_every_identifier_as_text() -> None:
    rows = ["0012,00M,0007,1,LEFT,p,i1,m1", " 9000099 ,12M,2,2,left ,p,i2,", "1e5,24M,3,3,R,p,i3,m3"]
    rows += ['NA,48M,4,4,1,p,"folder, two/i4",m4', "", " , ", "NaN,36M,5,00010.0,Right,p,i5,m5"]
    text = "\ufeff " + HEADER.replace(",knee_side", " , knee_side") + "\r\n"
    scans = read(text + "\r\n".join(rows) + "\r\n")
    assert [scan.patient_id for scan in scans] == ["0012", "9000099", "1e5", "NA", "NaN"]
    assert [scan.knee_side for scan in scans] == ["left", "left", "right", "right", "right"]
    assert [scan.published_side for scan in scans] == ["LEFT", "left", "R", "1", "Right"]
    assert [scan.label_filepath for scan in scans] == ["m1", None, "m3", "m4", "m5"]
    assert scans[0].scan_id == "0012_00M_0007_1_2"
    assert scans[3].image_filepath == "folder, two/i4"
    assert scans[4].series == "00010.0"


def test_columns_in_any_order_and_further_ones() -> None:
    text = "note," + ",".join(reversed(HEADER.split(","))) + "\nx,m,i,p,1,s,d,00M,7"
    (scan,) = read(text)
    assert (scan.patient_id, scan.study, scan.series) == ("7", "d", "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train_split.csv is empty"),
        ("\ufeff\r\n\r\n", "train_split.csv is empty"),
        (f"{HEADER}\n{ROW}\n,00M,1,1,1,p,i,m\n", "line 3: patient_id is empty"),
        (f"{HEADER}\n\n9,00M,1, ,1,p,i,m\n", "line 3: series_folder is empty"),
        (f"{HEADER}\n9,00M,1,1,1,p,,m\n", "line 2: image_filepath is empty"),
        (f"{HEADER}\n9,00M,1,1,3,p,i,m\n", "line 2: knee_side is '3'; known are 1, R, right"),
        (f"{HEADER}\n9,00M,1,1,1,p,i\n", "line 2 has 7 cells, the header names 8"),
        (f"{HEADER}\n{ROW},extra\n", "line 2 has 9 cells, the header names 8"),
        (f'{HEADER}\n"9,00M\n', "is not CSV"),
        (
            "patient_id,time\n1,00M\n",
            "lacks the columns study_folder, .*It has: patient_id, time. A split table needs",
        ),
        (HEADER.replace(",time", "") + "\n", "lacks the column time. It has: patient_id, study_folder"),
        (HEADER + ",time\n" + ROW + ",00M\n", "column time 2 times"),
        (HEADER.replace(",", ";"), "lacks the columns patient_id, "),
    ],
)
def test_bad_tables_are_one_error_that_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        read(text)


def test_text_that_is_not_utf8_names_its_line() -> None:
    content = f"{HEADER}\n{ROW}\n".encode() + "9,00M,é".encode("latin-1")
    with pytest.raises(ReleaseError, match="line 3 is not UTF-8"):
        read_split_csv(content, name="train_split.csv", split="train")


@pytest.mark.parametrize(
    "path",
    [
        "/data/images/9000001/00M/20041222_10300001_2.nii.gz",
        "../data/images/9000001/00M/20041222_10300001_2.nii.gz",
        r"data\images\9000001\00M\20041222_10300001_2.nii.gz",
        "9000001/00M/20041222_10300001_2.nii",
    ],
)
def test_scan_from_image_path(path: str) -> None:
    scan = scan_from_image_path(path, split="test")
    assert scan is not None
    assert scan.scan_id == "9000001_00M_20041222_10300001_2"
    assert scan.knee_side == "left"
    assert scan.split == "test"
    assert scan.image_filepath == path


@pytest.mark.parametrize(
    "path",
    [None, 5, "", "a.nii.gz", "/00M/20041222_10300001_2.nii.gz", "9/00M/1_2_3.nii.gz", "9/00M/1_2_2.png"],
)
def test_other_paths_name_no_scan(path: object) -> None:
    assert scan_from_image_path(path) is None


_CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
_ID = _CELL.filter(lambda text: text.strip() and not text.startswith("\ufeff"))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(_ID, _ID, _ID, _ID, st.sampled_from(["1", "2", "RIGHT", "l"]), _CELL, _ID, _CELL),
        max_size=5,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_any_text_survives(rows: list[tuple[str, ...]], line_end: str, bom: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerow(HEADER.split(","))
    writer.writerows(rows)
    scans = read(("\ufeff" if bom else "") + out.getvalue())
    assert [
        (s.patient_id, s.visit, s.study, s.series, s.image_filepath, s.label_filepath) for s in scans
    ] == [(*(cell.strip() for cell in (*row[:4], row[6])), row[7].strip() or None) for row in rows]
