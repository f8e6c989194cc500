"""Overrides of a script by the command line: another strategy, other learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module

from quorate.checkpoint.participants import Distributed

Baseline = Callable[[Module], Callable[[], AbstractContextManager[None]]]


@dataclass
class Chosen:
    """Overrides of the script by the command line, for one worker."""

    strategy_name: str | None = None
    """The strategy in place of the script's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings."""
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """Baselines by name: functions that may replace a strategy."""
    learning_rate_factor: float | None = None
    """Factor of all learning rates."""
    label: str | None = None
    """Name of the strategy or baseline of the first distributed optimizer."""
    optimizers: int = 0
    """Number of optimizers distributed so far."""
    begun: list[Callable[[Distributed], None]] = field(default_factory=list)
    """Called, in order, with each optimizer that has been distributed."""
