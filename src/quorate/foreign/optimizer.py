"""`ForeignOptimizer`: an optimizer of torch whose step is the update of another framework.

The state of the update is in `optimizer.state`, as for each optimizer of torch, so that checkpoints, newcomers and
means of momenta have it. It is converted when it is read, and handed back before the next update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.foreign.rule import Rule, RuleState

_COMMON = "common"


class ForeignOptimizer(Optimizer):
    """An optimizer whose step calls a `Rule`. Each rule has a subclass of its own (see `foreign_class`).

    The only option is `lr`: the learning rate of the rule, or a factor of the update (1.0) where that is hidden.
    """

    made_for: ClassVar[Rule]
    """The rule whose settings a new optimizer of this class gets."""

    def __init__(self, params: Iterable[Any], lr: float | None = None, *, rule: Rule | None = None) -> None:
        parameters = list(params)
        self._rule = self.made_for.like(parameters) if rule is None else rule
        self._state: Any = None
        known = self._rule.rate
        super().__init__(parameters, {"lr": lr if lr is not None else 1.0 if known is None else known})

    @property
    def rule(self) -> Rule:
        """The update of the framework."""
        return self._rule

    @property
    def state(self) -> Any:
        """The state of the update, by parameter, and under "common" that of all parameters."""
        if self._state is None:
            newest, state = self._rule.state(), defaultdict[Any, Any](dict)
            for p, own in zip(self._parameters, newest.by_parameter, strict=True):
                if own:
                    state[p] = own
            if newest.common:
                state[_COMMON] = dict(newest.common)
            self._state = state
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state or None

    def __setstate__(self, state: dict[str, Any]) -> None:
        taken = dict(state)
        self.state = taken.pop("state", None)
        super().__setstate__(taken)

    def note_rate(self) -> None:
        """Take the learning rate from the rule, where the framework has changed it."""
        if self._rule.rate is not None:
            for group in self.param_groups:
                group["lr"] = self._rule.rate

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the update once, with the gradients in `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._state is not None:
            own = [dict(self._state[p]) if p in self._state else {} for p in self._parameters]
            self._rule.take_state(RuleState(own, self._state.get(_COMMON, {})))
        rate = float(self.param_groups[0]["lr"])
        factor = rate if self._rule.rate is None else 1.0
        if self._rule.rate is not None and rate != self._rule.rate:
            self._rule.rate = rate
        self._rule.update(self._parameters, [p.grad for p in self._parameters], factor)
        self._state = None
        return loss

    @property
    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def foreign_class(name: str, rule: Rule) -> type[ForeignOptimizer]:
    """Return a class of optimizers with the settings of `rule`, with the name of the framework's optimizer."""
    return type(name, (ForeignOptimizer,), {"made_for": rule, "__module__": __name__, "__doc__": "An update."})
