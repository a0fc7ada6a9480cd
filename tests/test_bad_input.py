"""Bad input: one typed error each, that names the thing and the next step, at once."""

from __future__ import annotations

import shutil

import pytest
from support import files_below

import reasonknee_hf
from reasonknee_hf import errors

pytestmark = pytest.mark.floor

REPO = "someone/knees"


@pytest.fixture
def release(sample_dir, tmp_path):
    """A copy of the sample that a test may break."""
    return shutil.copytree(sample_dir, tmp_path / "release")


def rows(source, **options):
    split = options.pop("split", "train")
    return reasonknee_hf.load_dataset("full", split=split, streaming=True, source=str(source), **options)


def test_missing_folder(tmp_path):
    missing = tmp_path / "nowhere"
    with pytest.raises(errors.ReasonKneeError) as caught:
        rows(missing)
    assert str(missing) in str(caught.value)


def test_folder_that_is_no_release(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(errors.ReleaseError, match=r"not a 3DReasonKnee release.*notes.txt.*source"):
        rows(tmp_path)


def test_empty_repository(origin):
    origin.put_tree(REPO, {})
    with pytest.raises(errors.ReleaseError, match=r"someone/knees.*empty"):
        rows(REPO, endpoint=origin.url)


def test_one_part_of_the_archive_missing(release):
    (release / "data/masks_aa").unlink()
    row = next(iter(rows(release)))
    with pytest.raises(errors.ArchiveError, match="masks_aa"):
        row["mask"].array()


def test_broken_json_names_file_offset_and_record(release):
    path = release / "data/generate_data/train.json"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(errors.AnnotationError, match=r"data/generate_data/train.json, byte \d+, record \d+"):
        list(rows(release))


def test_table_without_a_needed_column(release):
    table = release / "data/split_files/train_split.csv"
    table.write_text(table.read_text().replace("series_folder", "series"))
    with pytest.raises(errors.ReleaseError, match=r"train_split.csv.*series_folder"):
        rows(release)


def test_unknown_revision(origin, sample_dir):
    origin.put_tree(REPO, files_below(sample_dir))
    with pytest.raises(errors.RemoteMissingError, match="no-such-branch") as caught:
        rows(REPO, revision="no-such-branch", endpoint=origin.url)
    assert origin.url in str(caught.value)


def test_unknown_repository(origin):
    with pytest.raises(errors.RemoteMissingError, match="nobody/nothing"):
        rows("nobody/nothing", endpoint=origin.url)


def test_unreachable_endpoint():
    with pytest.raises(errors.UnreachableError, match=r"http://127.0.0.1:9"):
        rows(REPO, endpoint="http://127.0.0.1:9")


def test_a_volume_that_is_nowhere_fails_when_touched_and_says_where_to_get_it(release):
    shutil.rmtree(release / "data/images")
    row = next(iter(rows(release)))
    assert row["prompt"]
    with pytest.raises(errors.VolumeMissingError) as caught:
        row["image"].array()
    assert all(word in str(caught.value) for word in (row["id"], "Osteoarthritis Initiative", "images="))


def test_volumes_from_another_root(release, tmp_path):
    elsewhere = shutil.move(release / "data/images", tmp_path / "mine")
    row = next(iter(rows(release, images=str(elsewhere))))
    assert row["image"].path.startswith(str(elsewhere))
    assert row["image"].array().ndim == 3


def test_no_expert_segmentations(release):
    shutil.rmtree(release / "data/OAI")
    with pytest.raises(errors.ReleaseError, match=r"no expert segmentations.*high_fidelity="):
        reasonknee_hf.load_dataset("high_fidelity", streaming=True, source=str(release))


def test_no_balanced_arrays(release):
    for path in release.glob("data/generate_data/*balanced*"):
        path.unlink()
    with pytest.raises(errors.ReasonKneeError, match="balanced"):
        rows(release, annotations="balanced")


class TestRecordsThatDoNotFit:
    @pytest.fixture
    def broken(self, release):
        """A release whose first train record has a grade outside its space."""
        path = release / "data/generate_data/train.json"
        text = path.read_text()
        first = text.index('"size": ') + len('"size": ')
        path.write_text(text[:first] + "9" + text[first + 1 :])
        return release

    def test_raise_names_row_file_and_offset(self, broken):
        with pytest.raises(errors.RecordError, match=r"row 9\d+.*train.json.*byte \d+.*9.*on_error"):
            list(rows(broken))

    def test_skip_leaves_only_that_row_out(self, broken, sample_dir):
        expected = [row["id"] for row in rows(sample_dir)]
        assert [row["id"] for row in rows(broken, on_error="skip")] == expected[1:]

    def test_null_keeps_the_row_without_its_grades(self, broken, sample_dir):
        expected = [row["id"] for row in rows(sample_dir)]
        kept = list(rows(broken, on_error="null"))
        assert [row["id"] for row in kept] == expected
        assert kept[0]["grades"] is None
        assert '"size": 9' in kept[0]["final_diagnosis"]
        assert all(row["grades"] is not None for row in kept[1:])
