"""Each kind of defect, planted in a copy of the clean sample, is reported, and nothing else is."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import verify_plants as plant
from verify_plants import counts, report_on

from reasonknee_hf.knee.checks.table_checks import fold_id
from reasonknee_hf.knee.sample import write_sample
from reasonknee_hf.verify.findings import KINDS

pytestmark = pytest.mark.floor
PLANTS, planted = plant.registry()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("clean") / "release", flaws=False)


@pytest.fixture
def root(clean: Path, tmp_path: Path) -> Path:
    return plant.copy_of(clean, tmp_path / "release")


@planted()
def nothing(root):
    pass


@planted(table_missing=1)
def a_table_is_absent(root):
    (root / "data/split_files/test_split.csv").unlink()


@planted(table_broken=1)
def a_table_has_an_unknown_side(root):
    lines = plant.rows(root, "val_split")
    plant.set_rows(root, "val_split", [lines[0], [*lines[1][:4], "both", *lines[1][5:]]])


@planted(table_broken=1)
def the_table_of_all_studies_lacks_a_column(root):
    plant.set_rows(root, "all_studies", [line[1:] for line in plant.rows(root, "all_studies")])


@planted(scan_twice=1)
def a_row_stands_twice(root):
    lines = plant.rows(root, "train_split")
    plant.set_rows(root, "train_split", [*lines, lines[1]])


@planted(table_path=1)
def the_side_is_not_that_of_the_path(root):
    side = plant.cell(root, "train", 0, "knee_side")
    plant.edit_row(root, "train", 0, knee_side="12"[side == "1"])


@planted(file_of_two_scans=1, file_unlisted=1)
def two_scans_name_one_mask(root):
    plant.edit_row(root, "train", 0, label_filepath=plant.cell(root, "train", 1, "label_filepath"))


@planted(patient_in_two_splits=1)
def a_patient_is_in_two_splits(root):
    plant.move_scan(root, "train", plant.two_scans_of_one_patient(root, "train"), "test")


# The patient's two spellings, the row and its path; expert files no longer name a listed patient.
@planted(ids_alike=2, file_unlisted=13)
def a_patient_id_gains_a_zero(root):
    number = plant.two_scans_of_one_patient(root, "train")
    plant.edit_row(root, "train", number, patient_id="0" + plant.cell(root, "train", number, "patient_id"))


@planted(ids_alike=1)
def a_series_became_a_decimal(root):
    plant.edit_row(root, "train", 0, series_folder=plant.cell(root, "train", 0, "series_folder") + ".0")


@planted(ids_alike=1)
def a_folder_is_written_small(root):
    path = plant.volume(root, "test")
    moved = path.parent.with_name(path.parent.name.lower())
    moved.mkdir()
    path.rename(moved / path.name)


@planted(ids_alike=1)
def a_mask_number_lost_its_zeros(root):
    number = plant.mask_name(root, "train").removeprefix("knee_")
    plant.edit_row(root, "train", 0, label_filepath=f"../data/masks/knee_0{number}")


@planted(ids_alike=1, records_per_scan=1)
def a_record_writes_its_patient_with_a_zero(root):
    def edit(records):
        records[0]["image"] = records[0]["image"].replace("/images/", "/images/0")

    plant.edit_records(root, "train", edit)


@planted(studies_differ=1)
def all_studies_lacks_a_scan(root):
    plant.set_rows(root, "all_studies", plant.rows(root, "all_studies")[:-1])


@planted(volume_missing=1)
def a_volume_is_absent(root):
    plant.volume(root, "test").unlink()


@planted(volumes_absent=6)
def there_are_no_volumes(root):
    shutil.rmtree(root / "data/images")


@planted(mask_missing=1)
def a_mask_is_not_in_the_archive(root):
    plant.edit_members(root, lambda masks: masks.pop(f"masks/{plant.mask_name(root, 'val')}"))


@planted(masks_absent=6)
def there_are_no_masks(root):
    for part in ("aa", "ab"):
        (root / f"data/masks_{part}").unlink()


@planted(mask_unnamed=1, file_unlisted=1)
def a_table_names_no_mask(root):
    plant.edit_row(root, "test", 0, label_filepath="")


@planted(path_ambiguous=1, file_unlisted=2)
def a_bare_name_fits_two_volumes(root):
    path = plant.volume(root, "test")
    other = root / "data/images/more" / path.name
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    plant.edit_row(root, "test", 0, image_filepath=path.name)


@planted(archive_broken=1)
def the_archive_lost_its_end(root):
    part = root / "data/masks_ab"
    part.write_bytes(part.read_bytes()[:-3000])


@planted(empty_file=1)
def a_volume_is_empty(root):
    plant.volume(root, "train").write_bytes(b"")


@planted(empty_file=1)
def a_mask_is_empty(root):
    plant.edit_members(root, lambda masks: masks.update({f"masks/{plant.mask_name(root, 'val')}": b""}))


@planted(empty_file=1)
def an_annotation_file_is_empty(root):
    (root / "data/generate_data/val.json").write_bytes(b"")


@planted(empty_file=1)
def a_table_is_empty(root):
    (root / "data/split_files/val_split.csv").write_bytes(b"")


@planted(empty_file=1)
def a_part_of_the_archive_is_empty(root):
    (root / "data/masks_ab").write_bytes(b"")


@planted(pointer_file=1)
def a_volume_is_a_pointer(root):
    plant.volume(root, "train").write_bytes(plant.POINTER)


@planted(pointer_file=1)
def a_mask_is_a_pointer(root):
    name = f"masks/{plant.mask_name(root, 'val')}"
    plant.edit_members(root, lambda masks: masks.update({name: plant.POINTER}))


@planted(pointer_file=1)
def an_annotation_file_is_a_pointer(root):
    (root / "data/generate_data/train.json").write_bytes(plant.POINTER)


@planted(pointer_file=1)
def a_table_is_a_pointer(root):
    (root / "data/split_files/test_split.csv").write_bytes(plant.POINTER)


@planted(pointer_file=1)
def a_part_of_the_archive_is_a_pointer(root):
    (root / "data/masks_aa").write_bytes(plant.POINTER)


@planted(file_unlisted=3)
def there_are_files_that_nobody_lists(root):
    extra = root / "data/images/9000099/00M/20041222_10300001_2.nii.gz"
    extra.parent.mkdir(parents=True)
    extra.write_bytes(plant.volume(root, "train").read_bytes())
    plant.edit_members(root, lambda masks: masks.update({"masks/knee_999.nii.gz": b"x" * 2000}))
    expert = root / "data/OAI/segmentation/00mDESS/0.C.2/9000099/20041222/10300001/Femur.nii.gz"
    expert.parent.mkdir(parents=True)
    expert.write_bytes(b"x" * 2000)


@planted(identical_in_two_splits=1)
def a_volume_is_in_two_splits(root):
    plant.volume(root, "test").write_bytes(plant.volume(root, "train").read_bytes())


@planted(identical_in_two_splits=1)
def a_mask_is_in_two_splits(root):
    train, test = (f"masks/{plant.mask_name(root, split)}" for split in ("train", "test"))
    plant.edit_members(root, lambda masks: masks.update({test: masks[train]}))


@planted(identical_files=1)
def a_volume_is_twice_in_one_split(root):
    plant.volume(root, "train", 1).write_bytes(plant.volume(root, "train", 0).read_bytes())


@planted(annotations_missing=1)
def an_annotation_file_is_absent(root):
    (root / "data/generate_data/val.json").unlink()


@planted(annotation_broken=1, records_per_scan=1)
def a_record_is_broken(root):
    path = root / "data/generate_data/train.json"
    text = path.read_text("utf-8")
    at = text.index('"image"', len(text) // 2)
    path.write_text(text[:at] + '"image" oops' + text[at + 7 :], "utf-8")


@planted(annotation_broken=1, records_per_scan=1)
def an_annotation_file_is_cut(root):
    path = root / "data/generate_data/val.json"
    path.write_bytes(path.read_bytes()[:-700])


@planted(annotation_broken=1, scan_without_records=1)
def an_annotation_file_is_a_web_page(root):
    (root / "data/generate_data/val.json").write_text("<html>Please sign in</html>")


@planted(record_without_scan=2)
def records_name_a_scan_that_nobody_lists(root):
    def edit(records):
        extra = copy.deepcopy(records[:2])
        for record in extra:
            record["image"] = "/data/images/9000099/00M/20041222_10300001_2.nii.gz"
        records.extend(extra)

    plant.edit_records(root, "train", edit)


@planted(record_of_other_split=1)
def a_test_record_stands_in_train(root):
    record = plant.records(root, "test")[0]
    plant.edit_records(root, "train", lambda records: records.append(record))


@planted(grade_outside=1)
def a_grade_is_outside_its_space(root):
    edit_grades(root, size=5)


@planted(record_unfit=1)
def a_grade_is_text(root):
    edit_grades(root, size="2")


def edit_grades(root, **grades):
    def edit(records):
        next(iter(records[3]["final_diagnosis"]["final_diagnosis"].values())).update(grades)

    plant.edit_records(root, "val", edit)


@planted(record_unfit=1)
def a_box_has_its_ends_swapped(root):
    plant.edit_records(root, "test", lambda records: plant.boxes_of(records)[0].__setitem__(0, 10_000))


@planted(record_unfit=1, records_per_scan=1)
def a_record_names_no_volume(root):
    plant.edit_records(root, "test", lambda records: records[0].update(image=7))


@planted(record_conflict=1)
def two_records_contradict_each_other(root):
    def edit(records):
        extra = copy.deepcopy(records[20])
        extra["answer"] += " "
        records.append(extra)

    plant.edit_records(root, "val", edit)


@planted(record_duplicate=3)
def records_are_repeated(root):
    plant.edit_records(root, "val", lambda records: [*records, records[0], records[0], records[9]])


@planted(prompt_unknown=1)
def a_prompt_is_unknown(root):
    plant.edit_records(
        root, "val", lambda records: records[0].update(prompt="What is the capital of France?")
    )


@planted(grades_missing=1)
def a_record_has_no_grades(root):
    plant.edit_records(root, "val", lambda r: r[0]["final_diagnosis"].update(final_diagnosis=None))


def edit_diagnosis(root, edit):
    """Changes the diagnosis of a record of three attributes, and what its answer says of it."""

    def change(records):
        record = records[0]
        record["final_diagnosis"]["final_diagnosis"] = edit(record["final_diagnosis"]["final_diagnosis"])
        reasoning, marker, _ = record["answer"].rpartition("Final diagnosis:")
        record["answer"] = f"{reasoning}{marker} {json.dumps(record['final_diagnosis'])}"

    plant.edit_records(root, "val", change)


@planted(lesion_unknown=1)
def a_lesion_is_not_the_one_of_the_question(root):
    edit_diagnosis(root, lambda lesions: {"patella_upper_BML": next(iter(lesions.values()))})


@planted(attribute_unknown=1)
def an_attribute_is_not_one_of_the_question(root):
    edit_diagnosis(root, lambda lesions: {name: grades | {"colour": 1} for name, grades in lesions.items()})


@planted(grades_partial=1)
def two_of_three_attributes_are_there(root):
    edit_diagnosis(root, lambda lesions: {name: dict([*some.items()][:2]) for name, some in lesions.items()})


@planted(prompt_empty=1)
def a_prompt_is_empty(root):
    plant.edit_records(root, "val", lambda records: records[0].update(prompt=""))


@planted(answer_missing=1)
def an_answer_is_absent(root):
    plant.edit_records(root, "val", lambda records: records[0].pop("answer") and None)


@planted(answer_unmarked=1)
def an_answer_lacks_its_marker(root):
    plant.edit_records(root, "val", lambda records: records[0].update(answer="It looks normal."))


@planted(answer_contradicts=1)
def an_answer_says_another_grade(root):
    plant.edit_records(
        root, "val", lambda r: r[0].update(answer=r[0]["answer"].replace('"size": 0', '"size": 1'))
    )


@planted(box_missing=1)
def a_record_has_no_box(root):
    plant.edit_records(root, "val", lambda r: r[0]["final_diagnosis"].pop("bounding_box") and None)


@planted(scan_without_records=1)
def a_scan_has_no_records(root):
    plant.edit_records(root, "train", lambda records: records[62:])


@planted(records_per_scan=1)
def a_scan_lacks_a_record(root):
    plant.edit_records(root, "train", lambda records: records[1:])


@planted(balanced_differs=1)
def the_balanced_file_says_something_else(root):
    records = copy.deepcopy(plant.records(root, "test")[::4])
    records[2]["answer"] += "!"
    plant.set_records(root, "test_balanced", records)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_reported_and_only_it(name, root):
    plant_it, expected = PLANTS[name]
    plant_it(root)
    report = report_on(root)
    assert counts(report) == expected
    assert report.exit_code == any(KINDS[kind][0] == "error" for kind in expected)


@pytest.mark.parametrize(
    "spelling",
    [
        "./{}",
        "../../{}",
        "/home/someone/proj/{}",
        "C:\\knees\\{}",
        "/mnt/{}",
    ],
)
def test_spellings_of_a_path_are_no_defect(spelling, root):
    for column in ("image_filepath", "label_filepath"):
        path = plant.cell(root, "train", 0, column).removeprefix("../")
        if "\\" in spelling:
            path = path.replace("/", "\\")
        plant.edit_row(root, "train", 0, **{column: spelling.format(path)})
    assert counts(report_on(root)) == {}


def test_bytes_of_a_table_that_mean_nothing_are_no_defect(root):
    for name in plant.TABLES:
        path = root / f"data/split_files/{name}.csv"
        text = path.read_text().replace(",", " , ").replace("\n", "\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert counts(report_on(root)) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0012", "12"),
        ("00M", "0m"),
        ("9000001.0", "9000001"),
        ("knee_3.nii.gz", "knee_003.nii.gz"),
        ("000", "0"),
    ],
)
def test_ids_that_differ_only_in_zeros_or_case(one, other):
    assert fold_id(one) == fold_id(other)


@pytest.mark.parametrize(
    ("one", "other"), [("10", "1"), ("9000010", "900001"), ("1.5", "1"), ("0.C.2", "C.2")]
)
def test_ids_that_differ(one, other):
    assert fold_id(one) != fold_id(other)
