"""What the command line says beside the script: another strategy, other learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module

from quorate.wire.current import Place

Baseline = Callable[[Module], Callable[[], AbstractContextManager[None]]]


@dataclass
class Chosen:
    """What the command line says beside the script; one of each worker, as `chosen_in(place)` gives it."""

    strategy_name: str | None = None
    """The strategy in place of the script's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings."""
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """What can stand where a strategy does: by name, what makes an optimizer and a model one."""
    learning_rate_factor: float | None = None
    """What learning rates are multiplied with."""
    label: str | None = None
    """What the first distributed optimizer's strategy or baseline is called."""
    optimizers: int = 0
    """Distributed so far."""


def chosen_in(place: Place) -> Chosen:
    """That of the worker."""
    return place.context(Chosen)
