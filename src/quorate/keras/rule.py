"""The update of a Keras optimizer, for any parameters and gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import torch
from torch import Tensor

from quorate.foreign.optimizer import Stamp, stamp_of
from quorate.foreign.rule import Rule, RuleState

Around = Callable[[], AbstractContextManager[Any]]


class KerasRule(ABC):
    """A Keras optimizer for these variables; a subclass for each backend. `around` is entered for each `apply`."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], around: Around = nullcontext) -> None:
        self.optimizer, self.variables, self.around = optimizer, list(variables), around
        self.inner = getattr(optimizer, "inner_optimizer", optimizer)
        self.names, self._slots = _places(optimizer, self.inner, len(self.variables))
        rate = getattr(self.inner, "_learning_rate", None)
        self.rate_variable = rate if isinstance(rate, keras.Variable) else None
        self.held: Stamp | None = None
        """The stamp of parameters whose numbers the variables have; None: it is unknown."""
        self.trusts_stamps = True

    @abstractmethod
    def value(self, place: int) -> Tensor:
        """Return the value of the optimizer's variable at this place."""

    @abstractmethod
    def put(self, place: int, x: Tensor) -> None:
        """Set the variable at this place."""

    @abstractmethod
    def apply(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], *, is_held: bool) -> None:
        """Call the optimizer's `apply`, and write its result into `parameters`; `is_held`: the variables have them."""

    @property
    def rate(self) -> float | None:
        """The learning rate; None: a schedule of Keras computes it from the number of updates."""
        return None if self.rate_variable is None else float(self.value(self._place_of(self.rate_variable)))

    @rate.setter
    def rate(self, rate: float | None) -> None:
        assert rate is not None
        self.put(self._place_of(self.rate_variable), torch.tensor(rate))

    def count_micro_batch(self) -> None:
        """Count a batch whose gradients were only added up, as Keras does."""
        place = self._place_of(self.inner._iterations)
        self.put(place, self.value(place) + 1)

    def show(self) -> None:  # noqa: B027 - most have nothing to do
        """Bring the state into the variables, where the rule has it elsewhere."""

    def take_variables(self) -> None:  # noqa: B027 - most have nothing to do
        """Take the state from the variables, where the rule has it elsewhere."""

    def _place_of(self, variable: Any) -> int:
        return next(place for place, other in enumerate(self.optimizer.variables) if other is variable)

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
        """Update `parameters` in place."""
        before = [p.clone() for p in parameters] if factor != 1.0 else []
        self.apply(parameters, gradients, is_held=self.trusts_stamps and self.held == stamp_of(parameters))
        for p, old in zip(parameters, before, strict=bool(before)):
            p.copy_(old + factor * (p - old))
        self.held = None if before else stamp_of(parameters)

    def state(self) -> RuleState:
        """Return the values of the optimizer's variables but the learning rate."""
        by_parameter: list[dict[str, Tensor]] = [{} for _ in self.variables]
        common: dict[str, Tensor] = {}
        for place, variable in enumerate(self.optimizer.variables):
            if variable is self.rate_variable:
                continue
            if (slot := self._slots.get(id(variable))) is None:
                common[self.names[place]] = self.value(place)
            else:
                by_parameter[slot[0]][slot[1]] = self.value(place)
        return RuleState(by_parameter, common)

    def take_state(self, state: RuleState) -> None:
        """Set the optimizer's variables."""
        for place, variable in enumerate(self.optimizer.variables):
            if variable is self.rate_variable:
                continue
            slot = self._slots.get(id(variable))
            values = state.common if slot is None else state.by_parameter[slot[0]]
            x = values.get(self.names[place] if slot is None else slot[1])
            if x is not None:
                self.put(place, x)

    def like(self, parameters: Sequence[Tensor]) -> Rule:
        """Return a rule with an optimizer of the same settings."""
        variables = [keras.Variable(x.detach().cpu().numpy()) for x in parameters]
        settings = {**self.inner.get_config(), "gradient_accumulation_steps": None}
        again = type(self.inner).from_config(settings)
        again.build(variables)
        return type(self)(again, variables)


def _places(optimizer: Any, inner: Any, count: int) -> tuple[list[str], dict[int, tuple[int, str]]]:
    """Return the names of an optimizer's variables, and the parameter and the name of those that belong to one."""
    slots: dict[int, tuple[int, str]] = {}
    for name, held in vars(inner).items():
        if name in ("_variables", "_trainable_variables") or not isinstance(held, list) or len(held) != count:
            continue
        if all(x is None or isinstance(x, keras.Variable) for x in held):
            slots |= {id(x): (place, name.strip("_")) for place, x in enumerate(held) if x is not None}
    names: list[str] = []
    for variable in optimizer.variables:
        same = sum(name.partition("#")[0] == variable.name for name in names)
        names.append(f"{variable.name}#{same}" if same else variable.name)
    return names, slots
