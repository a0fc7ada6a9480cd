"""Passing rows on without walking through them gives what `datasets` gives."""

from __future__ import annotations

import copy
import pickle

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.knee.description import row_features
from reasonknee_hf.volumes.volume import KneeVolume

pytestmark = pytest.mark.floor

FEATURES = row_features("full")
STOCK = datasets.Features(dict(FEATURES))

text = st.none() | st.text(max_size=5)
volume = st.none() | st.fixed_dictionaries({"bytes": st.none(), "path": st.text(min_size=1, max_size=5)})
grade = st.fixed_dictionaries(
    {"lesion": text, "attribute": text, "grade": st.none() | st.integers(0, 8) | st.just(np.int64(3))}
)
VALUES = {
    "id": text,
    "knee_side": st.none() | st.sampled_from([0, 1, "right", "left", np.int64(1)]),
    "image": volume | st.just("a/b.nii.gz"),
    "question_id": st.none() | st.integers(1, 69) | st.just(np.int32(4)),
    "category": st.none() | st.integers(0, 6) | st.sampled_from(["BML", "Meniscus"]),
    "bbox": st.none() | st.lists(st.integers(0, 300), min_size=6, max_size=6) | st.just(np.arange(6)),
    "grades": st.none() | st.lists(grade, max_size=3),
    "final_diagnosis": text,
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_encoding_equals_that_of_datasets(row):
    ours = FEATURES.encode_example(row)
    assert ours == STOCK.encode_example(row)
    assert list(ours) == list(FEATURES)


@given(st.fixed_dictionaries(VALUES))
def test_decoding_equals_that_of_datasets_but_for_the_label(row):
    stored = STOCK.encode_example(row)
    ours, theirs = FEATURES.decode_example(stored), STOCK.decode_example(stored)
    assert list(ours) == list(theirs)
    volume = ours.pop("image")
    stock_volume = theirs.pop("image")
    assert ours == theirs
    assert (volume and volume.storage) == (stock_volume and stock_volume.storage)
    if volume is not None:
        assert volume.label == (row["id"] or None)


@pytest.mark.parametrize("value", [{"category": "no such"}, {"category": 7}, {"bbox": 3}, {"image": 3}])
def test_what_datasets_refuses_is_refused(value):
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError)) as theirs:
        STOCK.encode_example(value)
    with pytest.raises(type(theirs.value)):
        FEATURES.encode_example(value)


def test_a_replaced_column_type_is_used():
    features = row_features("full")
    row = {"image": {"bytes": None, "path": "a"}, "bbox": [0, 1, 2, 3, 4, 5]}
    assert isinstance(features.decode_example(features.encode_example(row))["image"], KneeVolume)
    features["image"] = datasets.Value("string")
    assert features.encode_example({"image": "a"})["image"] == "a"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_stay_row_features(copied):
    again = copied(FEATURES)
    assert type(again) is RowFeatures
    assert again == FEATURES


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (datasets.ClassLabel(names=["a", "b"]), 1),
        (datasets.ClassLabel(names=["a", "b"]), "b"),
        (datasets.Value("float32"), 1),
        (datasets.Value("int8"), np.int64(1)),
        (datasets.Value("string"), None),
        ({"inner": datasets.Value("int8")}, {"inner": 1}),
    ],
)
def test_structs_of_any_members_are_encoded_as_datasets_does(part, value):
    types = {"list": [{"name": datasets.Value("string"), "part": part}]}
    for item in ({"name": "x", "part": value}, {"part": value, "name": "x"}):
        ours = RowFeatures(types).encode_example({"list": [item]})
        assert repr(ours) == repr(datasets.Features(types).encode_example({"list": [item]}))


def test_columns_that_are_renamed_in_place_are_followed():
    text = datasets.Value("string")
    features = RowFeatures({"a": text})
    assert features.encode_example({"a": "x"}) == {"a": "x"}
    del features["a"]
    features["b"] = text
    assert features.encode_example({"a": "x", "b": "y"}) == {"b": "y"}
