"""Order, shards and resume of streamed rows."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node
from support import text_release

import reasonknee_hf
from reasonknee_hf.errors import OptionError, RecordError, StateError

pytestmark = pytest.mark.floor

SCANS = 14
ROWS = 62 * SCANS - 25  # the last scan has fewer records than the others


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return str(text_release(tmp_path_factory.mktemp("text") / "release", SCANS, ROWS))


def stream(release, **options):
    return reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=release, masks=False, **options
    )


def release_of(root, like, records):
    """A release with the tables of another one and these records."""
    (root / "data").mkdir()
    (root / "data/split_files").symlink_to(Path(like, "data/split_files"))
    (root / "data/generate_data").mkdir()
    (root / "data/generate_data/train.json").write_text(json.dumps(records))
    return root


def ids(rows):
    return [row["id"] for row in rows]


@pytest.fixture(scope="module")
def published(release):
    return ids(stream(release))


class TestShards:
    def test_published_order(self, release, published):
        records = json.loads(Path(release, "data/generate_data/train.json").read_text())
        assert len(published) == len(set(published)) == ROWS == len(records)
        scans = [record["image"].split("/")[3] for record in records]
        assert [row_id.split("_")[0] for row_id in published] == scans

    @pytest.mark.parametrize("shuffle", [None, 7])
    def test_each_shard_has_whole_scans_and_all_have_nearly_the_same(self, release, published, shuffle):
        ds = stream(release, shuffle=shuffle)
        shards = [ids(ds.shard(ds.num_shards, index)) for index in range(ds.num_shards)]
        assert Counter(chain.from_iterable(shards)) == Counter(published)
        owners = {}
        for number, shard in enumerate(shards):
            for row_id in shard:
                assert owners.setdefault(row_id.split("_")[0], number) == number
        assert {len(shard) // 62 for shard in shards} <= {
            SCANS // len(shards) + extra for extra in (-1, 0, 1)
        }

    @pytest.mark.parametrize("world", [1, 2, 3, 8])
    @pytest.mark.parametrize("shuffle", [None, 3])
    def test_ranks_divide_the_rows(self, release, published, world, shuffle):
        ds = stream(release, shuffle=shuffle)
        ranks = [ids(split_dataset_by_node(ds, rank=rank, world_size=world)) for rank in range(world)]
        assert Counter(chain.from_iterable(ranks)) == Counter(published)
        scans = [{row_id.split("_")[0] for row_id in rank} for rank in ranks]
        assert sum(map(len, scans)) == SCANS  # no scan is touched by two ranks
        assert min(map(len, scans)) >= SCANS // world - world

    def test_num_shards_is_an_option(self, release, published):
        ds = stream(release, num_shards=5)
        assert ds.num_shards == 5
        assert ids(ds) == published


class TestOrder:
    def test_a_shuffle_is_a_pure_function_of_seed_and_epoch(self, release, published):
        orders = {}
        for seed in (1, 2):
            for epoch in (0, 1):
                ds = stream(release, shuffle=seed)
                ds.set_epoch(epoch)
                orders[seed, epoch] = ids(ds)
                again = stream(release, shuffle=seed)
                again.set_epoch(epoch)
                assert ids(again) == orders[seed, epoch]
        assert all(Counter(order) == Counter(published) for order in orders.values())
        assert len({tuple(order) for order in orders.values()} | {tuple(published)}) == 5

    def test_rows_are_mixed_inside_windows_of_scans(self, release):
        order = [row_id.split("_")[0] for row_id in ids(stream(release, shuffle=1, window=4, num_shards=3))]
        last_seen = {scan: place for place, scan in enumerate(order)}
        open_scans, most = set(), 0
        for place, scan in enumerate(order):
            open_scans.add(scan)
            most = max(most, len(open_scans))
            if last_seen[scan] == place:
                open_scans.discard(scan)
        assert most == 4
        assert order[:62] != sorted(order[:62])

    def test_start_seeks_to_a_row(self, release, published):
        for start in (0, 1, 61, 62, 500, ROWS - 1):
            assert ids(islice(stream(release, start=start), 3)) == published[start : start + 3]
        shuffled = ids(stream(release, shuffle=5))
        assert ids(islice(stream(release, shuffle=5, start=345), 100)) == shuffled[345:445]
        with pytest.raises(OptionError, match=f"{ROWS:,}"):
            stream(release, start=ROWS)

    def test_start_counts_rows_as_they_stand_where_those_of_a_scan_do_not_lie_together(
        self, release, tmp_path
    ):
        records = json.loads(Path(release, "data/generate_data/train.json").read_text())
        random.Random(0).shuffle(records)
        root = str(release_of(tmp_path, release, records))
        expected = ids(stream(root))
        assert len(expected) == ROWS
        for start in (1, 10, 100, 345, ROWS - 1):
            assert ids(stream(root, start=start)) == expected[start:]

    @pytest.mark.parametrize(
        "options", [{}, {"shuffle": 5}, {"shuffle": 5, "equal_steps": "drop", "num_shards": 6}]
    )
    def test_start_counts_in_the_order_of_the_epoch(self, release, options):
        def order(ds, epoch):
            ds.set_epoch(epoch)
            return ids(ds)

        ds = stream(release, start=345, **options)
        for epoch in (0, 1, 2):
            expected = order(stream(release, **options), epoch)[345:]
            for some in (ds, split_dataset_by_node(ds, 0, 1), ds.shard(1, 0), ds.map(lambda row: row)):
                assert order(some, epoch) == expected

    def test_ranks_cannot_share_a_start(self, release):
        ds = stream(release, start=345)
        with pytest.raises(OptionError, match="start=345"):
            ds.shard(2, 0)
        with pytest.raises(OptionError, match="start=345"):
            next(iter(split_dataset_by_node(ds, 0, 2)))

    @pytest.mark.parametrize(
        "options",
        [
            {"window": 0},
            {"num_shards": 0},
            {"num_shards": True},
            {"shuffle": -1},
            {"shuffle": True},
            {"shuffle": 1.0},
            {"start": True},
            {"start": np.bool_(True)},
            {"equal_steps": "stop"},
            {"equal_steps": "drop", "on_error": "skip"},
        ],
    )
    def test_values_that_make_no_sense(self, release, options):
        with pytest.raises(OptionError, match=next(iter(options))):
            stream(release, **options)

    def test_no_shuffle_and_numbers_of_numpy(self, release, published):
        assert ids(stream(release, shuffle=False)) == published
        assert ids(stream(release, shuffle=np.int64(7))) == ids(stream(release, shuffle=7))

    def test_orders_are_for_streams(self, release, tmp_path):
        with pytest.raises(OptionError, match="streaming=True"):
            reasonknee_hf.load_dataset("full", source=release, shuffle=1, cache_dir=str(tmp_path))


class TestCounts:
    def test_the_first_full_pass_builds_the_index_and_then_counts_are_known(self, tmp_path):
        release = str(text_release(tmp_path / "release", 5))
        cold = stream(release)
        assert cold.num_rows is None
        assert cold.info.splits is None
        next(iter(cold))
        assert stream(release).num_rows is None
        assert len(ids(cold)) == 5 * 62
        warm = stream(release)
        assert warm.num_rows == warm.info.splits["train"].num_examples == 5 * 62

    def test_a_changed_file_has_another_index(self, tmp_path):
        release = text_release(tmp_path / "release", 3)
        assert len(ids(stream(str(release), shuffle=1))) == 3 * 62
        path = release / "data/generate_data/train.json"
        records = json.loads(path.read_text())
        path.write_text(json.dumps(records[:70]))
        assert len(ids(stream(str(release), shuffle=1))) == 70

    def test_scans_are_counted_in_the_table(self, release):
        ds = reasonknee_hf.load_dataset("scans", split="train", streaming=True, source=release)
        assert ds.num_rows == len(list(ds)) == SCANS


class TestEqualSteps:
    @pytest.mark.parametrize("shuffle", [None, 4])
    @pytest.mark.parametrize("how", ["drop", "pad"])
    def test_all_ranks_and_workers_get_the_same_number(self, release, published, how, shuffle):
        ds = stream(release, equal_steps=how, shuffle=shuffle, num_shards=6)
        shards = [ids(ds.shard(ds.num_shards, index)) for index in range(ds.num_shards)]
        assert len({len(shard) for shard in shards}) == 1
        seen = Counter(chain.from_iterable(shards))
        if how == "drop":
            assert set(seen.values()) == {1}
        else:
            assert set(seen) == set(published)

    def test_the_number_is_reported(self, release, caplog):
        with caplog.at_level("WARNING", logger="reasonknee_hf"):
            next(iter(stream(release, equal_steps="drop", num_shards=6)))
        assert any("dropped" in message and f"{ROWS:,}" in message for message in caplog.messages)

    def test_the_number_is_that_of_the_config(self, release, caplog):
        scans = reasonknee_hf.open_release(release).scans("train")
        chosen = [scan.scan_id for scan in scans[:6]]
        options = {"high_fidelity": chosen, "equal_steps": "drop", "shuffle": 1, "num_shards": 3}
        with caplog.at_level("WARNING", logger="reasonknee_hf"):
            ds = reasonknee_hf.load_dataset(
                "high_fidelity", split="train", streaming=True, source=release, masks=False, **options
            )
            assert len(list(ds)) == 6 * 62
        assert any(f"0 rows are dropped of train, which has {6 * 62} rows" in m for m in caplog.messages)

    def test_another_split_does_not_matter(self, sample_dir):
        source = str(sample_dir)
        for split in reasonknee_hf.load_dataset("full", streaming=True, source=source).values():
            list(split)  # all indexes are there now; validation has fewer scans than shards
        options = {"equal_steps": "drop", "shuffle": 1, "num_shards": 3}
        ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=source, **options)
        assert len(list(ds)) == 3 * 62

    def test_evaluation_never_pads(self, sample_dir):
        with pytest.raises(OptionError, match="bench"):
            reasonknee_hf.load_dataset(
                "bench", split="test", streaming=True, source=str(sample_dir), equal_steps="pad"
            )

    def test_shards_may_cut_scans_but_not_rows(self, release):
        ds = stream(release, equal_steps="drop", num_shards=SCANS * 4)
        assert len(ids(ds)) == ds.num_rows == ROWS - ROWS % (SCANS * 4)
        with pytest.raises(OptionError, match="num_shards"):
            list(stream(release, equal_steps="drop", num_shards=ROWS + 1))


class TestScans:
    """The config without questions has the same orders."""

    def scans(self, release, **options):
        return reasonknee_hf.load_dataset(
            "scans", split="train", streaming=True, source=release, masks=False, **options
        )

    def ids(self, rows):
        return [row["scan_id"] for row in rows]

    def test_a_shuffle_is_a_pure_function_of_seed_and_epoch(self, release):
        published, orders = self.ids(self.scans(release)), []
        for seed, epoch in ((1, 0), (1, 1), (2, 0)):
            ds, again = self.scans(release, shuffle=seed), self.scans(release, shuffle=seed, num_shards=3)
            for some in (ds, again):
                some.set_epoch(epoch)
            orders.append(self.ids(ds))
            assert self.ids(again) == orders[-1]
            assert sorted(orders[-1]) == sorted(published)
        assert len({tuple(order) for order in [*orders, published]}) == 4

    @pytest.mark.parametrize(("how", "each"), [("drop", 3), ("pad", 4)])
    @pytest.mark.parametrize("shuffle", [None, 4])
    def test_equal_steps(self, release, how, each, shuffle):
        ds = self.scans(release, equal_steps=how, shuffle=shuffle, num_shards=4)
        shards = [self.ids(ds.shard(4, index)) for index in range(4)]
        assert [len(shard) for shard in shards] == [each] * 4
        assert len({*chain.from_iterable(shards)}) == min(SCANS, 4 * each)
        with pytest.raises(OptionError, match="num_shards"):
            list(self.scans(release, equal_steps=how, num_shards=SCANS + 1))

    @pytest.mark.parametrize("options", [{}, {"shuffle": 4}, {"equal_steps": "pad", "num_shards": 4}])
    def test_start_and_resume(self, release, options):
        expected = self.ids(self.scans(release, **options))
        assert self.ids(self.scans(release, start=5, **options)) == expected[5:]
        for stop in (1, 4, 9):
            ds = self.scans(release, **options)
            seen = self.ids(islice(ds, stop))
            again = self.scans(release, **options)
            again.load_state_dict(ds.state_dict())
            assert seen + self.ids(again) == expected


def as_it_is(state):
    return state


def through_json(state):
    return json.loads(json.dumps(state))


def through_pickle(state):
    return pickle.loads(pickle.dumps(state))


ORDERS = [
    {"shuffle": 9},
    {"equal_steps": "pad", "num_shards": 6},
    {"shuffle": 9, "equal_steps": "drop", "num_shards": 6},
]


class TestResume:
    @pytest.mark.parametrize(
        ("options", "epoch", "carry"),
        [({}, 0, carry) for carry in (as_it_is, through_json, through_pickle)]
        + [(options, epoch, through_json) for options in ORDERS for epoch in (0, 2)],
    )
    def test_the_next_row_comes_next_again_and_again(self, release, options, epoch, carry):
        ds = stream(release, **options)
        ds.set_epoch(epoch)
        expected = ids(ds)
        seen: list[str] = []
        state = None
        for stop in (1, 61, 1, 200, 300):  # in the first scan, at a border, in the middle
            ds = stream(release, **options)
            ds.set_epoch(epoch)
            if state is not None:
                ds.load_state_dict(carry(state))
            rows = iter(ds)
            seen += ids(islice(rows, stop))
            state = ds.state_dict()
        assert seen == expected[: len(seen)]
        assert len(pickle.dumps(state)) < 100_000
        ds.load_state_dict(state)
        assert seen + ids(ds) == expected

    @pytest.mark.parametrize("options", [{}, {"shuffle": 9}])
    def test_a_state_brings_its_epoch(self, release, options):
        ds = stream(release, **options)
        ds.set_epoch(2)
        expected = ids(ds)
        seen = ids(islice(ds, 100))
        again = stream(release, **options)
        again.load_state_dict(through_json(ds.state_dict()))
        assert seen + ids(again) == expected
        again.set_epoch(3)
        assert Counter(ids(again)) == Counter(expected)

    def test_a_record_that_lacks_its_prompt_is_met_after_a_resume_too(self, release, tmp_path):
        records = json.loads(Path(release, "data/generate_data/train.json").read_text())
        del records[40]["prompt"]
        root = str(release_of(tmp_path, release, records))
        whole = ids(stream(root, on_error="null"))
        ds = stream(root, on_error="null")
        rows = iter(ds)
        given = [next(rows)["id"] for _ in range(40)]
        state = ds.state_dict()
        resumed = stream(root, on_error="null")
        resumed.load_state_dict(state)
        assert given + ids(resumed) == whole
        strict = stream(root)
        rows = iter(strict)
        for _ in range(40):
            next(rows)
        resumed = stream(root)
        resumed.load_state_dict(strict.state_dict())
        with pytest.raises(RecordError, match="prompt"):
            next(iter(resumed))

    def test_what_was_read_does_not_travel(self, release):
        ds = stream(release, shuffle=1)
        assert len(ids(islice(ds, 100))) == 100
        rows = ds._ex_iterable.rows
        assert "index" in vars(rows)
        assert "index" not in vars(pickle.loads(pickle.dumps(rows)))

    def test_a_finished_epoch_has_nothing_left(self, release):
        ds = stream(release)
        assert len(ids(ds)) == ROWS
        state = ds.state_dict()
        ds = stream(release)
        ds.load_state_dict(state)
        assert ids(ds) == []

    @pytest.mark.parametrize(
        ("other", "named"),
        [({"shuffle": 1}, "shuffle"), ({"num_shards": 5}, "shards"), ({"on_error": "null"}, "on_error")],
    )
    def test_a_state_of_another_setup_is_refused_with_the_difference(self, release, other, named):
        ds = stream(release)
        next(iter(ds))
        state = ds.state_dict()
        changed = stream(release, **other)
        changed.load_state_dict(state)
        with pytest.raises(StateError, match=named):
            next(iter(changed))

    def test_a_state_of_another_release_is_refused(self, release, tmp_path):
        ds = stream(release)
        next(iter(ds))
        other = stream(str(text_release(tmp_path / "other", SCANS, ROWS)))
        other.load_state_dict(ds.state_dict())
        with pytest.raises(StateError, match="source"):
            next(iter(other))

    def test_a_state_holds_through_map_and_filter(self, release):
        def chain():
            return (
                stream(release, shuffle=2)
                .map(lambda row: {"n": len(row["prompt"])})
                .filter(lambda row: row["n"] % 2)
            )

        ds = chain()
        expected = ids(ds)
        rows = iter(ds)
        seen = ids(islice(rows, 100))
        state = ds.state_dict()
        ds = chain()
        ds.load_state_dict(state)
        assert seen + ids(ds) == expected
