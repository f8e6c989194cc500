"""Values of options from their text: settings, durations, bandwidths."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_per_second_from, limit_from, seconds_from

__all__ = ["Value", "bytes_per_second_from", "is_plain", "limit_from", "seconds_from", "settings_from", "strategy_from"]

Value = bool | int | float | str | list["Value"]
_NEXT_SETTING = re.compile(r",(?=\s*[A-Za-z_][\w-]*\s*=)")


def strategy_from(text: str) -> tuple[str, dict[str, Value]]:
    """Return name and settings in `NAME:key=value,key=value`; NAME may be the path of a strategy's file."""
    name, _, written = text.partition(":")
    name = str(Path(name).resolve()) if name.endswith(".py") else name
    pairs = _NEXT_SETTING.split(written) if written else []
    return name, settings_from(pairs, f'--strategy "{text}": settings are written key=value, not')


def settings_from(written: Iterable[str], wrong: str = "--set takes key=value, not") -> dict[str, Value]:
    """Return `key=value` pairs as settings; values as in TOML, else text. The last of equal keys counts."""
    settings = {}
    for pair in written:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f'{wrong} "{pair}"')
        settings[key.strip().replace("-", "_")] = _value(text.strip())
    return settings


def _value(text: str) -> Value:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML; also brackets or numbers without end
        return text
    value = parsed.pop("value")
    return value if not parsed and is_plain(value) else text


def is_plain(value: object) -> bool:
    """Return whether JSON can express a value, as workers receive settings in JSON."""
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)
