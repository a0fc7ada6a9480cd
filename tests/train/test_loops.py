"""Plain torch loops over the stream: real steps, falling loss, every way of starting workers."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from support import text_release
from tiny_model import tiny_model, tiny_processor
from torch.utils.data import DataLoader

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError, StateError
from reasonknee_hf.train import Collator, get_recipe, training_stream
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

EIGHT = get_recipe("eight", size=56)


@pytest.fixture(scope="module")
def collator():
    return Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)


def train(model, batches, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for batch in itertools.islice(batches, steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
def test_a_plain_loop_sees_every_row_once_and_learns(make_stream, rows, collator, workers, start) -> None:
    next(iter(make_stream()))["image"].array()  # forked workers inherit what the parent did
    loader = DataLoader(
        make_stream(),
        batch_size=16,
        collate_fn=collator,
        num_workers=workers,
        multiprocessing_context=start,
        timeout=120 if workers else 0,
    )
    batches = list(loader)
    seen = [reference.id for batch in batches for reference in batch.references]
    assert sorted(seen) == sorted(row["id"] for row in rows)
    losses = train(tiny_model(collator.processor), itertools.repeat(batches[0].to("cpu")), 8)
    assert losses[-1] < losses[0] - 0.5


def test_workers_decode_no_volume_twice(make_stream, rows, collator, clean_cache) -> None:
    scans = {row["scan_id"] for row in rows}
    before = clean_cache.decodes
    for batch in DataLoader(make_stream(), batch_size=8, collate_fn=collator):
        assert batch["labels"].shape[0] == len(batch.references)
    assert clean_cache.decodes - before == len(scans)


@pytest.mark.parametrize("make", [torch.as_tensor, torch.asarray, torch.tensor, torch.from_dlpack])
def test_a_volume_becomes_a_tensor(rows, make) -> None:
    volume = rows[0]["image"]
    tensor = make(volume)
    assert (tensor.numpy() == volume.array()).all()
    tensor.zero_()  # a copy
    assert volume.array().any()


def test_what_travels_to_workers_is_small(make_stream, collator) -> None:
    stream = training_stream(make_stream(), rows=186)
    assert len(pickle.dumps(stream)) < 1 << 20
    assert len(pickle.dumps(collator)) < 1 << 20


def test_persistent_workers_follow_the_epoch(make_stream, rows) -> None:
    stream = training_stream(make_stream(), rows=len(rows))
    stream.pass_over(epoch=1, batches=3, batch_size=4)
    loader = DataLoader(stream, batch_size=4, collate_fn=list, num_workers=2, persistent_workers=True)
    passed = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        batches = list(loader)
        passed.append([not isinstance(batch[0], dict) for batch in batches])
        assert sum(len(batch) for batch in batches) == len(rows)
    assert passed[1][:3] == [True] * 3
    assert not any([*passed[0], *passed[1][3:], *passed[2]])


def test_a_stream_knows_its_length_and_keeps_its_columns(make_stream, rows) -> None:
    ds = make_stream()
    stream = training_stream(ds)
    assert len(stream) == len(rows)
    assert stream.features == ds.features
    assert stream.column_names == list(next(iter(stream)))
    kept = stream.filter(lambda row: row["question_id"] == 1)
    assert kept.features == ds.features
    assert training_stream(kept).column_names == stream.column_names
    mapped = training_stream(
        stream.map(lambda row: {"id": row["id"]}, remove_columns=["cot"]), rows=len(rows)
    )
    assert mapped.column_names == [name for name in stream.column_names if name != "cot"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_with_the_next_row(
    make_stream, rows, collator, workers, clean_cache
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        stream = training_stream(make_stream(shuffle=3), rows=len(rows))
        return StatefulDataLoader(stream, batch_size=8, collate_fn=ids_only, num_workers=workers)

    whole = list(loader())
    first = loader()
    for _ in itertools.islice(first, 7):
        pass
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    before = clean_cache.decodes
    assert list(second) == whole[7:]
    assert clean_cache.decodes == before


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Makes training streams over 14 scans, the last of which has fewer records."""
    release = str(text_release(tmp_path_factory.mktemp("text") / "release", 14, 62 * 14 - 25))

    def make(**options):
        return training_stream(
            load_dataset("full", split="train", streaming=True, source=release, masks=False, **options)
        )

    return make


@pytest.mark.parametrize("start", [0, 345])
@pytest.mark.parametrize("shuffle", [None, 1])
@pytest.mark.parametrize("equal_steps", [None, "drop", "pad"])
def test_the_length_is_that_of_every_epoch(text, start, shuffle, equal_steps) -> None:
    stream = text(start=start, shuffle=shuffle, equal_steps=equal_steps, num_shards=6)
    for epoch in range(3):
        stream.set_epoch(epoch)
        assert len(list(stream)) == len(stream)


@pytest.mark.parametrize("rank", [0, 1])  # one leaves rows out, the other repeats some
def test_a_part_goes_on_with_the_next_row(text, rank) -> None:
    whole = ids_only(text(shuffle=1).shard(2, rank))
    for stops in ([1, 100], [409, 5], [415, 3], [418, 3]):
        part, seen = text(shuffle=1).shard(2, rank), []
        for stop in stops:
            seen += ids_only(itertools.islice(part, stop))
            state = pickle.loads(pickle.dumps(part.state_dict()))
            part = text(shuffle=1).shard(2, rank)
            part.load_state_dict(state)
        assert seen + ids_only(part) == whole
    part.set_epoch(1)
    assert len(ids_only(part)) == len(whole)


def test_a_loader_of_a_part_goes_on_with_the_next_row(text) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        part = text(shuffle=1).shard(2, 1)
        return StatefulDataLoader(part, batch_size=8, collate_fn=ids_only, num_workers=2)

    whole = list(loader())
    for stop in (7, 51):
        first, second = loader(), loader()
        for _ in itertools.islice(first, stop):
            pass
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert list(second) == whole[stop:]


def test_a_part_refuses_the_state_of_something_else(text) -> None:
    with pytest.raises(StateError, match="part"):
        text(shuffle=1).shard(2, 1).load_state_dict(text(shuffle=1).state_dict())


def test_a_part_without_rows_is_an_error_and_no_rank_that_is_waited_for(text) -> None:
    parts = [text(num_shards=60).shard(20, rank) for rank in range(20)]
    with pytest.raises(OptionError, match="num_shards="):
        list(itertools.chain.from_iterable(parts))


def ids_only(rows: list[dict]) -> list[str]:
    return [row["id"] for row in rows]


def test_memory_is_flat_over_epochs(make_stream, collator) -> None:
    psutil = pytest.importorskip("psutil")
    process = psutil.Process()
    used = []
    for _ in range(4):
        for _ in DataLoader(make_stream(), batch_size=16, collate_fn=collator):
            pass
        used.append(process.memory_info().rss)
    assert used[3] - used[1] < 16 << 20


def test_a_collator_bounds_the_cache_of_its_process(make_stream, clean_cache) -> None:
    before = clean_cache.max_bytes
    small = Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS, cache_bytes=1 << 20)
    try:
        small(list(itertools.islice(make_stream(), 2)))
        assert clean_cache.max_bytes == 1 << 20
    finally:
        clean_cache.resize(before)
