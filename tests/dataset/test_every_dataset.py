"""What streams, shuffles, resumes, shards and round trips promise holds for every dataset of the package."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import chain, islice

import datasets
import pytest
from datasets.distributed import split_dataset_by_node

import reasonknee_hf as rk
from reasonknee_hf.dataset.contract import described, known_names
from reasonknee_hf.errors import OptionError, ReleaseError, StateError

pytestmark = pytest.mark.floor

# Dataset -> config with questions, its split, and the one of training.
CASES = {"reasonknee": ("full", "train"), "deeptumorvqa": ("benchmark", "test")}


@pytest.fixture(params=known_names())
def name(request):
    if request.param not in CASES:
        pytest.skip("made by another test")
    return request.param


def stream(name, **options):
    config, split = CASES[name]
    options = {"source": "sample", "on_error": "null", **options}
    return rk.load_dataset(f"{name}/{config}", split=split, streaming=True, **options)


def ids(rows):
    return [row["id"] for row in rows]


def test_both_ways_to_load_give_the_same_rows(name):
    config, split = CASES[name]
    stock = datasets.load_dataset(
        name, config, split=split, streaming=True, source="sample", on_error="null", **_trusted()
    )
    ours = list(stream(name))
    assert ids(stock) == ids(ours)
    assert {*ours[0]} == {*stock.features}
    assert len({*ids(ours)}) == len(ours) == stream(name).num_rows


def _trusted():
    return {"trust_remote_code": True} if datasets.__version__.startswith("3.") else {}


def test_prepared_rows_are_those_of_the_stream(name, tmp_path):
    config, split = CASES[name]
    prepared = rk.load_dataset(
        f"{name}/{config}", split=split, source="sample", on_error="null", cache_dir=str(tmp_path)
    )
    rows = list(stream(name))
    assert ids(prepared) == ids(rows)
    for one, other in zip(prepared.remove_columns(_volumes(name)), rows, strict=True):
        assert one == {key: value for key, value in other.items() if key in one}


def _volumes(name):
    return [column for column in ("image", "mask") if column in stream(name).features]


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("cut", [1, 30, 62])
def test_a_stream_resumes_behind_any_row(name, shuffle, cut):
    options = {} if shuffle is None else {"shuffle": shuffle}
    whole = ids(stream(name, **options))
    ds = stream(name, **options).map(lambda row: {"seen": True})
    seen = ids(islice(ds, cut))
    state = json.loads(json.dumps(ds.state_dict()))
    again = stream(name, **options).map(lambda row: {"seen": True})
    again.load_state_dict(state)
    assert seen + ids(again) == whole
    assert ids(stream(name, start=cut, **options)) == whole[cut:]


def test_epochs_are_orders_of_the_same_rows(name):
    ds = stream(name, shuffle=1)
    orders = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        orders.append(ids(ds))
    assert orders[0] != orders[1]
    assert Counter(orders[0]) == Counter(orders[1]) == Counter(ids(stream(name)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_rows_and_no_volume(name, ranks):
    parts = [list(split_dataset_by_node(stream(name), rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert Counter(chain(*map(ids, parts))) == Counter(ids(stream(name)))
    scans = [{row["scan_id"] for row in part} for part in parts]
    assert sum(map(len, scans)) == len(set().union(*scans))
    merged = rk.merge_states(
        [split_dataset_by_node(stream(name), r, ranks).state_dict() for r in range(ranks)]
    )
    one = stream(name)
    one.load_state_dict(merged)
    assert ids(one) == ids(stream(name))


def test_a_part_is_chosen_without_reading_the_rest(name):
    rows = list(stream(name))
    number, scan = rows[5]["question_id"], rows[0]["scan_id"]
    assert ids(stream(name, questions=number)) == [r["id"] for r in rows if r["question_id"] == number]
    assert ids(stream(name, scans=scan)) == [r["id"] for r in rows if r["scan_id"] == scan]


def test_a_stream_and_its_rows_travel(name):
    ds = pickle.loads(pickle.dumps(stream(name)))
    row = pickle.loads(pickle.dumps(next(iter(ds))))
    assert row["image"].array().shape == row["image"].shape
    assert not row["image"].array().flags.writeable


def test_a_state_of_one_is_refused_by_the_other():
    one, other = (stream(name) for name in CASES)
    list(islice(one, 3))
    other.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match="source"):
        next(iter(other))


def test_a_release_under_another_name_is_one_error_that_says_which_it_is():
    known = list(CASES)
    for name, other in zip(known, reversed(known), strict=True):
        folder = described(other).open(source="sample").tree.name.removeprefix("folder ")
        with pytest.raises(ReleaseError, match=described(other).title) as error:
            rk.load_dataset(f"{name}/{CASES[name][0]}", streaming=True, source=folder)
        assert f"load_dataset({other!r}" in str(error.value)


def test_an_unknown_config_names_those_of_its_dataset(name):
    with pytest.raises(OptionError, match=CASES[name][0]):
        rk.load_dataset(f"{name}/nothing", streaming=True, source="sample")


def test_a_version_is_a_source_of_the_same_rows(name, tmp_path):
    """With volumes by key, the order of a seed, and states that go on; links to files of the release are null."""
    config = CASES[name][0]
    place = str(tmp_path / "version")
    rk.convert(place, f"{name}/{config}", source="sample", on_error="null")
    links = {*described(name).links, "image", "mask"}
    for one, other in zip(stream(name), stream(name, source=place), strict=True):
        assert {k: v for k, v in one.items() if k not in links} == {k: other[k] for k in one.keys() - links}
        assert (one["image"] is None) == (other["image"] is None)
        assert one["image"] is None or (one["image"].array() == other["image"].array()).all()
    for options in ({}, {"shuffle": 3}):
        whole = ids(stream(name, source=place, **options))
        assert Counter(whole) == Counter(ids(stream(name)))
        ds = stream(name, source=place, **options)
        seen = ids(islice(ds, 40))
        again = pickle.loads(pickle.dumps(stream(name, source=place, **options)))
        again.load_state_dict(ds.state_dict())
        assert seen + ids(again) == whole
    rk.convert(tmp_path / "again", f"{name}/{config}", source=place, on_error="null", volumes="none")
    assert ids(stream(name, source=str(tmp_path / "again"))) == ids(stream(name))


def test_versions_in_one_place_are_put_together_each_row_once(name, tmp_path):
    config, split = CASES[name]
    patients = sorted({scan.patient_id for scan in described(name).open(source="sample").scans(split)})
    place = str(tmp_path / "version")
    for part, chosen in (("a", patients[:2]), ("b", patients[1:])):
        options = {"name": part, "patients": chosen, "on_error": "null", "volumes": "none", "splits": split}
        rk.convert(place, f"{name}/{config}", source="sample", **options)
    found = [row["id"] for row in stream(name, source=place)]
    assert Counter(found) == Counter(row["id"] for row in stream(name, patients=patients))
