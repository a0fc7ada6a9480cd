"""`balance="grades"`: rare grades come more often, in every epoch the same number of rows, resumable to the row."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice

import pytest

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.dataset.order import total
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.grade_weights import grade_weights, row_weight


def stream(source, **options):
    return load_dataset(
        "full", split="train", streaming=True, source=str(source), **{"shuffle": 3, **options}
    )


@pytest.fixture(scope="module")
def plain(sample_dir) -> list[dict]:
    return list(stream(sample_dir))


@pytest.fixture(scope="module")
def weights(plain) -> dict[str, float]:
    """The weight of each row, from the counts of the rows themselves."""
    counts: dict = {}
    for row in plain:
        for item in row["grades"]:
            of_grades = counts.setdefault(row["question_id"], {}).setdefault(item["attribute"], [0] * 9)
            of_grades[item["grade"]] += 1
    table = grade_weights(counts)
    return {row["id"]: row_weight(row["question_id"], row["grades"], table) for row in plain}


def test_rows_come_as_often_as_their_weight_says(sample_dir, plain, weights) -> None:
    seen = Counter(row["id"] for row in stream(sample_dir, balance="grades"))
    assert set(seen) == {row["id"] for row in plain}
    assert any(weight > 1 for weight in weights.values())
    scans: dict[str, list[str]] = {}
    for row in plain:
        scans.setdefault(row["scan_id"], []).append(row["id"])
    for ids in scans.values():
        of_scan = [weights[name] for name in ids]
        assert sum(seen[name] for name in ids) == total(of_scan)
        stretched = total(of_scan) / sum(of_scan)
        assert all(abs(seen[name] - weights[name] * stretched) < 1 + 1e-6 for name in ids)


def test_epochs_differ_in_order_and_not_in_length(sample_dir) -> None:
    ds = stream(sample_dir, balance="grades")
    orders = []
    for epoch in (0, 1, 0):
        ds.set_epoch(epoch)
        orders.append([row["id"] for row in ds])
    assert orders[0] == orders[2] != orders[1]
    assert len(orders[0]) == len(orders[1])


def test_a_state_leads_to_the_next_row(sample_dir) -> None:
    whole = [row["id"] for row in stream(sample_dir, balance="grades")]
    for taken in (1, 60, 150, len(whole) - 1):
        ds = stream(sample_dir, balance="grades")
        assert [row["id"] for row in islice(ds, taken)] == whole[:taken]
        again = stream(sample_dir, balance="grades")
        again.load_state_dict(ds.state_dict())
        assert [row["id"] for row in again] == whole[taken:]


def test_ranks_take_equal_steps(sample_dir) -> None:
    from datasets.distributed import split_dataset_by_node

    ds = stream(sample_dir, balance="grades", equal_steps="pad", num_shards=3)
    parts = [[row["id"] for row in split_dataset_by_node(ds, rank, 3)] for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert all(parts)


def test_weights_are_reported(sample_dir, caplog, tmp_path, monkeypatch) -> None:
    from reasonknee_hf.dataset.index import row_index
    from reasonknee_hf.knee import grade_weights as weights
    from reasonknee_hf.knee.description import open_release

    release = open_release(str(sample_dir))
    path = release.annotation_path("train")
    index = row_index(release, path)
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="reasonknee_hf"):
        first = weights.row_weights(release, path, index)
        assert "weights of grades: (most / n) ** 0.5, at most 8" in caplog.text
        caplog.clear()
        assert (weights.row_weights(release, path, index) == first).all()
        assert not caplog.text


@pytest.mark.parametrize(
    ("name", "options"), [("full", {}), ("bench", {"shuffle": 1}), ("scans", {"shuffle": 1})]
)
def test_balance_goes_with_a_shuffle_of_rows_to_train_on(sample_dir, name, options) -> None:
    with pytest.raises(OptionError, match="needs shuffle="):
        load_dataset(name, streaming=True, source=str(sample_dir), balance="grades", **options)


def test_an_unknown_balance_lists_the_valid_ones(sample_dir) -> None:
    with pytest.raises(OptionError, match="Valid: grades"):
        stream(sample_dir, balance="patients")
