"""What ranks and workers share, in which order, how many rows there are, and rows of a selection alone."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from support import text_release

import reasonknee_hf
from reasonknee_hf.dataset.selection import Selection
from reasonknee_hf.dataset.shards import shard_count
from reasonknee_hf.errors import OptionError

pytestmark = pytest.mark.floor

SCANS = 60
ROWS = 62 * SCANS


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    root = str(text_release(tmp_path_factory.mktemp("text") / "release", SCANS))
    list(stream(root))  # builds the index
    return root


def stream(source, config="full", split="train", **options):
    return reasonknee_hf.load_dataset(
        config, split=split, streaming=True, source=str(source), masks=False, **options
    )


def ids(rows):
    return [row["id"] for row in rows]


def ranks(ds, world):
    return [split_dataset_by_node(ds, rank=rank, world_size=world) for rank in range(world)]


def test_the_same_order_on_every_version_of_datasets(release):
    digests = []
    for epoch in (0, 1, 5):
        ds = stream(release, shuffle=7)
        ds.set_epoch(epoch)
        digests.append(sha256(" ".join(ids(ds)).encode()).hexdigest()[:12])
    assert digests == GOLDEN
    ds = stream(release)
    order = ids(ds)
    ds.set_epoch(3)
    assert ids(ds) == order  # in published order there is no other


GOLDEN = ["3cee1675ea94", "945a17e0b74b", "24643909a496"]


def test_there_are_no_more_shards_than_scans():
    assert [shard_count(n) for n in (0, 1, 6, 23, 24, 60, 1151, 1152, 8000)] == [
        1,
        1,
        6,
        23,
        24,
        24,
        24,
        48,
        192,
    ]


@pytest.mark.parametrize("options", [{}, {"shuffle": 1}])
def test_no_shard_is_empty_and_each_has_whole_scans(release, options):
    ds = stream(release, **options)
    rows = [ds.shard(ds.num_shards, index).num_rows for index in range(ds.num_shards)]
    assert {*rows} == {2 * 62, 3 * 62}
    assert sum(rows) == ROWS


@pytest.mark.parametrize("options", [{}, {"shuffle": 1}, {"num_shards": 24}])
@pytest.mark.parametrize("world", [2, 3, 5, 7, 16])
def test_ranks_that_do_not_divide_the_shards_share_evenly(release, world, options):
    parts = ranks(stream(release, **options), world)
    counts = [ds.num_rows for ds in parts]
    assert sum(counts) == ROWS
    assert max(counts) - min(counts) <= 62
    assert len({ds._source()[0].num_shards for ds in parts}) == 1
    assert len(ids(parts[-1])) == counts[-1]


def test_two_ranks_of_the_sample(sample_dir):
    for options in ({}, {"shuffle": 1}):
        whole = ids(stream(sample_dir, **options))
        parts = [ids(ds) for ds in ranks(stream(sample_dir, **options), 2)]
        assert Counter(chain(*parts)) == Counter(whole)
        assert min(map(len, parts)) >= len(whole) // 2 - 62 > 0


@pytest.mark.parametrize("world", [2, 5, 7])
def test_equal_steps_lose_less_than_a_row_a_shard(release, world):
    for how in ("drop", "pad"):
        for shuffle in (None, 1):
            parts = ranks(stream(release, equal_steps=how, shuffle=shuffle), world)
            found = [ids(ds) for ds in parts]
            assert len({*map(len, found)}) == 1
            assert [ds.num_rows for ds in parts] == [*map(len, found)]
            seen = Counter(chain(*found))
            shards = world * parts[0]._source()[0].num_shards
            assert abs(sum(seen.values()) - ROWS) < shards
            assert len(seen) == ROWS if how == "pad" else max(seen.values()) == 1


def test_equal_steps_are_told_once(release, caplog):
    with caplog.at_level("WARNING", logger="reasonknee_hf"):
        for ds in ranks(stream(release, equal_steps="drop", num_shards=7), 7):
            for epoch in (0, 1):
                ds.set_epoch(epoch)
                ids(ds)
    assert sum("equal steps" in message for message in caplog.messages) == 1


def test_numbers_of_rows_are_true_or_unknown(release, sample_dir):
    for options in ({}, {"start": 100}, {"equal_steps": "drop"}, {"equal_steps": "pad", "shuffle": 2}):
        ds = stream(release, **options)
        assert ds.num_rows == ds.info.splits["train"].num_examples == len(ids(ds))
        assert ds.map(lambda row: row).num_rows is None
    assert stream(release, on_error="skip").num_rows is None
    assert stream(release, shuffle=1).shard(5, 1).num_rows == ROWS // 5


def test_known_splits_are_told_before_all_are_known(sample_dir, tmp_path):
    splits = reasonknee_hf.load_dataset("full", streaming=True, source=str(sample_dir), masks=False)
    list(splits["validation"])
    again = stream(sample_dir, split="validation")
    assert again.info.splits["validation"].num_examples == again.num_rows == len(ids(again))


class TestSelection:
    def test_questions_patients_scans_and_visits(self, release):
        rows = list(stream(release))
        scan, patient = rows[70]["scan_id"], rows[200]["patient_id"]
        names = stream(release).features["category"].names
        cases = [
            ({"questions": 5}, lambda row: row["question_id"] == 5),
            ({"questions": [1, 62]}, lambda row: row["question_id"] in (1, 62)),
            ({"category": "Cartilage"}, lambda row: names[row["category"]] == "Cartilage"),
            ({"structure": "patella", "category": "BML"}, lambda row: row["structure"] == "patella"
             and names[row["category"]] == "BML"),
            ({"patients": patient}, lambda row: row["patient_id"] == patient),
            ({"scans": [scan], "questions": [3]}, lambda row: row["scan_id"] == scan and row["question_id"] == 3),
            ({"visits": ["00M"]}, lambda row: row["visit"] == "00M"),
        ]  # fmt: skip
        for options, keeps in cases:
            expected = [row["id"] for row in rows if keeps(row)]
            for order in ({}, {"shuffle": 3}, {"equal_steps": "pad", "num_shards": 1}):
                ds = stream(release, **options, **order)
                found = ids(ds)
                assert found == expected if "shuffle" not in order else Counter(found) == Counter(expected)
                assert ds.num_rows == len(expected)
        one = stream(release, questions=5)
        parts = [ids(ds) for ds in ranks(one, 7)]
        assert Counter(chain(*parts)) == Counter(ids(one))
        one = stream(release, questions=5)
        iterator = iter(one)
        seen = [next(iterator)["id"] for _ in range(7)]
        again = stream(release, questions=5)
        again.load_state_dict(one.state_dict())
        assert seen + ids(again) == ids(stream(release, questions=5))
        other = stream(release, questions=6)
        other.load_state_dict(one.state_dict())
        with pytest.raises(reasonknee_hf.ReasonKneeError, match="selection"):
            next(iter(other))

    def test_one_question_of_all_scans_reads_its_records_and_little_else(self, release):
        if not Path("/proc/self/io").exists():
            pytest.skip("bytes that a process reads are counted by Linux alone")

        def read():
            return int(Path("/proc/self/io").read_text().split()[1])

        assert (
            len(ids(stream(release, questions=5))) == SCANS
        )  # imports, and the index, are read before it counts
        ds, array = stream(release, questions=5), next(Path(release).rglob("train.json")).stat().st_size
        before = read()
        list(ds)
        assert read() - before <= array / 40 + 32 * 1024  # the table of the split

    def test_map_style_and_the_config_without_questions(self, release, tmp_path):
        options = {"source": release, "split": "train", "masks": False, "cache_dir": str(tmp_path)}
        for chosen in ({"questions": 5}, {"questions": 6}):  # their caches are told apart
            assert ids(reasonknee_hf.load_dataset(**options, **chosen)) == ids(stream(release, **chosen))
        scans = [row["scan_id"] for row in stream(release, "scans", fraction=0.5)]
        assert 0 < len(scans) < SCANS
        assert {*scans} == {row["scan_id"] for row in stream(release, fraction=0.5)}

    def test_fractions_are_nested_seeded_and_grouped_by_patient(self, release):
        scans = reasonknee_hf.open_release(release).scans("train")

        def kept(fraction, seed=None):
            chosen = Selection(fraction=fraction, fraction_seed=seed)
            return {scan.patient_id for scan in scans if chosen.keeps_scan(scan)}

        sizes = [kept(part / 10) for part in range(1, 11)]
        assert all(one <= other for one, other in pairwise(sizes))
        assert len(sizes[-1]) == len({scan.patient_id for scan in scans})
        assert 15 <= len(sizes[4]) <= 45
        assert kept(0.5, 1) != kept(0.5, 2) == kept(0.5, 2)

    def test_what_cannot_be_chosen_is_refused(self, release):
        for options in (
            {"questions": 99},
            {"questions": "first"},
            {"category": "Bone"},
            {"structure": "elbow"},
            {"category": "BML", "questions": 30},
            {"fraction": 0},
            {"fraction": 1.5},
            {"fraction": True},
            {"patients": "nobody"},
            {"visits": ["00M", "99M"]},
            {"patients": "9000001", "scans": "9000002_00M_20041222_10300002_2"},
            {"config": "scans", "questions": 1},
        ):
            with pytest.raises(OptionError):
                stream(release, **options)


def test_the_class_of_streams_of_others_is_left_alone():
    plain = datasets.Dataset.from_dict({"n": [1, 2, 3]}).to_iterable_dataset()
    assert type(plain.map(lambda row: row)) is datasets.IterableDataset
