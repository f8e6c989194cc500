"""Durations, bandwidths, numbers and factors as people write them."""

from __future__ import annotations

import pytest

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import (
    bytes_per_second_from,
    count_from,
    factor_from,
    grams_per_kwh_from,
    number_from,
    per_from,
    seconds_from,
    share_from,
    watts_from,
)


def test_quantities_are_read() -> None:
    assert seconds_from("1.5ms") == pytest.approx(0.0015)
    assert seconds_from(" 2 s ") == 2.0
    assert seconds_from("30min") == 1800.0
    assert seconds_from("2h") == 7200.0
    assert seconds_from("1y") == 365.25 * seconds_from("1d")
    assert seconds_from("1e+3us") == pytest.approx(0.001)
    assert bytes_per_second_from("8bit/s") == 1.0
    assert number_from("0.5") == 0.5
    assert factor_from("x0.1") == 0.1
    assert share_from("0.5%") == pytest.approx(0.005)
    assert (count_from("312T"), count_from("64")) == (312e12, 64.0)
    assert (watts_from("6.5kW"), watts_from("700 W"), watts_from("0")) == (6500.0, 700.0, 0.0)
    assert (per_from("h")("2.5/h"), per_from("kWh")("0.15 / kWh")) == (2.5, 0.15)
    assert grams_per_kwh_from("0.4kg/kWh") == grams_per_kwh_from("400g/kWh") == 400.0


@pytest.mark.parametrize("text", ["2.5", "2.5/d", "2.5/kWh", "/h", "-1/h"])
def test_money_is_for_each_unit(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a"):
        per_from("h")(text)


def test_energy_has_units() -> None:
    with pytest.raises(ConfigurationError, match='^"6.5" has no unit: 6.5kW or 6.5W'):
        watts_from("6.5")
    for text in ("400", "400/kWh", "400g", "400g/h"):
        with pytest.raises(ConfigurationError, match=f'^"{text}" is not a mass for each kWh, such as 400g/kWh$'):
            grams_per_kwh_from(text)


@pytest.mark.parametrize("text", ["1e999", "1e999ms", "nan", "inf", ".", "-1"])
def test_only_finite_numbers_from_0_on(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        seconds_from(text)
    with pytest.raises(ConfigurationError, match="is not a number"):
        number_from(text)


@pytest.mark.parametrize("text", ["2", "x", "xx2", "x-1", "x2ms", "x1e999"])
def test_a_factor_begins_with_x(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f'^"{text}" in "rank:0:{text}" is not a factor such as x0.1 or x2$'):
        factor_from(text, f"rank:0:{text}")


@pytest.mark.parametrize("text", ["1", "0.01", "%", "-1%", "1 percent"])
def test_a_share_is_in_percent(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f'^"{text}" is not a share such as 1% or 0.5%$'):
        share_from(text)


def test_the_message_quotes_the_whole_once() -> None:
    with pytest.raises(ConfigurationError, match='^"soon" is not a duration'):
        seconds_from("soon", "soon")
    with pytest.raises(ConfigurationError, match='^"ten" in "constant:ten" is not a duration'):
        seconds_from("ten", "constant:ten")


@pytest.mark.parametrize("text", ["20", "1", " 1.0", "2e3", "0.2", "1e-3"])
def test_a_duration_has_a_unit_unless_it_is_0(text: str) -> None:
    assert seconds_from("0") == seconds_from("0.0") == 0.0
    with pytest.raises(ConfigurationError, match=f"has no unit: {text.strip()}ms or "):
        seconds_from(text, f"one-of:{text}")
