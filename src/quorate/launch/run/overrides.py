"""What the launcher says instead of the script, or beside it; it reaches `quorate.join()` through the environment.

The variables may be set by hand as well, so that every launcher can do what `quorate run` does:
`QUORATE_IMBALANCE=one-of:100ms torchrun …`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from quorate.core.errors import ConfigurationError, unknown

SHARES = ("dynamic", "static")
MOST_SEED = 2**63 - 1
"""What generators take."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The choices of a run that are not in its script; None leaves the script's own, or nothing."""

    strategy: str | None = None
    """The name of a strategy or a baseline."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the strategy."""
    seed: int | None = None
    """Of the run: data order, generators, imbalance."""
    imbalance: str | None = None
    pace: str | None = None
    share: str | None = None
    """How the data is cut among workers, instead of the script's `share`."""
    seconds: float | None = None
    """Of training, after which loaders end."""
    learning_rate_factor: float | None = None
    """What the script's learning rates are multiplied with."""

    def as_json(self) -> dict[str, object]:
        """What `run.json` keeps of them."""
        return {
            "strategy": self.strategy,
            "settings": dict(self.settings),
            "seed": self.seed,
            "imbalance": self.imbalance,
            "pace": self.pace,
            "share": self.share,
            "seconds_limit": self.seconds,
            "learning_rate_factor": self.learning_rate_factor,
        }

    def environment(self) -> dict[str, str]:
        """The variables that say so; none where nothing is overridden."""
        told = {
            "QUORATE_STRATEGY": self.strategy,
            "QUORATE_SETTINGS": json.dumps(dict(self.settings)) if self.settings else None,
            "QUORATE_SEED": self.seed,
            "QUORATE_IMBALANCE": self.imbalance,
            "QUORATE_PACE": self.pace,
            "QUORATE_SHARE": self.share,
            "QUORATE_SECONDS": self.seconds,
            "QUORATE_LEARNING_RATE_FACTOR": self.learning_rate_factor,
        }
        return {name: str(value) for name, value in told.items() if value is not None}


def overrides_here() -> Overrides:
    """What the environment of this process says. Raises `ConfigurationError` for what is no number or no JSON."""
    return Overrides(
        strategy=os.environ.get("QUORATE_STRATEGY") or None,
        settings=_settings(),
        seed=_whole("QUORATE_SEED"),
        imbalance=os.environ.get("QUORATE_IMBALANCE") or None,
        pace=os.environ.get("QUORATE_PACE") or None,
        share=_share(),
        seconds=_positive("QUORATE_SECONDS"),
        learning_rate_factor=_positive("QUORATE_LEARNING_RATE_FACTOR"),
    )


def _share() -> str | None:
    text = os.environ.get("QUORATE_SHARE") or None
    if text is not None and text not in SHARES:
        raise unknown("share", text, SHARES)
    return text


def _settings() -> dict[str, object]:
    text = os.environ.get("QUORATE_SETTINGS") or "{}"
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ConfigurationError(f"QUORATE_SETTINGS is {text!r}; it should be a JSON object of settings")
    return settings


def _whole(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not (text.isdecimal() and len(text) < 20 and int(text) <= MOST_SEED):
        raise ConfigurationError(f"{name} is {text!r}; it should be a whole number from 0 on, at most {MOST_SEED}")
    return int(text)


def _positive(name: str) -> float | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} is {text!r}; it should be a number above 0")
    return value
