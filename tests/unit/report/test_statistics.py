"""Intervals and verdicts, against tables and by hand."""

from __future__ import annotations

import math

import pytest

from quorate.core.intervals import Interval, mean_interval, ratio_interval, t_quantile
from quorate.report.schema import Estimate
from quorate.report.statistics import chance_of_at_least, difference_verdict, quantile, ratio_verdict


@pytest.mark.parametrize(
    ("freedom", "confidence", "expected"),
    [
        (1, 0.95, 12.7062),
        (2, 0.95, 4.3027),
        (3, 0.95, 3.1824),
        (4, 0.95, 2.7764),
        (9, 0.95, 2.2622),
        (30, 0.95, 2.0423),
        (120, 0.95, 1.9799),
        (1, 0.50, 1.0000),
        (4, 0.99, 4.6041),
        (7, 0.90, 1.8946),
    ],
)
def test_t_is_that_of_the_tables(freedom: int, confidence: float, expected: float) -> None:
    assert t_quantile(freedom, confidence) == pytest.approx(expected, abs=5e-5)


def test_a_mean_lies_within_t_standard_errors() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.mean == 3.0
    assert interval.low == pytest.approx(3.0 - 2.7764 * math.sqrt(2.5 / 5), abs=1e-4)
    assert interval.high == pytest.approx(3.0 + 2.7764 * math.sqrt(2.5 / 5), abs=1e-4)


def test_of_one_value_there_is_no_interval() -> None:
    assert mean_interval([7.0]).low is None
    assert ratio_interval([7.0]).high is None


def test_ratios_are_averaged_as_logarithms() -> None:
    interval = ratio_interval([2.0, 0.5, 1.0])
    assert interval.mean == pytest.approx(1.0)
    assert interval.low is not None and interval.high is not None
    assert interval.low * interval.high == pytest.approx(1.0), "the interval of the inverse is the inverse"


def test_two_values_have_no_interval() -> None:
    assert mean_interval([1.0, 2.0]) == Interval(1.5, None, None)
    assert difference_verdict([(2.0, 1.0), (2.0, 1.0)], higher_is_better=True) == "no significant difference"


def test_a_ratio_is_shown_where_the_interval_excludes_one() -> None:
    faster = [(1.21, 1.0), (1.19, 1.0), (1.20, 1.0)]
    assert ratio_verdict(faster, higher_is_better=True) == "better"
    assert ratio_verdict(faster, higher_is_better=False) == "worse"
    assert ratio_verdict([(1.3, 1.0), (0.9, 1.0), (1.2, 1.0)], higher_is_better=True) == "no significant difference"


def test_pairs_take_out_what_seeds_have_in_common() -> None:
    ours, theirs = [0.50, 0.70, 0.90], [0.49, 0.69, 0.89]
    assert difference_verdict(list(zip(ours, theirs, strict=True)), higher_is_better=True) == "better"
    mixed = list(zip(ours, [theirs[2], theirs[0], theirs[1]], strict=True))
    assert difference_verdict(mixed, higher_is_better=True) == "no significant difference"


def test_one_pair_shows_nothing() -> None:
    assert ratio_verdict([(9.0, 1.0)], higher_is_better=True) == "no significant difference"
    assert difference_verdict([(9.0, 1.0)], higher_is_better=True) == "no significant difference"


def test_what_is_equal_but_for_rounding_is_no_difference() -> None:
    equal = [(40_000.001, 40_000.0)] * 3
    assert ratio_verdict(equal, higher_is_better=False) == "no significant difference"
    assert difference_verdict(equal, higher_is_better=False) == "no significant difference"
    assert ratio_verdict([(20_000.0, 40_000.0)] * 3, higher_is_better=False) == "better"


def test_what_is_too_small_to_matter_is_no_difference() -> None:
    slower, worse = [(1.0064, 1.0), (1.0065, 1.0), (1.0063, 1.0)], [(0.905, 0.91), (0.904, 0.909), (0.906, 0.911)]
    assert ratio_verdict(slower, higher_is_better=False) == "no significant difference"
    assert ratio_verdict(slower, higher_is_better=False, relevant=0.005) == "worse"
    assert difference_verdict(worse, higher_is_better=True) == "no significant difference"
    assert difference_verdict(worse, higher_is_better=True, relevant=0.005) == "worse"


def test_the_binomial_tail() -> None:
    assert chance_of_at_least(0, 10, 0.3) == 1.0
    assert chance_of_at_least(10, 10, 0.5) == pytest.approx(2.0**-10)
    assert chance_of_at_least(5, 10, 0.5) == pytest.approx(0.623046875)
    assert chance_of_at_least(1, 3, 0.25) == pytest.approx(1 - 0.75**3)


def test_quantiles_lie_between_neighbours() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert quantile([3.0], 0.95) == 3.0


@pytest.mark.parametrize(
    ("metric", "values", "low", "high"),
    [
        ("top1", (0.9, 0.99, 0.999), None, 1.0),
        ("accuracy", (0.01, 0.1, 0.02), 0.0, None),
        ("val_acc", (90.0, 99.0, 99.9), None, 100.0),
        ("squared_error", (0.01, 0.1, 0.02), None, None),
        (None, (0.9, 0.99, 0.999), None, None),
        ("top1", (-0.5, 0.99, 0.999), None, None),
    ],
)
def test_the_interval_of_an_accuracy_ends_where_accuracies_end(
    metric: str | None, values: tuple[float, ...], low: float | None, high: float | None
) -> None:
    plain, estimate = mean_interval(values), Estimate.of_qualities((*values, None), metric)
    assert estimate is not None and estimate.values == values and estimate.mean == plain.mean
    assert estimate.low == (plain.low if low is None else low)
    assert estimate.high == (plain.high if high is None else high)
