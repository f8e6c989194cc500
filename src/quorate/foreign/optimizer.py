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
Stamp = tuple[tuple[int, int], ...]
"""The version and the memory of each parameter: equal stamps mean equal numbers."""


def stamp_of(parameters: Iterable[Tensor]) -> Stamp:
    """Return the stamp of the parameters as they are now."""
    return tuple((p._version, p.data_ptr()) for p in parameters)


class ForeignOptimizer(Optimizer):
    """An optimizer whose step calls a `Rule`. Each rule has a subclass of its own (see `foreign_class`).

    The only option is `lr`: the learning rate of the rule, or a factor of the update (1.0) where that is hidden.
    """

    is_foreign: ClassVar[bool] = True
    made_for: ClassVar[Rule]
    """The rule whose settings a new optimizer of this class gets."""

    def __init__(self, params: Iterable[Any], lr: float | None = None, *, rule: Rule | None = None) -> None:
        known = (self.made_for if rule is None else rule).rate
        self._state: Any = None
        self._rule = rule
        self.updated: Stamp | None = None
        """The stamp of the parameters as the newest update has left them."""
        super().__init__(params, {"lr": lr if lr is not None else 1.0 if known is None else known})

    @property
    def rule(self) -> Rule:
        """The update of the framework; a copy of the optimizer for other parameters gets one of its own."""
        rule: Rule | None = self.__dict__.get("_rule")
        if rule is None:
            rule = self._rule = self.made_for.like(parameters_of(self))
        return rule

    @rule.setter
    def rule(self, rule: Rule) -> None:
        self._rule = rule

    @property
    def state(self) -> Any:
        """The state of the update, by parameter, and under "common" that of all parameters."""
        if self.__dict__.get("_state") is None:
            newest, state = self.rule.state(), defaultdict[Any, Any](dict, self.__dict__.pop("_kept", {}))
            for p, own in zip(parameters_of(self), newest.by_parameter, strict=True):
                if own:
                    state[p] = {**state.get(p, {}), **own}
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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the update once, with the gradients in `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rule = self.rule
        hand_back(self)
        rate, known = float(self.param_groups[0]["lr"]), rule.rate
        if known is not None and rate != known:
            rule.rate = rate
        parameters = parameters_of(self)
        rule.update(parameters, [p.grad for p in parameters], rate if known is None else 1.0)
        self.updated = stamp_of(parameters)
        return loss


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def note_rate(optimizer: ForeignOptimizer) -> None:
    """Take the learning rate from the rule, where the framework has changed it."""
    rate = optimizer.rule.rate
    if rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate


def hand_back(optimizer: ForeignOptimizer) -> None:
    """Give the rule the state that was read, and perhaps written; what is not the rule's is kept beside it."""
    own: Any = optimizer.__dict__
    if (state := own.get("_state")) is None:
        return
    rule, parameters = optimizer.rule, parameters_of(optimizer)
    names = {name for values in rule.state().by_parameter for name in values}
    by_parameter = [state.get(p, {}) for p in parameters]
    rule.take_state(RuleState(by_parameter, state.get(_COMMON, {})))
    kept: dict[Any, Any] = {key: x for key, x in state.items() if isinstance(key, str) and key != _COMMON}
    for p, values in zip(parameters, by_parameter, strict=True):
        if beside := {name: x for name, x in values.items() if name not in names}:
            kept[p] = beside
    own["_kept"], own["_state"] = kept, None


def foreign_class(name: str, rule: Rule) -> type[ForeignOptimizer]:
    """Return a class of optimizers with the settings of `rule`, with the name of the framework's optimizer."""
    return type(name, (ForeignOptimizer,), {"made_for": rule, "__module__": __name__, "__doc__": "An update."})
