"""`reasonknee images build` and `list`: whole files or none, after any kill; and what there is to fetch."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import dicom_writer as dicom
import nibabel
import numpy as np
import pytest

from reasonknee_hf.cli import main
from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.images_build import build_images, list_images

ROOT = Path(__file__).resolve().parents[2]


def series_path(row):
    return f"{row['patient_id']}/{row['study_folder']}/{row['series_folder']}"


def built(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def start(tmp_path):
    code = [
        sys.executable,
        "-m",
        "reasonknee_hf",
        "images",
        "build",
        str(tmp_path / "oai"),
        str(tmp_path / "out"),
    ]
    code += ["--source", str(tmp_path / "release"), "--workers", "2", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        code,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def kill_after(process, folder, count):
    """Kills the command, and only it, once so many files are there; its workers must go by themselves."""
    deadline = time.monotonic() + 120
    while len([p for p in built(folder) if p.name.endswith(".nii.gz")]) < count and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_200_series_6_of_them_broken_2_workers_killed_twice(tmp_path):
    rows = dicom.write_release(tmp_path / "release", 200)
    broken = dict(zip(range(17, 200, 33), dicom.BROKEN, strict=True))
    for number, row in enumerate(rows):
        made = dicom.series_for(row, dicom.knee(seed=number))
        if number in broken:
            made = dicom.BROKEN[broken[number]][0](made)
        dicom.write_folder(tmp_path / "oai/0.C.2" / series_path(row), made)
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / "data" / ".0123456789abcdef.part").write_bytes(b"left by a kill")
    kill_after(start(tmp_path), out, 20)
    kill_after(start(tmp_path), out, 90)
    before = {path: path.stat().st_mtime_ns for path in built(out) if path.name.endswith(".nii.gz")}
    assert 90 <= len(before) < 194
    last = start(tmp_path)
    printed, errors = last.communicate(timeout=180)
    assert last.returncode == 1, errors
    report = json.loads(printed)
    counts = report["counts"]
    assert counts == {"kept": len(before), "made": 194 - len(before), "refused": 6}
    refused = {one["series"]: one["note"] for one in report["scans"] if one["state"] == "refused"}
    assert refused.keys() == {series_path(rows[number]) for number in broken}
    for number, fault in broken.items():
        note = refused[series_path(rows[number])]
        assert re.search(dicom.BROKEN[fault][1], note)
        assert series_path(rows[number]) in note
    files = {rows[n]["image_filepath"].removeprefix("../"): n for n in range(200) if n not in broken}
    assert {path.relative_to(out).as_posix() for path in built(out)} == files.keys()
    assert before.items() <= {path: path.stat().st_mtime_ns for path in built(out)}.items()
    for path, number in files.items():
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress((out / path).read_bytes()))
        assert np.array_equal(image.dataobj, dicom.knee(seed=number).transpose(2, 1, 0))
        assert np.abs(image.affine - dicom.affine()).max() < 1e-4


def test_a_worker_needs_less_than_three_volumes_and_nothing_is_unpacked(tmp_path):
    shape = (24, 160, 160)
    rows = dicom.write_release(tmp_path / "release", 2, shape)
    for row in rows:
        path = tmp_path / "oai" / f"{series_path(row)}.tar.gz"
        dicom.write_tar(path, dicom.series_for(row, dicom.knee(shape, top=4000)))
    release = open_release(str(tmp_path / "release"))
    build = build_images(release, str(tmp_path / "oai"), tmp_path / "out")
    assert next(build).state == "made"  # imports are done
    tracemalloc.start()
    assert next(build).state == "made"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2 * np.prod(shape)
    assert [p.suffixes for p in built(tmp_path / "out")] == [[".nii", ".gz"]] * 2
    assert len(built(tmp_path / "oai")) == 2


def test_what_was_built_is_the_release_and_the_same_every_time(tmp_path, capsys):
    rows = dicom.write_release(tmp_path / "release", 4)
    for row in rows[:3]:
        dicom.write_folder(tmp_path / "oai" / series_path(row), dicom.series_for(row, dicom.knee()))
    options = ["--source", str(tmp_path / "release")]
    for out in ("a", "b"):
        assert main(["images", "build", str(tmp_path / "oai"), str(tmp_path / out), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["split             made   missing", "train                3         1"]
    contents = [[path.read_bytes() for path in built(tmp_path / out)] for out in ("a", "b")]
    assert contents[0] == contents[1]
    release = open_release(str(tmp_path / "release"), images=str(tmp_path / "a"))
    assert sum(release.find_image(scan) is not None for scan in release.all_scans()) == 3
    assert main(["images", "build", str(tmp_path / "oai"), str(tmp_path / "a"), *options]) == 0
    assert "kept" in capsys.readouterr().out


def test_the_grid_of_the_mask_decides(tmp_path):
    """A slice that is missing at an end shows in no distance between slices."""
    rows = dicom.write_release(tmp_path / "release", 3)
    whole = [dicom.series_for(row, dicom.knee()) for row in rows]
    dicom.write_folder(tmp_path / "oai" / series_path(rows[0]), whole[0][1:])
    elsewhere = dicom.series_for(rows[1], dicom.knee(), origin=(-90.0, -60.5, 70.125))
    dicom.write_folder(tmp_path / "oai" / series_path(rows[1]), elsewhere)
    dicom.write_folder(tmp_path / "oai" / series_path(rows[2]), whole[2])
    (tmp_path / "release" / rows[2]["label_filepath"].removeprefix("../")).unlink()
    release = open_release(str(tmp_path / "release"))
    first, second, third = build_images(release, str(tmp_path / "oai"), tmp_path / "out")
    assert (first.state, second.state, third.state) == ("refused", "refused", "made")
    assert "shape (7, 16, 16)" in first.note
    assert "another grid" in second.note
    assert "not verified: the release has no mask" in third.note
    assert len(built(tmp_path / "out")) == 1


def test_a_file_that_is_there_and_fits_no_mask_is_refused_not_replaced(tmp_path):
    import volume_files

    (row,) = dicom.write_release(tmp_path / "release", 1)
    dicom.write_folder(tmp_path / "oai" / series_path(row), dicom.series_for(row, dicom.knee()))
    target = tmp_path / "out" / row["image_filepath"].removeprefix("../")
    volume_files.write(target, dicom.knee().astype(np.int16), np.eye(4))
    before = target.read_bytes()
    (only,) = build_images(open_release(str(tmp_path / "release")), str(tmp_path / "oai"), tmp_path / "out")
    assert only.state == "refused"
    assert str(target) in only.note
    assert target.read_bytes() == before


def test_a_download_of_nothing_that_is_listed(tmp_path, capsys):
    dicom.write_release(tmp_path / "release", 1)
    (tmp_path / "oai").mkdir()
    arguments = [str(tmp_path / "oai"), str(tmp_path / "out"), "--source", str(tmp_path / "release")]
    assert main(["images", "build", *arguments]) == 1
    assert f"{tmp_path}/oai" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


OAI_INDEX = (
    "Folder,ParticipantID,StudyDate,Barcode,StudyDescription,SeriesDescription\n"
    "0.C.2/9000001/20041222/10300002,9000001,20041222,016610300002,OAI MR LEFT KNEE,SAG_3D_DESS_LEFT\n"
    "0.E.1/9000002/20041222/10300003,9000002,20041222,016610300003,OAI MR RIGHT KNEE,SAG_3D_DESS_RIGHT\n"
)
NDA_INDEX = (
    "src_subject_id\tinterview_date\timage_file\timage_description\tcomments_misc\n"
    "Subject ID\tDate\tImage file\tDescription\tComments\n"
    "9000001\t12/22/2004\ts3://bucket/x/0.C.2/9000001/20041222/10300002.tar.gz\tSAG_3D_DESS_LEFT\tnone\n"
)


@pytest.mark.parametrize(
    ("name", "text", "fetch"),
    [
        (
            "contents.0C2.csv",
            OAI_INDEX,
            ["0.C.2/9000001/20041222/10300002", "0.E.1/9000002/20041222/10300003"],
        ),
        (
            "image03.txt",
            NDA_INDEX,
            ["s3://bucket/x/0.C.2/9000001/20041222/10300002.tar.gz", "9000002/20041222/10300003"],
        ),
        (None, "", ["9000001/20041222/10300002", "9000002/20041222/10300003"]),
    ],
)
def test_what_to_fetch(tmp_path, capsys, name, text, fetch):
    rows = dicom.write_release(tmp_path / "release", 3)
    dicom.write_folder(tmp_path / "oai" / series_path(rows[0]), dicom.series_for(rows[0], dicom.knee()))
    if name is not None:
        (tmp_path / "oai" / name).write_text(text)
    command = ["images", "list", str(tmp_path / "oai"), "--source", str(tmp_path / "release")]
    assert main([*command, "--fetch"]) == 0
    assert capsys.readouterr().out.splitlines() == fetch
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["counts"], report["fetch"]) == ({"found": 1, "missing": 2}, fetch)
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["train", "1", "2"]


def test_an_index_without_the_column_is_refused(tmp_path):
    dicom.write_release(tmp_path / "release", 1)
    (tmp_path / "oai").mkdir()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ReleaseError, match=r"other\.csv is no index.*Folder.*image_file.*but a, b"):
        list_images(
            open_release(str(tmp_path / "release")), str(tmp_path / "oai"), [str(tmp_path / "other.csv")]
        )
