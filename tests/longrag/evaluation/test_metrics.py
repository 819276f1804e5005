"""Means and their intervals: against scipy's bootstrap, by coverage, and on hostile values."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longrag.errors import InvalidParameterError
from longrag.evaluation.metrics import Estimate, bootstrap_interval, paired_difference_interval

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_the_interval_is_scipys_percentile_bootstrap():
    values = np.random.default_rng(3).beta(2, 5, 300)
    for confidence in (0.8, 0.95, 0.99):
        expected = stats.bootstrap(
            (values,), np.mean, n_resamples=20_000, confidence_level=confidence,
            method="percentile", rng=np.random.default_rng(7),
        ).confidence_interval  # fmt: skip
        ours = bootstrap_interval(values, confidence=confidence, n_resamples=20_000)
        spread = expected.high - expected.low
        assert ours.mean == pytest.approx(values.mean())
        assert ours.low == pytest.approx(expected.low, abs=0.03 * spread)
        assert ours.high == pytest.approx(expected.high, abs=0.03 * spread)


def test_95_of_100_intervals_hold_the_true_mean():
    draws = np.random.default_rng(1).random((400, 100)) < 0.3
    estimates = [bootstrap_interval(draw, n_resamples=500) for draw in draws]
    held = sum(estimate.low <= 0.3 <= estimate.high for estimate in estimates)
    assert 0.91 <= held / 400 <= 0.98


def test_the_interval_narrows_with_the_root_of_the_number_of_questions():
    few, many = (bootstrap_interval([0.0, 1.0] * n, n_resamples=4000) for n in (50, 1250))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(5, rel=0.1)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_the_interval_holds_the_mean_and_lies_within_the_values(values):
    estimate = bootstrap_interval(values, n_resamples=200)
    assert estimate.mean == pytest.approx(sum(values) / len(values))
    slack = 1e-6
    assert min(values) - slack <= estimate.low <= estimate.high <= max(values) + slack
    assert estimate.n == len(values)


def test_none_marks_questions_that_are_left_out_and_counted():
    assert bootstrap_interval([True, None, False, None, 1, 0]) == (
        Estimate(0.5, *_ends([1.0, 0.0, 1.0, 0.0]), n=4, left_out=2)
    )


def _ends(values):
    estimate = bootstrap_interval(values)
    return estimate.low, estimate.high


def test_the_draws_are_repeatable_and_differ_by_seed_whatever_the_block():
    values = list(np.random.default_rng(0).random(700))
    assert bootstrap_interval(values) == bootstrap_interval(np.array(values))
    assert bootstrap_interval(values) != bootstrap_interval(values, random_state=1)
    # 2,000 draws of 700 do not fit in one block.
    blocked = bootstrap_interval(values)
    indices = np.random.default_rng(0)
    means = [np.array(values)[indices.integers(0, 700, 700)].mean() for _ in range(2000)]
    assert (blocked.low, blocked.high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))))


def test_a_constant_or_a_single_value_has_an_interval_without_width():
    assert bootstrap_interval([0.25] * 9) == Estimate(0.25, 0.25, 0.25, 9)
    assert bootstrap_interval([1]) == Estimate(1.0, 1.0, 1.0, 1)


def test_paired_differences_are_of_the_same_questions():
    noise = np.random.default_rng(0).random(200)
    paired = paired_difference_interval(noise + 0.1, noise)
    assert (paired.mean, paired.low, paired.high) == pytest.approx((0.1, 0.1, 0.1))
    one, other = [1, 0, None, 1, 1], [0, None, 1, 1, 0]
    assert paired_difference_interval(one, other) == Estimate(
        2 / 3, *_ends([1.0, 0.0, 1.0]), n=3, left_out=2
    )
    swapped = paired_difference_interval(other, one)
    assert swapped.mean == pytest.approx(-2 / 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "values must be at least one number"),
        ([None, None], "values must be at least one number"),
        ([0.5, float("nan")], r"values\[1\] must be a finite number, got nan"),
        ([float("inf")], r"values\[0\] must be a finite number, got inf"),
        (["1"], r"values\[0\] must be a finite number, got '1'"),
        ([[1.0]], r"values\[0\] must be a finite number"),
    ],
)
def test_values_without_a_mean_are_refused(values, message):
    with pytest.raises(InvalidParameterError, match=message):
        bootstrap_interval(values)
    with pytest.raises(InvalidParameterError, match=message):
        paired_difference_interval(values, [0.0 for _ in values])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 1}, "confidence must be between 0 and 1, got 1"),
        ({"confidence": 95}, "confidence must be between 0 and 1"),
        ({"confidence": float("nan")}, "confidence must be between 0 and 1"),
        ({"n_resamples": 0}, "n_resamples must be an integer of at least 1"),
        ({"n_resamples": 2e3}, "n_resamples must be an integer of at least 1"),
        ({"random_state": -1}, "random_state must be an integer of at least 0"),
        ({"random_state": None}, "random_state must be an integer of at least 0"),
    ],
)
def test_settings_that_are_not_allowed_are_refused(settings, message):
    with pytest.raises(InvalidParameterError, match=message):
        bootstrap_interval([1.0, 0.0], **settings)


def test_different_numbers_of_values_are_refused():
    with pytest.raises(InvalidParameterError, match="baseline must be as many values as the 2"):
        paired_difference_interval([1, 0], [1])
    with pytest.raises(InvalidParameterError, match=r"baseline\[0\] must be a finite number"):
        paired_difference_interval([1], [float("nan")])


def test_importing_the_metrics_loads_neither_nltk_nor_scipy_nor_sacrebleu():
    code = (
        "import sys, longrag.evaluation\n"
        "print([n for n in ('nltk', 'scipy', 'sacrebleu', 'sklearn') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
