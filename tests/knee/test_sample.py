"""The synthetic release: its layout, its anatomy, its records, and how it is cached."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from bigjson import big_records, write_big_json
from hypothesis import example, given, settings
from hypothesis import strategies as st
from realrelease import SCANS as REAL_SCANS

import reasonknee_hf as rk
from reasonknee_hf import cli
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import QUESTIONS, question_for_key, question_for_prompt
from reasonknee_hf.knee.sample import sample_folder, write_sample
from reasonknee_hf.knee.sample.phantom import FLUID, Grid, draw_knee
from reasonknee_hf.knee.sample.plan import plan
from reasonknee_hf.knee.sample.prompts import template
from reasonknee_hf.knee.sample.sample_labels import LABELS, RECORDED_QUESTIONS, TIBIA_REGIONS, question_labels
from reasonknee_hf.knee.sample.sample_texts import MARKER, mapping, reasoning

SMALL = Grid(24, 64, 64)
PUBLISHED_FILES = {
    "README.md",
    "data/labels/manual_annotated_kMRI_18M.csv",
    *(f"data/labels/taxonomymatch_kMRI_SQ_MOAKS_BICL{n}.csv" for n in ("00", "01", "03", "06")),
    *(f"data/labels/taxonomymatch_kMRI_FNIH_SQ_MOAKS_BICL{n}.csv" for n in ("00", "01", "03")),
    *(
        f"data/question_files/{name}.json"
        for name in (
            "questions",
            "cot_question_mapping",
            "grade_dict",
            "labels",
            "question_subregion_mapping",
        )
    ),
    *(f"data/split_files/{name}.csv" for name in ("all_studies", "train_split", "val_split", "test_split")),
    *(f"data/generate_data/{name}.json" for name in ("train", "val", "test", "test_balanced")),
    "data/masks_aa",
    "data/masks_ab",
}


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def table(folder: Path, name: str) -> list[dict[str, str]]:
    text = (folder / "data" / "split_files" / f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def records(folder: Path, split: str) -> list[dict[str, Any]]:
    return json.loads((folder / "data" / "generate_data" / f"{split}.json").read_text("utf-8"))


def masks(folder: Path) -> zipfile.ZipFile:
    data = folder / "data"
    return zipfile.ZipFile(io.BytesIO((data / "masks_aa").read_bytes() + (data / "masks_ab").read_bytes()))


def mask_of(folder: Path, row: dict[str, str]) -> nibabel.Nifti1Image:
    name = Path(row["label_filepath"]).name
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(masks(folder).read(f"masks/{name}")))


def slice_first(image: nibabel.Nifti1Image) -> np.ndarray:
    """The design's rule, written down once more: the axis that runs most along left-right comes first."""
    axis = int(np.argmax(np.abs(image.affine[0, :3] / nibabel.affines.voxel_sizes(image.affine))))
    return np.moveaxis(np.asarray(image.dataobj), axis, 0)


# --- layout -------------------------------------------------------------------------------------------------


def test_every_published_file_is_there_and_nothing_is_large(sample_dir: Path) -> None:
    files = files_of(sample_dir)
    assert set(files) >= PUBLISHED_FILES
    others = {name.split("/")[1] for name in set(files) - PUBLISHED_FILES if name.startswith("data/")}
    assert others == {"images", "OAI"}
    assert sum(map(len, files.values())) < 15_000_000


def test_split_tables_have_the_published_header_and_spelling(sample_dir: Path) -> None:
    text = (sample_dir / "data" / "split_files" / "train_split.csv").read_text("utf-8")
    header = "patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"
    assert text.splitlines()[0] == header
    for row in table(sample_dir, "all_studies"):
        knee = f"{row['patient_id']}/{row['time']}/{row['study_folder']}_{row['series_folder']}"
        assert row["image_filepath"] == f"../data/images/{knee}_{row['knee_side']}.nii.gz"
        assert row["path"].startswith("../data/OAI/")
        assert row["path"].endswith(f"{row['patient_id']}/{row['study_folder']}/{row['series_folder']}")
        assert row["label_filepath"].startswith("../data/masks/knee_")
        assert len(row["patient_id"]) == 7
        assert row["patient_id"].startswith("9")


def test_splits_share_no_patient_and_cover_all_studies(sample_dir: Path) -> None:
    splits = {name: table(sample_dir, f"{name}_split") for name in ("train", "val", "test")}
    patients = [{row["patient_id"] for row in rows} for rows in splits.values()]
    assert sum(map(len, patients)) == len(set.union(*patients))
    everything = table(sample_dir, "all_studies")
    assert sorted(row["label_filepath"] for rows in splits.values() for row in rows) == sorted(
        row["label_filepath"] for row in everything
    )
    assert {row["knee_side"] for row in everything} == {"1", "2"}
    assert len({row["time"] for row in everything}) >= 3
    visits = [{row["time"] for row in everything if row["patient_id"] == p} for p in set.union(*patients)]
    assert max(map(len, visits)) >= 2


def test_irregular_rows(sample_dir: Path) -> None:
    everything = table(sample_dir, "all_studies")
    annotated = {
        record["image"] for split in ("train", "val", "test") for record in records(sample_dir, split)
    }
    bare = [row for row in everything if row["image_filepath"][2:] not in annotated]
    assert [
        row["patient_id"] in {r["patient_id"] for r in table(sample_dir, "train_split")} for row in bare
    ] == [
        True,
        True,
    ]
    assert all((sample_dir / row["image_filepath"][3:]).is_file() for row in bare)
    missing = [row for row in everything if not (sample_dir / row["image_filepath"][3:]).exists()]
    assert [row in table(sample_dir, "val_split") for row in missing] == [True]
    assert missing[0]["image_filepath"][2:] in annotated


def test_without_flaws_every_row_has_records_and_a_volume(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "new", scans=3, flaws=False)
    everything = table(folder, "all_studies")
    assert len(everything) == 3
    annotated = {record["image"] for split in ("train", "val", "test") for record in records(folder, split)}
    assert {row["image_filepath"][2:] for row in everything} == annotated
    assert all((folder / row["image_filepath"][3:]).is_file() for row in everything)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    sample_dir: Path, tmp_path: Path
) -> None:
    again = files_of(write_sample(tmp_path / "again"))
    assert again == files_of(sample_dir)
    other = files_of(write_sample(tmp_path / "other", scans=3, seed=1, flaws=False))
    first = files_of(write_sample(tmp_path / "first", scans=3, seed=0, flaws=False))
    assert other["data/masks_aa"] != first["data/masks_aa"]
    assert other["data/generate_data/test.json"] != first["data/generate_data/test.json"]


def test_a_large_plan_keeps_ids_apart() -> None:
    scans = plan(2000, seed=3)
    assert len(scans) == 2003
    assert len({scan.image_path for scan in scans}) == len(scans)
    assert len({scan.series for scan in scans}) == len(scans)
    assert {scan.mask_name for scan in scans} >= {"knee_007.nii.gz", "knee_999.nii.gz", "knee_1000.nii.gz"}
    split_of = {scan.patient: scan.split for scan in scans}
    assert all(split_of[scan.patient] == scan.split for scan in scans)
    assert all(len(patient) == 7 and patient[0] == "9" for patient in split_of)
    assert {len(scan.series) for scan in scans} == {8, 11}
    assert sum(scan.split == "train" and scan.has_records for scan in scans) > 900


@pytest.mark.parametrize("scans", [2, 0, -1])
def test_too_few_scans(tmp_path: Path, scans: int) -> None:
    with pytest.raises(OptionError, match=f"at least 3 scans.*scans={scans}"):
        write_sample(tmp_path / "new", scans=scans)
    assert not (tmp_path / "new").exists()


def test_a_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OptionError, match="not an empty folder"):
        write_sample(tmp_path)
    with pytest.raises(OptionError, match="not an empty folder"):
        write_sample(tmp_path / "mine.txt")
    assert files_of(tmp_path) == {"mine.txt": b"keep"}


# --- volumes ------------------------------------------------------------------------------------------------


def test_stored_orders_and_grids(sample_dir: Path) -> None:
    images = [nibabel.load(path) for path in sorted((sample_dir / "data" / "images").rglob("*.nii.gz"))]
    assert {image.get_data_dtype() for image in images} == {np.dtype("i2")}
    assert {"".join(nibabel.aff2axcodes(image.affine)) for image in images} >= {
        "PIR",
        "RAS",
        "LAS",
        "PSR",
        "LIP",
    }
    masks = [mask_of(sample_dir, row) for row in table(sample_dir, "all_studies")]
    codes = {mask.shape: nibabel.aff2axcodes(mask.affine) for mask in masks}
    assert codes == {(32, 128, 128): tuple("RPI"), (128, 128, 32): tuple("PIR"), (128, 112, 27): tuple("PIR")}
    tilted = [nibabel.affines.obliquity(image.affine).max() > 0.01 for image in images]
    assert True in tilted
    assert False in tilted


def test_masks_lie_on_the_grid_of_their_images(sample_dir: Path) -> None:
    for row in table(sample_dir, "all_studies"):
        mask = mask_of(sample_dir, row)
        assert mask.get_data_dtype() == np.uint8
        path = sample_dir / row["image_filepath"][3:]
        if path.exists():
            turn = nibabel.orientations.ornt_transform(
                nibabel.io_orientation(nibabel.load(path).affine), nibabel.io_orientation(mask.affine)
            )
            image = nibabel.load(path).as_reoriented(turn)
            assert image.shape == mask.shape
            np.testing.assert_allclose(image.affine, mask.affine, atol=1e-4)
            # Cartilage is bright and menisci are dark: the mask lies on what was drawn.
            values, labels = np.asarray(image.dataobj), np.asarray(mask.dataobj)
            cartilage = values[labels == LABELS["femoral cartilage"]].mean()
            assert cartilage > 1.5 * values[labels == LABELS["medial meniscus"]].mean()


def test_medial_is_towards_the_other_knee(sample_dir: Path) -> None:
    sides = set()
    for row in table(sample_dir, "all_studies"):
        mask = mask_of(sample_dir, row)
        labels = np.asarray(mask.dataobj)
        right_of = {}
        for name in ("medial meniscus", "lateral meniscus"):
            center = np.argwhere(labels == LABELS[name]).mean(axis=0)
            right_of[name] = nibabel.affines.apply_affine(mask.affine, center)[0]
        is_right_knee = row["knee_side"] == "1"
        assert (right_of["medial meniscus"] < right_of["lateral meniscus"]) == is_right_knee
        sides.add(is_right_knee)
    assert sides == {True, False}


def test_anatomy_is_upright_and_faces_forward(sample_dir: Path) -> None:
    mask = mask_of(sample_dir, table(sample_dir, "all_studies")[0])
    labels = np.asarray(mask.dataobj)

    def place(name: str) -> np.ndarray:
        return nibabel.affines.apply_affine(mask.affine, np.argwhere(labels == LABELS[name]).mean(axis=0))

    assert place("femur medial central")[2] > place("medial meniscus")[2] > place("tibia medial central")[2]
    assert place("patella medial")[1] > place("femur medial trochlea")[1] > place("femur medial posterior")[1]
    assert place("tibia lateral anterior")[1] > place("tibia lateral posterior")[1]


def test_the_archive_is_cut_within_a_member(sample_dir: Path) -> None:
    first = (sample_dir / "data" / "masks_aa").read_bytes()
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(io.BytesIO(first))
    archive = masks(sample_dir)
    assert archive.testzip() is None
    infos = [info for info in archive.infolist() if not info.is_dir()]
    assert [info.filename for info in infos] == [f"masks/knee_{n:03d}.nii.gz" for n in range(9)]
    spanning = [i for i in infos if i.header_offset + 30 < len(first) < i.header_offset + i.compress_size]
    assert len(spanning) == 1
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


def test_expert_masks_are_binary_files_with_blanks_in_their_names(sample_dir: Path) -> None:
    paths = sorted((sample_dir / "data" / "OAI").rglob("*.nii.gz"))
    scans = {path.parent.relative_to(sample_dir / "data" / "OAI").parts[3:] for path in paths}
    rows = table(sample_dir, "all_studies")
    assert len(scans) == 3
    assert scans <= {(row["patient_id"], row["study_folder"], row["series_folder"]) for row in rows}
    test_scans = {row["patient_id"] for row in table(sample_dir, "test_split")}
    assert any(scan[0] in test_scans for scan in scans)
    values = {path.name: np.unique(np.asarray(nibabel.load(path).dataobj)).tolist() for path in paths}
    assert values["Medial Meniscus.nii.gz"] == [0, 1]
    assert values["Tibia Medial Anterior.nii.gz"] == [0, 1]
    assert values["Loose Bodies.nii.gz"] == [0]


def no_findings() -> dict[int, dict[str, int]]:
    return {n: dict.fromkeys((a.name for a in QUESTIONS[n].attributes), 0) for n in RECORDED_QUESTIONS}


def draw(grades: dict[int, dict[str, int]]) -> tuple[np.ndarray, np.ndarray]:
    return draw_knee(Grid(32, 128, 128), right=True, grades=grades, body_seed="body", scan_seed="scan")


def test_grades_show_in_the_volume() -> None:
    plain, labels = draw(no_findings())
    region = labels == LABELS["tibia medial central"]
    sick = no_findings()
    sick[10].update(size=3, number=1, percent_bml=3)  # BML of the medial central tibia
    sick[43]["grade"] = 3  # effusion
    sick[60]["complete_tear"] = 1  # ACL
    volume, new_labels = draw(sick)
    assert volume[region].mean() > plain[region].mean() + 30
    recess = LABELS["suprapatellar recess"]
    assert (new_labels == recess).sum() > 2 * (labels == recess).sum()
    assert volume[new_labels == recess].mean() > 0.6 * FLUID
    ligament = labels == LABELS["anterior cruciate ligament"]
    assert volume[ligament].mean() > plain[ligament].mean() + 40

    worn = no_findings()
    worn[25].update(size=3, depth=3)  # cartilage of the medial central tibia
    _, worn_labels = draw(worn)
    cartilage = LABELS["tibial cartilage"]
    assert (worn_labels == cartilage).sum() < (labels == cartilage).sum()

    moved = no_findings()
    moved[45]["grade"] = (
        3  # the medial meniscus leaves the joint to the medial side: a lower slice of a right knee
    )
    _, moved_labels = draw(moved)
    meniscus = LABELS["medial meniscus"]
    assert np.argwhere(moved_labels == meniscus)[:, 0].min() < np.argwhere(labels == meniscus)[:, 0].min()


all_grades = st.fixed_dictionaries(
    {
        number: st.fixed_dictionaries({a.name: st.integers(0, a.high) for a in QUESTIONS[number].attributes})
        for number in RECORDED_QUESTIONS
    }
)


NO_GRADES = {number: {a.name: 0 for a in QUESTIONS[number].attributes} for number in RECORDED_QUESTIONS}


@settings(max_examples=25, deadline=None)
@given(
    grades=all_grades,
    right=st.booleans(),
    body=st.text(max_size=4),
    grid=st.sampled_from([SMALL, Grid(20, 64, 56)]),
)
@example(grades=NO_GRADES, right=False, body="27", grid=Grid(20, 64, 56))
def test_any_grades_leave_every_structure_visible(
    grades: dict[int, dict[str, int]], right: bool, body: str, grid: Grid
) -> None:
    volume, labels = draw_knee(grid, right=right, grades=grades, body_seed=body, scan_seed=body)
    assert volume.shape == labels.shape == (grid.slices, grid.width, grid.height)
    assert volume.dtype == np.int16
    assert volume.min() >= 0
    assert set(np.unique(labels).tolist()) == set(LABELS.values())


# --- records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_records_have_the_published_shape(sample_dir: Path, split: str) -> None:
    found = records(sample_dir, split)
    assert len(found) % 62 == 0
    for place, record in enumerate(found):
        assert list(record) == ["image", "prompt", "answer", "final_diagnosis"]
        assert record["image"].startswith("/data/images/9")
        question = question_for_prompt(record["prompt"])
        assert question is not None
        assert question.id == place % 62 + 1
        final = record["final_diagnosis"]
        assert list(final) == ["bounding_box", "final_diagnosis"]
        ((key, grades),) = final["final_diagnosis"].items()
        assert question_for_key(key) == question
        assert " " not in key
        assert list(grades) == [attribute.name for attribute in question.attributes]
        assert all(grades[a.name] in a.grades for a in question.attributes)
        text, marker, tail = record["answer"].partition(MARKER)
        assert marker
        assert text.strip() == reasoning(question, grades)
        assert json.loads(tail) == final


def test_boxes_are_the_bounds_of_the_labels_they_are_mapped_to(sample_dir: Path) -> None:
    questions = sample_dir / "data" / "question_files"
    labels = json.loads((questions / "labels.json").read_text("utf-8"))
    names = json.loads((questions / "question_subregion_mapping.json").read_text("utf-8"))
    for split in ("train", "val", "test"):
        rows = {row["image_filepath"][2:]: row for row in table(sample_dir, f"{split}_split")}
        voxels = {image: slice_first(mask_of(sample_dir, row)) for image, row in rows.items()}
        for record in records(sample_dir, split):
            question = question_for_prompt(record["prompt"])
            ids = [labels[name] for name in names[str(question.id)]]
            where = np.argwhere(np.isin(voxels[record["image"]], ids))
            bounds = np.stack([where.min(axis=0), where.max(axis=0)], axis=1).ravel().tolist()
            assert record["final_diagnosis"]["bounding_box"] == bounds, question.prompt_key


def test_the_balanced_test_file_is_part_of_the_test_file(sample_dir: Path) -> None:
    balanced = records(sample_dir, "test_balanced")
    everything = records(sample_dir, "test")
    assert balanced
    assert all(record in everything for record in balanced)


def test_question_files_fit_the_table_of_questions(sample_dir: Path) -> None:
    folder = sample_dir / "data" / "question_files"
    prompts = json.loads((folder / "questions.json").read_text("utf-8"))
    assert list(prompts) == [str(number) for number in range(1, 70)]
    texts = json.loads((folder / "cot_question_mapping.json").read_text("utf-8"))
    assert texts == {str(n): mapping(QUESTIONS[n]) for n in RECORDED_QUESTIONS}
    assert all(
        set(entry[a.name]) == {str(g) for g in a.grades}
        for n, entry in texts.items()
        for a in QUESTIONS[int(n)].attributes
    )
    labels = json.loads((folder / "labels.json").read_text("utf-8"))
    assert labels["background"] == 0
    assert (labels["medial meniscus"], labels["tibial cartilage"]) == (44, 49)
    assert len(set(labels.values())) == len(labels)
    assert [labels[name] for name in TIBIA_REGIONS] == list(range(58, 65))


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: str(question.id))
def test_a_prompt_asks_for_the_json_of_its_question(sample_dir: Path, question: Any) -> None:
    import re

    filled = json.loads(re.sub(r"\(0-\d\)", "0", template(question)))
    assert filled == question.answer({attribute.name: 0 for attribute in question.attributes})
    assert question_labels(question) or question.id not in RECORDED_QUESTIONS


def test_prompts_are_not_the_published_ones(sample_dir: Path, upstream_dir: Path) -> None:
    own = json.loads((sample_dir / "data" / "question_files" / "questions.json").read_text("utf-8"))
    for path in (upstream_dir / "question_files").glob("*.json"):
        for number, published in json.loads(path.read_text("utf-8")).items():
            sentences = {part.strip() for part in published.split("{")[0].split(". ")}
            assert not sentences & {part.strip() for part in own[number].split("{")[0].split(". ")}


def test_source_grades_are_as_awkward_as_the_published_ones(tmp_path: Path) -> None:
    from reasonknee_hf.knee.sample.sample_tables import grade_tables

    tables = grade_tables(plan(60, seed=0), seed=0)
    rows = {name: list(csv.reader(io.StringIO(text))) for name, text in tables.items()}
    for found in rows.values():
        header = found[0]
        assert header[:4] == ["ID", "SIDE", "READPRJ", "VERSION"]
        assert header.count("V00MCMFMA") == 2
        assert all(name.startswith("V00") for name in header[4:])
        assert all(len(row) == len(header) for row in found)
    cells = {cell for found in rows.values() for row in found[1:] for cell in row[4:]}
    assert {"", ".", "5"} <= cells
    first = rows["taxonomymatch_kMRI_SQ_MOAKS_BICL00.csv"][1:]
    assert len({(row[0], row[1]) for row in first}) < len(first)


# --- cache and command --------------------------------------------------------------------------------------


def run_python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


def test_the_cached_sample_is_written_once_and_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_ASSETS_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path), raising=False)
    folder = sample_folder(scans=3)
    assert tmp_path in folder.parents
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert sample_folder(scans=3) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    files = files_of(folder)
    (folder / "data" / "masks_ab").unlink()
    (folder / "data" / "split_files" / "val_split.csv").write_text("cut")
    assert files_of(sample_folder(scans=3)) == files
    assert [path.name for path in folder.parent.parent.iterdir()] == ["written"]


def test_processes_that_start_together_share_one_sample(tmp_path: Path) -> None:
    code = "from reasonknee_hf.knee.sample import sample_folder; print(sample_folder(scans=3))"
    running = [run_python(code, HF_HOME=str(tmp_path)) for _ in range(2)]
    answers = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    (folder,) = map(Path, answers)
    assert set(files_of(folder)) >= PUBLISHED_FILES
    assert [path.name for path in folder.parent.parent.iterdir()] == ["written"]


def test_importing_the_sample_loads_nothing_heavy() -> None:
    code = """if True:
        import sys, datasets
        before = set(sys.modules)
        import reasonknee_hf.knee.sample, reasonknee_hf.cli.sample_command
        print([m for m in ("nibabel", "torch", "matplotlib") if m in sys.modules and m not in before])
    """
    process = run_python(code)
    assert process.communicate(timeout=60)[0].strip() == "[]"


def test_the_command_writes_a_sample_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert cli.main(["sample", str(folder), "--scans", "3", "--seed", "5"]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert set(files_of(folder)) >= PUBLISHED_FILES
    assert cli.main(["sample", str(folder)]) == 1
    assert "not an empty folder" in capsys.readouterr().err


# --- what other tests build on ------------------------------------------------------------------------------


@pytest.mark.real
def test_the_real_release_has_the_layout_and_boxes_on_its_labels(real_release: Path, real_dir: Path) -> None:
    rows = table(real_release, "all_studies")
    assert len(rows) == len(REAL_SCANS)
    volumes = [nibabel.load(path) for path in (real_release / "data" / "images").rglob("*.nii.gz")]
    assert {volume.shape for volume in volumes} == {(64, 128, 128), (256, 256, 24)}
    archive = masks(real_release)
    assert archive.testzip() is None
    on_oai_grid = 0
    for scan in REAL_SCANS:
        if scan.mask is None:
            continue
        content = archive.read(f"masks/{scan.mask_name}")
        voxels = slice_first(nibabel.Nifti1Image.from_bytes(gzip.decompress(content)))
        on_oai_grid += voxels.shape == (160, 384, 384)
        found = [r for r in records(real_release, scan.split) if r["image"] == f"/{scan.image_path}"]
        assert len(found) == 62
        boxes = 0
        for record in found:
            box = record["final_diagnosis"].get("bounding_box")
            if box is not None:
                boxes += 1
                a, b, c, d, e, f = box
                inside = voxels[a : b + 1, c : d + 1, e : f + 1] > 0
                faces = [np.take(inside, end, axis) for axis in range(3) for end in (0, -1)]
                assert all(face.any() for face in faces)
        assert boxes >= 12
    assert on_oai_grid == 4
    public = real_dir / "knee" / "oai_atlas60_left_mask_step_10.nii.gz"
    assert archive.read("masks/knee_002.nii.gz") == public.read_bytes()


@pytest.mark.real
def test_the_real_release_asks_the_published_prompts(real_release: Path) -> None:
    for split in ("train", "val", "test"):
        found = records(real_release, split)
        assert [question_for_prompt(record["prompt"]).id for record in found] == [*range(1, 63)] * (
            len(found) // 62
        )


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_large_annotation_file_is_json_of_the_announced_size(tmp_path: Path, ascii_only: bool) -> None:
    path = tmp_path / "train.json"
    size = write_big_json(path, records=200, seed=4, ascii_only=ascii_only)
    assert size == path.stat().st_size
    assert 1700 < size / 200 < 2300
    assert json.loads(path.read_text("utf-8")) == list(big_records(200, seed=4))
    assert path.read_bytes().isascii() == ascii_only
    text = path.read_text("utf-8")
    assert all(awkward in text for awkward in ('\\"', "}{ ][", "\\n", "\\\\"))


def test_an_empty_large_annotation_file_is_an_empty_list(tmp_path: Path) -> None:
    write_big_json(tmp_path / "none.json", records=0)
    assert json.loads((tmp_path / "none.json").read_text("utf-8")) == []


@pytest.mark.parametrize("source", ["sample", "a version"])
def test_a_home_that_cannot_be_written_is_one_error_that_says_what_to_set(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    if source != "sample":
        source = str(tmp_path / "version")
        rk.convert(source, "bench", source="sample", volumes="none")
    (tmp_path / "home").write_text("a file")
    monkeypatch.setattr(huggingface_hub.constants, "HF_ASSETS_CACHE", str(tmp_path / "home"))
    with pytest.raises(OptionError, match=r"cannot be kept in .*home.* Set HF_HOME"):
        rk.load_dataset("bench", split="test", streaming=True, source=source)
