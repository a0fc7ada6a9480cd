"""Oversampling of rare grades: the rule, its bounds, and that it depends on nothing but its inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.dataset.order import repeats, total
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.grade_weights import describe_weights, grade_weights, row_weight

COUNTS = {16: {"size": [400, 100, 4, 0], "depth": [500, 4, 0, 0]}, 30: {"grade": [10, 10, 10, 10]}}


def grades(**found: int) -> list[dict]:
    return [{"lesion": "x", "attribute": name, "grade": grade} for name, grade in found.items()]


def test_a_grade_weighs_by_how_rare_it_is_among_rows_of_its_question() -> None:
    weights = grade_weights(COUNTS)
    assert weights[16] == {"size": [1.0, 2.0, 8.0, 0.0], "depth": [1.0, 8.0, 0.0, 0.0]}
    assert weights[30]["grade"] == [1.0] * 4
    assert grade_weights(COUNTS, power=1, limit=50)[16]["size"] == [1.0, 4.0, 50.0, 0.0]
    assert grade_weights(COUNTS, power=0)[16]["size"][:3] == [1.0, 1.0, 1.0]


def test_a_row_weighs_what_its_rarest_grade_does() -> None:
    weights = grade_weights(COUNTS)
    assert row_weight(16, grades(size=1, depth=0), weights) == 2.0
    assert row_weight(16, grades(size=0, depth=1), weights) == 8.0
    assert row_weight(16, grades(size=3, depth=0), weights) == 1.0  # no row of the counts has that grade
    assert row_weight(16, None, weights) == 1.0
    assert row_weight(None, grades(size=2), weights) == 1.0
    assert row_weight(17, grades(size=2), weights) == 1.0


@given(st.lists(st.floats(1, 8), max_size=70), st.integers(0, 2**62), st.integers(0, 2**62))
def test_rows_come_in_proportion_and_none_is_lost(weights: list[float], seed: int, epoch: int) -> None:
    counts = repeats(weights, seed, epoch)
    assert counts == repeats(weights, seed, epoch)
    assert sum(counts) == total(weights)
    assert total(weights) - sum(weights) < 1 + 1e-5
    stretched = total(weights) / sum(weights) if weights else 1
    for weight, count in zip(weights, counts, strict=True):
        assert count >= 1
        assert abs(count - weight * stretched) < 1 + 1e-6


def test_the_odd_repeat_moves_with_the_epoch_and_is_fair() -> None:
    weights = [1.5, 1.0, 2.25, 1.0]
    epochs = [repeats(weights, 7, epoch) for epoch in range(2000)]
    assert len({tuple(counts) for counts in epochs}) > 1
    assert {sum(counts) for counts in epochs} == {6}
    for place, weight in enumerate(weights):
        assert sum(counts[place] for counts in epochs) / 2000 == pytest.approx(weight * 6 / 5.75, abs=0.05)


def test_weights_and_growth_are_reported() -> None:
    table = describe_weights(COUNTS)
    assert (
        "16 patella medial cartilage lesion, size: 0: 1.00 (n=400), 1: 2.00 (n=100), 2: 8.00 (n=4)" in table
    )


@pytest.mark.parametrize("options", [{"power": -1}, {"power": 2}, {"limit": 0.5}])
def test_options_outside_their_range_are_refused(options: dict) -> None:
    with pytest.raises(OptionError):
        grade_weights(COUNTS, **options)
