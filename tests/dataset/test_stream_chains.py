"""Streams resume exactly behind any transforms, with any number of ranks, and with loader workers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import datasets
import pytest
from datasets import concatenate_datasets, interleave_datasets
from datasets.distributed import split_dataset_by_node
from support import text_release

import reasonknee_hf
from reasonknee_hf.dataset.stream import RowStream
from reasonknee_hf.errors import OptionError, StateError

pytestmark = pytest.mark.floor

SCANS = 5
ROWS = 62 * SCANS - 25
COLUMNS = ["id", "question_id"]
CUTS = (
    1,
    1,
    6,
    57,
    62,
    100,
)  # the first row, the next one, in a scan, at its border, behind it, over several


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return str(text_release(tmp_path_factory.mktemp("text") / "release", SCANS, ROWS))


def stream(release, **options):
    return reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=release, masks=False, **options
    )


def even(row):
    return row["question_id"] % 2 == 0


def longer(row):
    return {"length": len(row["id"])}


def longer_ones(rows):
    return {"length": [len(name) for name in rows["id"]]}


def every_third_twice(rows):
    return {
        "id": [
            name
            for name, q in zip(rows["id"], rows["question_id"], strict=True)
            for _ in range(1 + (q % 3 == 0))
        ]
    }


def part(ds, rank, world):
    return split_dataset_by_node(ds, rank=rank, world_size=world)


def shard(ds, rank, world):
    return ds.shard(world, rank)


# A name to what is done; what takes three arguments divides the stream among ranks.
CHAINS = {
    "nothing": [part],
    "shard": [shard],
    "map": [lambda ds: ds.map(longer), part],
    "map_behind": [part, lambda ds: ds.map(longer)],
    "filter": [lambda ds: ds.filter(even), part],
    "filter_behind": [part, lambda ds: ds.filter(even)],
    "map_filter": [lambda ds: ds.map(longer).filter(even), shard],
    "filter_map_filter": [part, lambda ds: ds.filter(even).map(longer).filter(lambda row: row["length"])],
    "batched_map": [lambda ds: ds.map(longer_ones, batched=True, batch_size=7), part],
    "batched_filter": [
        lambda ds: ds.filter(
            lambda rows: [q % 2 == 0 for q in rows["question_id"]], batched=True, batch_size=9
        ),
        part,
    ],
    "more_rows": [
        lambda ds: ds.select_columns(COLUMNS).map(
            every_third_twice, batched=True, batch_size=8, remove_columns=COLUMNS
        ),
        part,
    ],
    "columns": [lambda ds: ds.select_columns(COLUMNS), part],
    "columns_behind": [
        shard,
        lambda ds: ds.remove_columns(["cot", "image"]).rename_column("answer", "reply"),
    ],
    "numpy": [lambda ds: ds.select_columns(COLUMNS).with_format("numpy"), part],
    "numpy_behind": [part, lambda ds: ds.select_columns(COLUMNS).with_format("numpy").map(longer)],
    "arrow": [part, lambda ds: ds.select_columns(COLUMNS).with_format("arrow")],
    "cast": [lambda ds: ds.cast_column("question_id", datasets.Value("int64")), part],
    "undecoded": [lambda ds: ds.remove_columns("image").filter(even).rename_column("answer", "reply"), part],
    "both": [
        shard,
        lambda ds: ds.filter(even),
        lambda ds: ds.map(longer),
        lambda ds: ds.select_columns(COLUMNS),
    ],
    "typed_map": [lambda ds: ds.map(lambda row: row, features=ds.features), part],
}


def chain(release, name, rank=0, world=1, **options):
    ds = stream(release, **options)
    for step in CHAINS[name]:
        if step not in (part, shard):
            ds = step(ds)
        elif world > 1:
            ds = step(ds, rank, world)
    return ds


def names(rows):
    return [row["id"][0].as_py() if hasattr(row, "schema") else str(row["id"]) for row in rows]


def in_pieces(make, *args, cuts=CUTS, **options):
    """The rows of a stream that is made anew and resumed behind each of some cuts."""
    seen, state = [], None
    for cut in (*cuts, None):
        ds = make(*args, **options)
        if state is not None:
            ds.load_state_dict(json.loads(json.dumps(state)))
            assert ds.state_dict() == state  # also before its iteration begins
        seen += names(islice(ds, cut))
        state = ds.state_dict()
    return seen


def each_row_comes_once(release, name, worlds, **options):
    whole = names(chain(release, name, **options))
    assert in_pieces(chain, release, name, **options) == whole
    for world in worlds:
        seen = Counter()
        for rank in range(world):
            ds = chain(release, name, rank, world, **options)
            assert type(ds) is RowStream
            seen.update(in_pieces(chain, release, name, rank, world, **options))
        assert seen == Counter(whole)
    return Counter(whole)


@pytest.mark.parametrize("name", CHAINS)
def test_each_row_comes_once(release, name):
    each_row_comes_once(release, name, [3], **({"shuffle": 3} if len(name) % 2 else {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_each_row_comes_once_in_every_order_at_all_numbers_of_ranks(release, name):
    ordered = each_row_comes_once(release, name, [1, 2, 3, 5])
    assert each_row_comes_once(release, name, [1, 2, 3, 5], shuffle=3) == ordered


@pytest.mark.parametrize("name", ["nothing", "map_filter", "batched_map", "numpy_behind"])
def test_the_state_of_an_epoch_brings_it_along(release, name):
    def make():
        return chain(release, name, 1, 3, shuffle=3)

    ds = make()
    ds.set_epoch(2)
    whole, again = names(ds), make()
    assert whole != names(again)
    ds.set_epoch(2)
    seen = names(islice(ds, 30))
    again.load_state_dict(ds.state_dict())
    assert seen + names(again) == whole


def test_epochs_and_states_hold_in_streams_that_were_put_together(release):
    def make(epoch, together):
        one, two = (stream(release, shuffle=seed).select_columns(COLUMNS) for seed in (1, 2))
        ds = together([one, two.filter(lambda row: row["id"])])
        ds.set_epoch(epoch)
        return ds

    for together in (interleave_datasets, concatenate_datasets):
        orders = [names(make(epoch, together)) for epoch in (0, 1)]
        if together is concatenate_datasets:
            assert Counter(orders[0]) == Counter(orders[1]) == dict.fromkeys(orders[0], 2)
        assert orders[0] != orders[1]
        for epoch, order in enumerate(orders):
            assert in_pieces(make, epoch, together, cuts=(1, 60, 300)) == order


def test_a_buffer_of_shuffled_rows_is_refused_when_it_is_made(release):
    for ds in (stream(release), stream(release).map(longer), part(stream(release), 0, 2)):
        with pytest.raises(OptionError, match="shuffle=<seed>"):
            ds.shuffle(seed=1, buffer_size=10)
    plain = datasets.Dataset.from_dict({"n": [1, 2, 3]}).to_iterable_dataset()
    assert type(plain.map(lambda row: row).shuffle(seed=1)) is datasets.IterableDataset  # not ours


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        "garbage",
        {"epoch": 0},
        {"epoch": "0", "examples_iterable": {}},
        {"epoch": 0, "examples_iterable": None},
        {
            "epoch": 0,
            "examples_iterable": {"shard_idx": 0, "shard_example_idx": 3, "type": "ExamplesIterable"},
        },
    ],
)
def test_garbage_and_foreign_states_are_one_error(release, state):
    for ds in (stream(release), stream(release).map(longer)):
        with pytest.raises(StateError):
            ds.load_state_dict(state)


def test_states_of_another_version_chain_or_rank_are_one_error(release):
    ds = stream(release)
    next(iter(ds))
    state = ds.state_dict()
    for other in (ds.map(longer), ds.filter(even)):
        with pytest.raises(StateError, match="chain of transforms"):
            other.load_state_dict(state)
    older = state | {"examples_iterable": state["examples_iterable"] | {"version": 1}}
    with pytest.raises(StateError, match="version"):
        stream(release).load_state_dict(older)
    broken = state | {"examples_iterable": state["examples_iterable"] | {"places": "?"}}
    ds.load_state_dict(broken)
    with pytest.raises(StateError, match="places"):
        next(iter(ds))
    for world in (2, 5):  # 5 does not divide the shards
        ds = part(stream(release), 0, world)
        next(iter(ds))
        for other in (part(stream(release), 1, world), stream(release), part(stream(release), 0, 3)):
            other.load_state_dict(ds.state_dict())
            with pytest.raises(StateError, match="merge_states"):
                next(iter(other))


class TestLoaders:
    """With workers of a real loader."""

    @pytest.fixture(autouse=True)
    def torchdata(self):
        return pytest.importorskip("torchdata.stateful_dataloader")

    @pytest.mark.parametrize(
        ("name", "workers"), [("map_filter", 2), ("numpy_behind", 2), ("columns", 4), ("batched_map", 2)]
    )
    def test_workers_and_close_checkpoints(self, release, torchdata, name, workers):
        whole = self.in_pieces(release, torchdata, name, workers, 0, 1, ())
        assert self.in_pieces(release, torchdata, name, workers, 0, 1, (1, 1, 20)) == whole
        assert Counter(whole) == Counter(names(chain(release, name, shuffle=3)))

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [0, 2, 4])
    @pytest.mark.parametrize("name", CHAINS)
    def test_all_chains_ranks_and_workers(self, release, torchdata, name, workers):
        expected = Counter(names(chain(release, name, shuffle=3)))
        for world in (1, 2, 3):
            seen = Counter()
            for rank in range(world):
                seen.update(
                    self.in_pieces(release, torchdata, name, workers, rank, world, (1, 1, 2, 3, 5, 8))
                )
            assert seen == expected

    def in_pieces(self, release, torchdata, name, workers, rank, world, cuts):
        seen, state = [], None
        for cut in (*cuts, None):
            ds = chain(release, name, rank, world, shuffle=3)
            loader = torchdata.StatefulDataLoader(ds, batch_size=5, num_workers=workers, collate_fn=names)
            if state is not None:
                loader.load_state_dict(state)
            batches = [*islice(iter(loader), cut)]
            seen += [name for batch in batches for name in batch]
            if cut is not None and len(batches) < cut:
                break  # the state of an epoch that is over: such a loader begins the next one
            state = loader.state_dict()
        return seen


class TestMergedStates:
    """The states of all ranks as one, for another number of them."""

    @pytest.mark.parametrize("name", ["nothing", "map", "numpy_behind"])
    @pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (5, 1), (2, 5)])
    def test_no_row_is_lost_or_repeated(self, release, name, before, after):
        for options in ({}, {"shuffle": 3}):
            expected, seen, state = Counter(names(chain(release, name, **options))), Counter(), None
            for world, cut in ((before, 45), (after, 30), (before, 5), (after, None)):
                states = []
                for rank in range(world):
                    ds = chain(release, name, rank, world, **options)
                    if state is not None:
                        ds.load_state_dict(state)
                    seen.update(names(islice(ds, cut)))
                    states.append(ds.state_dict())
                state = json.loads(json.dumps(reasonknee_hf.merge_states(states)))
            assert seen == expected

    def test_what_cannot_be_merged_is_one_error(self, release):
        def states(world, name="nothing", **options):
            parts = [chain(release, name, rank, world, **options) for rank in range(world)]
            for ds in parts:
                names(islice(ds, 10))
            return [ds.state_dict() for ds in parts]

        for given, named in (
            ([], "no states"),
            ([{"step": 3}], "no states"),
            (states(3)[:2], "missing"),
            (states(3)[1:], "missing"),
            ([*states(3)[:2], states(3, shuffle=1)[2]], "options"),
            (states(2, "batched_map"), "num_examples_since_previous_state"),
            (states(2, equal_steps="drop"), "equal_steps"),
        ):
            with pytest.raises(StateError, match=named):
                reasonknee_hf.merge_states(given)

    def test_of_loaders_for_other_numbers_of_ranks_and_workers(self, release):
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")
        seen, state = Counter(), None
        for world, workers, batches in ((1, 2, 3), (2, 0, 4), (1, 3, None)):
            states = []
            for rank in range(world):
                ds = chain(release, "map", rank, world, shuffle=3)
                if state is not None:
                    ds.load_state_dict(state)
                loader = torchdata.StatefulDataLoader(ds, batch_size=5, num_workers=workers, collate_fn=names)
                for batch in islice(iter(loader), batches):
                    seen.update(batch)
                states.append(loader.state_dict())
            state = reasonknee_hf.merge_states(states) if batches else None
        assert seen == Counter(names(chain(release, "map")))
