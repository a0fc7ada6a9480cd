"""How boxes are written, and which labels a question looks at: pure functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reasonknee_hf.knee.checks.box_evidence import (
    DECLARED,
    Convention,
    conventions,
    label_boxes,
    outside,
    question_labels,
    weigh,
)
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.sample_labels import LABELS, RECORDED_QUESTIONS
from reasonknee_hf.knee.sample.sample_labels import question_labels as sample_labels

ALL = list(conventions())


@st.composite
def some_boxes(draw, least: int = 1) -> np.ndarray:
    ends = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted)
    rows = draw(st.lists(st.tuples(ends, ends, ends), min_size=least, max_size=12))
    return np.array([[*a, *b, *c] for a, b, c in rows], np.int64)


def test_there_are_24_conventions_and_the_declared_one_is_first():
    assert len(set(ALL)) == 24
    assert ALL[0] == DECLARED
    box = np.array([[1, 2, 30, 40, 500, 600]])
    assert DECLARED.write(box).tolist() == box.tolist()
    assert Convention((1, 2, 0), False, True).write(box).tolist() == [[30, 500, 1, 41, 601, 3]]
    assert Convention((1, 2, 0)).write(box).tolist() == [[30, 40, 500, 600, 1, 2]]


@given(some_boxes(), st.sampled_from(ALL))
def test_what_was_written_is_read(boxes, convention):
    assert (convention.read(convention.write(boxes)) == boxes).all()


@pytest.mark.parametrize("convention", ALL, ids=str)
def test_the_convention_is_found(convention):
    """With boxes that are not cubes; a few of them wrong."""
    lot = np.random.default_rng(0)
    low = lot.integers(0, 100, (40, 3))
    boxes = np.stack([low, low + lot.integers(5, 60, (40, 3))], axis=2).reshape(-1, 6)
    written = convention.write(boxes)
    written[:10] += lot.integers(1, 5, (10, 6))
    evidence = weigh(written, boxes)
    assert evidence.best == convention
    assert evidence.conclusive
    assert evidence.ranking[0][1] == 30
    assert str(convention) in evidence.lines()[1]


def test_few_or_contradicting_boxes_prove_nothing():
    boxes = np.array([[1, 5, 10, 30, 50, 90]] * 12)
    assert weigh(boxes[:0], boxes[:0]) is None
    assert not weigh(boxes[:4], boxes[:4]).conclusive
    mixed = np.concatenate([boxes[:6], boxes[6:] + np.array([0, 1, 0, 1, 0, 1])])
    assert not weigh(mixed, boxes).conclusive
    assert not weigh(boxes + 3, boxes).conclusive


def test_a_cube_at_the_diagonal_counts_for_the_declared_order():
    boxes = np.array([[4, 9, 4, 9, 4, 9]] * 12)
    evidence = weigh(boxes, boxes)
    assert evidence.best == DECLARED
    assert not evidence.conclusive


@given(some_boxes())
def test_outside(boxes):
    shape = (150, 200, 100)
    expected = [any(not 0 <= b[2 * a] <= b[2 * a + 1] < shape[a] for a in range(3)) for b in boxes.tolist()]
    assert outside(boxes, np.array([shape] * len(boxes))).tolist() == expected


@given(arrays.arrays("u1", arrays.array_shapes(min_dims=3, max_dims=3, max_side=6), elements=st.sampled_from([0, 1, 7, 255])))  # fmt: skip  # noqa: E501
def test_label_boxes(mask):
    expected = {}
    for label in set(mask.ravel().tolist()) - {0}:
        where = np.argwhere(mask == label)
        expected[label] = np.stack([where.min(0), where.max(0)], axis=1).ravel().tolist()
    assert label_boxes(mask) == expected
    assert label_boxes(np.asfortranarray(mask).transpose(2, 0, 1)) == {
        label: [*box[4:], *box[:4]] for label, box in expected.items()
    }
    stray = np.where(mask == 255, np.uint32(2**32 - 1), mask)
    assert label_boxes(stray) == {
        2**32 - 1 if label == 255 else label: box for label, box in expected.items()
    }


class TestQuestionLabels:
    def test_by_the_mapping_of_the_release(self):
        mapping = {str(number): sample_labels(QUESTIONS[number]) for number in RECORDED_QUESTIONS}
        expected = {n: frozenset(LABELS[name] for name in mapping[str(n)]) for n in RECORDED_QUESTIONS}
        assert question_labels(LABELS, mapping) == expected

    @pytest.mark.parametrize("key", ["18", "femur_medial_trochlea_cartilage_lesion"])
    @pytest.mark.parametrize("value", ["Some_Region", ["some region"], 51, [51]])
    def test_spellings_of_the_mapping(self, key, value):
        assert question_labels({"some region": 51}, {key: value}) == {18: frozenset([51])}

    @pytest.mark.parametrize("value", ["another region", [51, "another region"], None, [], {}, True])
    def test_a_value_that_cannot_be_read_settles_nothing(self, value):
        assert question_labels({"some region": 51}, {"18": value}) == {}

    def test_by_words_where_there_is_no_mapping(self):
        labels = {
            "background": 0,
            "medial_femoral_trochlea": 50,
            "tibia subspinous": 64,
            "medial meniscus": 44,
        }
        found = question_labels(labels, {})
        trochlea, subspinous, cyst, hypertrophy = (3, 18), 15, 54, 56
        assert found == {
            **{question: {50} for question in trochlea},
            subspinous: {64},
            cyst: {44},
            hypertrophy: {44},
        }
