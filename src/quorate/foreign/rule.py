"""`Rule`: the update of another framework, as an optimizer of torch calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass
class RuleState:
    """The state of an update: tensors in the shape of each parameter, by name, and those of all parameters."""

    by_parameter: list[dict[str, Tensor]]
    common: Mapping[str, Tensor] = field(default_factory=dict)


class Rule(Protocol):
    """An update of another framework. It may be called any number of times, with any parameters and gradients."""

    rate: float | None
    """The learning rate; None: the framework hides it."""

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
        """Update `parameters` in place. `factor` multiplies the update where the learning rate is hidden.

        A parameter without a gradient had no part in the loss.
        """

    def state(self) -> RuleState:
        """Return the state, in tensors that `take_state` accepts; they may share its memory."""

    def take_state(self, state: RuleState) -> None:
        """Replace the state."""

    def like(self, parameters: Sequence[Tensor]) -> Rule:
        """Return a new rule with the same settings, for these parameters; for steps on trial."""
