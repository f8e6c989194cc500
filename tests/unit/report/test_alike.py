"""Figures side by side: one unit and one number of digits, of which the least has enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorate.report import wording


@pytest.mark.parametrize(
    ("alike", "values", "written"),
    [
        (wording.seconds_alike, [0.0571, 0.0342], ["57.1 ms", "34.2 ms"]),
        (wording.seconds_alike, [0.05, 3.35], ["0.050 s", "3.350 s"]),
        (wording.seconds_alike, [0.000002, 3.35], ["2 µs", "3,350,000 µs"]),
        (wording.seconds_alike, [45.0, 725.0], ["0.75 min", "12.08 min"]),
        (wording.seconds_alike, [0.0], ["0 µs"]),
        (wording.bytes_alike, [120_200.0, 10_100.0], ["120 kB", "10 kB"]),
        (wording.bytes_alike, [4_120.0, 5e6], ["4.1 kB", "5,000.0 kB"]),
        (wording.bytes_alike, [90, 12], ["90 B", "12 B"]),
        (wording.numbers_alike, [2217.0, 3557.4], ["2,217", "3,557"]),
        (wording.numbers_alike, [0.0], ["0"]),
        (wording.numbers_alike, [1e-6, 0.5], ["1.00e-06", "5.00e-01"]),
        (lambda values: wording.numbers_alike(values, 4), [0.97181, 1.0], ["0.972", "1.000"]),
        (lambda values: wording.numbers_alike(values, 4), [-0.7, 0.5], ["-0.7000", "0.5000"]),
        (wording.shares_alike, [0.97, 0.5], ["97%", "50%"]),
        (wording.shares_alike, [0.97, 0.004, 0.0001, 0.0], ["97.0%", "0.4%", "<0.1%", "0.0%"]),
        (wording.ratios_alike, [1.5, 12.4], ["1.50×", "12.40×"]),
        (wording.ratios_alike, [1.5, 124.0], ["2×", "124×"]),
    ],
)
def test_one_unit_and_one_number_of_digits(
    alike: Callable[[list[float]], wording.Words], values: list[float], written: list[str]
) -> None:
    words = alike(values)
    assert [words(value) for value in values] == written


def test_what_is_not_known_does_not_count() -> None:
    assert wording.seconds_alike([None, 2.0, float("nan"), float("inf")])(2.0) == "2.00 s"
    assert wording.shares_alike([])(0.5) == "50%"
