"""Choices of the launcher that override the script's, or add to them; `quorate.join()` reads them from the environment.

The variables may be set by hand as well, so that every launcher can do what `quorate run` does:
`QUORATE_IMBALANCE=one-of:100ms torchrun …`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from quorate.core.axes import axes_from_text
from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, unknown
from quorate.wire.used import is_used

SHARES = ("dynamic", "static")
MOST_SEED = 2**63 - 1
"""The largest seed of generators."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The choices of a run that are not in its script; None leaves the script's own, or nothing."""

    strategy: str | None = None
    """The name of a strategy or a baseline."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the strategy."""
    seed: int | None = None
    """The seed of the run: data order, generators, imbalance."""
    imbalance: str | None = None
    pace: str | None = None
    share: str | None = None
    """How the data is cut among workers, instead of the script's `share`."""
    mesh: str | None = None
    """How many replicas there are, of how many shards."""
    zero: int | None = None
    """The stage of ZeRO."""
    offload: str | None = None
    """The tensors that are kept in host memory."""
    seconds: float | None = None
    """Seconds of training after which loaders end."""
    failures: str | None = None
    """Failures of workers, which `chaos` makes."""
    chaos: int | None = None
    """The seed of their schedule; there is none without it."""
    learning_rate_factor: float | None = None
    """A factor of the script's learning rates."""
    shrink: str | None = None
    """The steps that make the model smaller, in the words of `quorate compare --shrink`."""
    log: str | None = None
    """Names of loggers, instead of the script's."""
    printed_metric: str | None = None
    """A metric that the script prints: its name, "=", and the pattern of a line, whose group is the number."""
    replay: str | None = None
    """The folder of a run, whose rounds are formed once more."""
    leave_within: float | None = None
    """Seconds that workers have to leave when they are asked to, instead of `Stop.limit`."""

    def as_json(self) -> dict[str, object]:
        """Return the entry of `run.json`."""
        return {"seconds_limit" if name == "seconds" else name: value for name, value in asdict(self).items()}

    def environment(self) -> dict[str, str]:
        """The variables that say so; none where nothing is overridden."""
        values = {**asdict(self), "settings": json.dumps(dict(self.settings)) if self.settings else None}
        return {_variable(name): str(value) for name, value in values.items() if value is not None}


def overrides_here() -> Overrides:
    """Return the choices in this environment. Raises `ConfigurationError` for invalid numbers or JSON."""
    said = {entry.name: os.environ.get(_variable(entry.name)) for entry in fields(Overrides)}
    read: dict[str, Any] = {name: text for name, text in said.items() if text}
    for name in _READERS.keys() & read.keys():
        read[name] = _READERS[name](_variable(name), read[name])
    return Overrides(**read)


_VARIABLES = {"pace": "QUORATE_MIN_STEP_TIME", "share": "QUORATE_DATA_SHARE"}
"""Variables that have the name of the option, and not of the field."""


def _variable(name: str) -> str:
    return _VARIABLES.get(name, f"QUORATE_{name.upper()}")


def _share(name: str, text: str) -> str:
    if text not in SHARES:
        raise unknown("share", text, SHARES)
    return text


def _settings(name: str, text: str) -> dict[str, object]:
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ConfigurationError(f"{name} is {text!r}; it should be a JSON object of settings")
    return settings


def _whole(name: str, text: str) -> int:
    if not (text.isdecimal() and len(text) < 20 and int(text) <= MOST_SEED):
        raise ConfigurationError(f"{name} is {text!r}; it should be a whole number (at least 0), at most {MOST_SEED}")
    return int(text)


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} is {text!r}; it should be a number above 0")
    return value


_READERS: Mapping[str, Callable[[str, str], object]] = {
    "settings": _settings,
    "seed": _whole,
    "chaos": _whole,
    "zero": _whole,
    "share": _share,
    "seconds": _positive,
    "learning_rate_factor": _positive,
    "leave_within": _positive,
}
"""By field, what reads the text of the variable of a name; the others are texts."""


def asked_strategy(chosen: Overrides) -> str | None:
    """The strategy that was asked for, as on the command line; None where none was."""
    if chosen.strategy is not None:
        return f"--strategy {chosen.strategy}"
    return " ".join(f"--set {name}={value}" for name, value in chosen.settings.items()) or None


def asked_mesh(chosen: Overrides, size: int) -> str | None:
    """The mesh that was asked for, as on the command line; None where every worker has the whole model anyway."""
    if size == 1 or (chosen.mesh is not None and axes_from_text(chosen.mesh, size).of_replica == 1):
        return None
    words = [f"--mesh {chosen.mesh}"] if chosen.mesh is not None else []
    words += [f"--zero {chosen.zero}"] if chosen.zero is not None else []
    return " ".join(words) or None


def unused(strategy: str) -> str:
    """Return the sentence about a strategy that was asked for and that no worker used."""
    return (
        f"{strategy} was asked for, and no worker used it: the script never called quorate.distribute(optimizer, "
        "model). There was also no optimizer of a model in DistributedDataParallel in a forward pass"
    )


def why_unused(board: Board, chosen: Overrides, size: int) -> str | None:
    """Return why a run that ended well did not do what was asked; None if it did."""
    strategy, mesh = asked_strategy(chosen), asked_mesh(chosen, size)
    if strategy is not None and not is_used(board, "strategy"):
        return unused(strategy)
    if mesh is not None and not is_used(board, "mesh"):
        return (
            f"{mesh} was asked for, and no worker used it: the script never called quorate.parallelize(model), which "
            "spreads the model"
        )
    return None
