"""Bad input: one typed error each, that names the thing and the next step, at once."""

from __future__ import annotations

import os
import shutil

import datasets
import pytest
from hub.faults import status
from support import files_below, text_release

import reasonknee_hf
from reasonknee_hf import errors
from reasonknee_hf.errors import OptionError, ReasonKneeError, RecordError

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
    assert all(word in str(caught.value) for word in (row["id"], "card of the dataset", "images="))


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


class TestReports:
    """What was skipped or emptied is known afterwards, wherever it was met."""

    @pytest.fixture
    def damaged(self, sample_dir, tmp_path):
        """A release with one scan's volume absent, another's cut short and all-well masks; and their scan ids."""
        root = shutil.copytree(sample_dir, tmp_path / "damaged")
        release = reasonknee_hf.open_release(str(root))
        with_records = dict.fromkeys(row["scan_id"] for row in rows(root))
        absent, cut, *_ = (scan for scan in release.scans("train") if scan.scan_id in with_records)
        (root / "data" / absent.image_filepath.removeprefix("../data/")).unlink()
        file = root / "data" / cut.image_filepath.removeprefix("../data/")
        file.write_bytes(file.read_bytes()[:-5000])
        return root, absent.scan_id, cut.scan_id

    def test_raise_is_lazy_and_names_the_row(self, damaged):
        root, absent, cut = damaged
        for row in rows(root):
            if row["scan_id"] in (absent, cut):
                with pytest.raises((errors.VolumeMissingError, errors.VolumeDataError), match=row["id"]):
                    row["image"].array()

    def test_skip(self, damaged, caplog):
        root, absent, cut = damaged
        ds = rows(root, on_error="skip")
        assert not {row["scan_id"] for row in ds} & {absent, cut}
        report = reasonknee_hf.report(ds.map(lambda row: row))
        assert report.counts == {"skipped": 2 * 62}
        assert {fault.row.rpartition("_")[0] for fault in report.faults} == {absent, cut}
        assert any("124 rows skipped" in message for message in caplog.messages)
        _, *reasons = str(report).splitlines()
        assert len(reasons) == 2  # one a scan, not one a row
        assert all(" and 61 more skipped: image: " in reason for reason in reasons)

    def test_null(self, damaged, sample_dir):
        root, absent, cut = damaged
        ds = rows(root, on_error="null")
        seen = [(row["id"], row["scan_id"], row["image"] is None, row["mask"] is None) for row in ds]
        assert [row_id for row_id, *_ in seen] == [row["id"] for row in rows(sample_dir)]
        assert {scan for _, scan, no_image, _ in seen if no_image} == {absent, cut}
        assert not any(no_mask for *_, no_mask in seen)
        assert reasonknee_hf.report(ds).counts == {"nulled": 2 * 62}

    @pytest.mark.parametrize(("on_error", "count"), [("skip", 62), ("null", 0)])
    def test_a_file_that_cannot_be_read(self, release, on_error, count):
        everything = sum(1 for _ in rows(release))
        path = next(iter(rows(release)))["image"].path
        ds = rows(release, on_error=on_error)
        os.unlink(path)
        os.mkdir(path)  # nobody who runs tests as root lacks permissions
        assert sum(1 for row in ds if row["image"] is not None) == everything - 62
        assert sum(1 for row in ds) == everything - count
        faults = reasonknee_hf.report(ds).faults
        assert len(faults) == 62
        assert "cannot be read (Is a directory)" in faults[0].reason

    def test_an_absent_mask(self, release):
        table = release / "data/split_files/train_split.csv"
        table.write_text(table.read_text().replace("knee_000", "knee_900").replace("knee_002", "knee_902"))
        ds = rows(release, on_error="null")
        empty = {row["scan_id"] for row in ds if row["mask"] is None}
        assert empty
        assert {fault.row.rpartition("_")[0] for fault in reasonknee_hf.report(ds).faults} == empty

    def test_prepared_datasets_and_processes(self, damaged, tmp_path):
        root, *_ = damaged
        ds = reasonknee_hf.load_dataset(
            "full",
            split="train",
            source=str(root),
            on_error="skip",
            num_proc=2,
            cache_dir=str(tmp_path / "cache"),
        )
        assert reasonknee_hf.report(ds).counts == {"skipped": 2 * 62}
        again = reasonknee_hf.load_dataset(
            "full", split="train", source=str(root), on_error="skip", cache_dir=str(tmp_path / "cache")
        )
        assert reasonknee_hf.report(again) == reasonknee_hf.report(ds)

    def test_a_release_that_was_mended_and_prepared_anew(self, damaged, tmp_path):
        root, *broken = damaged
        options = {"source": str(root), "on_error": "skip", "cache_dir": str(tmp_path / "cache")}
        assert reasonknee_hf.report(reasonknee_hf.load_dataset("scans", split="train", **options))
        whole = max(
            (root / "data/images").rglob("*.nii.gz"), key=lambda path: path.stat().st_size
        ).read_bytes()
        for scan_id in broken:
            patient, visit, file = scan_id.split("_", 2)
            (root / "data/images" / patient / visit).mkdir(parents=True, exist_ok=True)
            (root / "data/images" / patient / visit / f"{file}.nii.gz").write_bytes(whole)
        again = reasonknee_hf.load_dataset(
            "scans", split="train", **options, download_mode="force_redownload", verification_mode="no_checks"
        )
        assert not reasonknee_hf.report(again)

    def test_parts_and_sums_of_prepared_splits(self, damaged, tmp_path):
        root, *_ = damaged

        def prepared(split, **options):
            return reasonknee_hf.load_dataset(
                "full", split=split, source=str(root), on_error="skip", cache_dir=str(tmp_path), **options
            )

        train, test = prepared("train"), prepared("test")
        expected = reasonknee_hf.report(train)
        assert expected.counts == {"skipped": 2 * 62}
        same = [
            prepared("train[10%:90%]"),
            prepared("test+train"),
            prepared("train", keep_in_memory=True),
            train.map(lambda row: {"n": 1}, keep_in_memory=True),
            train.train_test_split(0.5)["test"],
            train.shuffle(seed=1).select(range(9)),
        ]
        assert [reasonknee_hf.report(ds) for ds in same] == [expected] * len(same)
        assert not reasonknee_hf.report(test)
        everything = reasonknee_hf.report(prepared(None))
        assert {*everything.faults} > {*expected.faults}
        assert reasonknee_hf.report(prepared("train+validation+test")) == everything
        train.save_to_disk(str(tmp_path / "saved"))
        unknown = [
            datasets.load_from_disk(str(tmp_path / "saved")),
            datasets.concatenate_datasets([train, test]),
            datasets.Dataset.from_dict({"a": [1]}),
        ]
        for ds in unknown:
            with pytest.raises(errors.OptionError, match="load_dataset"):
                reasonknee_hf.report(ds)

    def test_streams_that_were_put_together(self, damaged, sample_dir):
        root, *_ = damaged
        ours, clean = rows(root, on_error="skip"), rows(sample_dir, on_error="skip")
        together = [
            datasets.concatenate_datasets([clean, ours]).map(lambda row: row),
            datasets.interleave_datasets([clean, ours], stopping_strategy="all_exhausted"),
            datasets.IterableDatasetDict({"clean": clean, "ours": ours}),
        ]
        list(ours)
        assert [reasonknee_hf.report(ds) for ds in together] == [reasonknee_hf.report(ours)] * 3
        assert reasonknee_hf.report(ours).counts == {"skipped": 2 * 62}

    def test_scans(self, damaged):
        root, absent, cut = damaged
        ds = reasonknee_hf.load_dataset(
            "scans", split="train", streaming=True, source=str(root), on_error="skip"
        )
        assert not {row["scan_id"] for row in ds} & {absent, cut}
        assert {fault.row for fault in reasonknee_hf.report(ds).faults} == {absent, cut}

    def test_an_unreachable_volume_is_not_a_defect_of_the_release(self, sample_dir, origin):
        files = files_below(sample_dir)
        origin.put_tree(REPO, files)
        ds = rows(REPO, endpoint=origin.url, on_error="skip")
        origin.faults(status(503), match="data/images")
        with pytest.raises(errors.EndpointError):
            list(ds)

    def test_other_datasets_have_no_report(self):
        with pytest.raises(errors.OptionError, match="reasonknee_hf loaded"):
            reasonknee_hf.report(datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset())


class TestNothingIsLeft:
    """Where `on_error="skip"` leaves out everything, that is one error, with the reason."""

    def test_in_streams_and_prepared(self, tmp_path):
        source = str(text_release(tmp_path / "release", 2))  # tables and records, and no volume
        options = {"split": "train", "source": source, "on_error": "skip"}
        with pytest.raises(RecordError, match=r"nothing is left of train(.|\n)*cannot be opened"):
            list(reasonknee_hf.load_dataset("full", streaming=True, **options))
        with pytest.raises(RecordError, match=r"nothing is left of train(.|\n)*cannot be opened"):
            reasonknee_hf.load_dataset("full", cache_dir=str(tmp_path / "cache"), **options)


class TestFeatures:
    def test_types_of_ones_own(self, sample_dir, tmp_path):
        options = {"split": "validation", "source": str(sample_dir)}
        features = reasonknee_hf.load_dataset("full", streaming=True, **options).features.copy()
        features["question_id"] = datasets.Value("int64")
        features["category"] = datasets.Value("string")
        stream = reasonknee_hf.load_dataset("full", streaming=True, features=features, **options)
        prepared = reasonknee_hf.load_dataset("full", features=features, cache_dir=str(tmp_path), **options)
        assert prepared.features["question_id"] == datasets.Value("int64")
        assert prepared["category"][:] == [row["category"] for row in stream]
        assert {type(row["category"]) for row in prepared} == {str}
        assert isinstance(prepared[0]["mask"], reasonknee_hf.KneeVolume)

    def test_other_columns_are_refused_before_anything_is_read(self, sample_dir, tmp_path):
        features = datasets.Features({"prompt": datasets.Value("string")})
        for streaming in (True, False):
            with pytest.raises(OptionError, match="columns prompt"):
                reasonknee_hf.load_dataset(
                    "full",
                    source=str(sample_dir),
                    features=features,
                    streaming=streaming,
                    cache_dir=str(tmp_path),
                )
        assert not [*tmp_path.rglob("*.arrow")]


def test_an_absent_config_is_named_by_get_dataset_infos(tmp_path):
    source = str(text_release(tmp_path / "release", 2))
    with pytest.raises(ReasonKneeError, match="no high_fidelity config"):
        datasets.get_dataset_config_info("reasonknee", "high_fidelity", source=source)
