"""What is written after an option, as values: settings, durations, bandwidths."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from quorate.core.errors import ConfigurationError

Value = bool | int | float | str | list["Value"]

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES_PER_SECOND = {
    "": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6,
}  # fmt: skip


def settings_from(written: Iterable[str]) -> dict[str, Value]:
    """`key=value` pairs; a value is what TOML makes of it, or the text itself. The last of equal keys counts."""
    settings = {}
    for one in written:
        key, equals, text = one.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f'--set takes key=value, not "{one}"')
        settings[key.strip().replace("-", "_")] = _value(text.strip())
    return settings


def seconds_from(text: str) -> float:
    """A duration: `50us`, `1.5ms`, `2s`, or a number of seconds."""
    return _quantity(text, _SECONDS, "a duration such as 50us, 1.5ms or 2s")


def bytes_per_second_from(text: str) -> float:
    """A bandwidth: `10Gbit`, `1.25GB`, both also with `/s`, or a number of bytes per second."""
    return _quantity(text.removesuffix("/s"), _BYTES_PER_SECOND, "a bandwidth such as 10Gbit or 1.25GB (per second)")


def _value(text: str) -> Value:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed.pop("value")
    is_plain = not parsed and _is_plain(value)
    return value if is_plain else text


def _is_plain(value: object) -> bool:
    """Whether JSON can say it: the workers get settings so."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)


def _quantity(text: str, units: dict[str, float], wanted: str) -> float:
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in units:
        raise ConfigurationError(f'"{text}" is not {wanted}')
    try:
        return float(found[1]) * units[found[2]]
    except ValueError:
        raise ConfigurationError(f'"{text}" is not {wanted}') from None
