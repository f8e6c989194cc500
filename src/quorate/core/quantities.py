"""Quantities in text: durations, bandwidths, sizes, factors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from quorate.core.errors import ConfigurationError

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0, "y": 365.25 * 86400.0}
_BYTES_PER_SECOND = {
    "": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6,
}  # fmt: skip
_BYTES = {
    "": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_WATTS = {"": 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6}
_GRAMS = {"g": 1.0, "kg": 1e3}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)\s*")


def seconds_from(text: str, within: str = "") -> float:
    """Return the seconds of a duration: `50us`, `1.5ms`, `2s`, `30min`, `6h`, `1d`, `1y`, or 0.

    `within` is the text that contains it, for errors. Any other number without a unit is refused, as 20 may be meant in
    milliseconds.
    """
    seconds = _quantity(text, _SECONDS, within, "a duration such as 50us, 1.5ms or 2s")
    return _with_unit(seconds, text, within, ("ms", "s"))


def limit_from(text: str) -> float:
    """Return the seconds of a duration with a unit, or of a number, for an option whose name says seconds."""
    return _quantity(text, _SECONDS, "", "a number of seconds, or a duration such as 90s, 30min or 6h")


def bytes_per_second_from(text: str) -> float:
    """Return bytes per second from a bandwidth: `10Gbit`, `1.25GB`, both also with `/s`."""
    wanted = "a bandwidth such as 10Gbit or 1.25GB (per second)"
    return _with_unit(_quantity(text.removesuffix("/s"), _BYTES_PER_SECOND, "", wanted), text, "", ("Gbit", "GB"))


def bytes_from(text: str) -> int:
    """Return the bytes of a size of memory: `24GB`, `500MB`, `16GiB`."""
    return round(_with_unit(_quantity(text, _BYTES, "", "a size such as 24GB or 16GiB"), text, "", ("GB", "GiB")))


def number_from(text: str, within: str = "") -> float:
    """Return a number from 0 on, without a unit."""
    return _quantity(text, {"": 1.0}, within, "a number such as 0.5")


def count_from(text: str) -> float:
    """Return a number that may have a prefix of SI: `312T`, `1.5G`, `64`."""
    return _quantity(text, _COUNTS, "", "a number such as 64, 1.5M or 312T")


def watts_from(text: str) -> float:
    """Return the watts of a power: `6.5kW`, `700W`."""
    return _with_unit(_quantity(text, _WATTS, "", "a power such as 6.5kW or 700W"), text, "", ("kW", "W"))


def per_from(unit: str) -> Callable[[str], float]:
    """Return the function that reads an amount of money for each `unit`, such as `2.5/h`; the currency is the user's
    own."""

    def amount(text: str) -> float:
        number, _, of = text.partition("/")
        if of.strip() != unit:
            raise ConfigurationError(f'"{text}" is not an amount for each {unit}, such as 2.5/{unit}')
        return number_from(number, text)

    return amount


def grams_per_kwh_from(text: str) -> float:
    """Return grams for each kWh: `400g/kWh`, `0.4kg/kWh`."""
    wanted = "a mass for each kWh, such as 400g/kWh"
    mass, _, of = text.partition("/")
    if of.strip() != "kWh":
        raise _wrong(text, "", wanted)
    return _quantity(mass, _GRAMS, "", wanted, shown=text)


def share_from(text: str) -> float:
    """Return a share from a percentage: `1%`, `0.5%`."""
    return _quantity(text, {"%": 0.01}, "", "a share such as 1% or 0.5%")


def factor_from(text: str, within: str = "") -> float:
    """Return a factor, written as `x0.1` or `x2`."""
    if not text.strip().startswith("x"):
        raise _wrong(text, within, "a factor such as x0.1 or x2")
    return _quantity(text.strip()[1:], {"": 1.0}, within, "a factor such as x0.1 or x2", shown=text)


def _quantity(text: str, units: Mapping[str, float], within: str, wanted: str, *, shown: str | None = None) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise _wrong(shown or text, within, wanted)
    try:
        quantity = float(match[1]) * units[match[2]]
    except ValueError:
        quantity = math.inf
    if not math.isfinite(quantity):
        raise _wrong(shown or text, within, wanted)
    return quantity


def _with_unit(quantity: float, text: str, within: str, units: tuple[str, str]) -> float:
    """Return the quantity. Raises `ConfigurationError` for a number above 0 without a unit; `units` are proposed."""
    bare = text.strip()
    if quantity > 0 and not bare[-1].isalpha():
        first, second = (f"{bare}{unit}" for unit in units)
        raise ConfigurationError(f"{_place(text, within)} has no unit: {first} or {second}?")
    return quantity


def _wrong(text: str, within: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{_place(text, within)} is not {wanted}")


def _place(text: str, within: str) -> str:
    return f'"{text}" in "{within}"' if within and within != text else f'"{text}"'
