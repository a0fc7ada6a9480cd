"""Rows through torch's `DataLoader`: workers share the rows, resume exactly, and inherit nothing that breaks."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice

import pytest
from support import text_release

import reasonknee_hf
from reasonknee_hf.errors import OptionError

torch = pytest.importorskip("torch")

SCANS = 30


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return str(text_release(tmp_path_factory.mktemp("text") / "release", SCANS))


def stream(release, **options):
    return reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=release, masks=False, **options
    )


def ids_with_worker(rows):
    info = torch.utils.data.get_worker_info()
    return [(info.id if info else 0, row["id"]) for row in rows]


def volume_sums(rows):
    return [(row["id"], int(row["image"].array().sum())) for row in rows]


def loader(ds, collate=ids_with_worker, **options):
    return torch.utils.data.DataLoader(ds, batch_size=31, collate_fn=collate, **options)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_volumes_after_the_parent_did(sample_dir, context):
    ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=str(sample_dir))
    expected = volume_sums(ds)
    batches = loader(ds, volume_sums, num_workers=2, multiprocessing_context=context, timeout=60)
    assert sorted(chain.from_iterable(batches)) == sorted(expected)


@pytest.mark.parametrize("shuffle", [None, 1])
def test_eight_workers_divide_the_rows(release, shuffle):
    pairs = list(chain.from_iterable(loader(stream(release, shuffle=shuffle), num_workers=8)))
    assert Counter(row for _, row in pairs) == Counter(row["id"] for row in stream(release))
    assert {worker for worker, _ in pairs} == set(range(8))
    owners = {}
    for worker, row in pairs:
        assert owners.setdefault(row.split("_")[0], worker) == worker


@pytest.mark.parametrize("shuffle", [None, 1])
def test_one_worker_begins_at_the_start_and_several_refuse(release, shuffle):
    ds = stream(release, shuffle=shuffle, start=345)
    expected = [row["id"] for row in stream(release, shuffle=shuffle)][345:]
    assert [row for _, row in chain.from_iterable(loader(ds, num_workers=1))] == expected
    with pytest.raises(OptionError, match="start=345"):
        list(loader(ds, num_workers=2))


def test_the_epoch_reaches_persistent_workers(release):
    ds = stream(release, shuffle=1)
    batches = loader(ds, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 2, 1):
        ds.set_epoch(epoch)
        epochs.append(list(chain.from_iterable(batches)))
    assert epochs[1] == epochs[3]
    assert len({tuple(order) for order in epochs}) == 3
    assert len({tuple(sorted(row for _, row in order)) for order in epochs}) == 1


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("options", [{}, {"shuffle": 5}])
def test_a_stateful_loader_goes_on_with_the_next_batch(release, workers, options):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def batches():
        return stateful(
            stream(release, **options), batch_size=31, collate_fn=ids_with_worker, num_workers=workers
        )

    expected = [[row for _, row in batch] for batch in batches()]
    seen, state = [], None
    for stop in (3, 1, 20):
        some = batches()
        if state is not None:
            some.load_state_dict(state)
        seen += [[row for _, row in batch] for batch in islice(some, stop)]
        state = json.loads(json.dumps(some.state_dict())) if workers == 0 else some.state_dict()
    assert seen == expected[: len(seen)]
    some = batches()
    some.load_state_dict(state)
    assert seen + [[row for _, row in batch] for batch in some] == expected
