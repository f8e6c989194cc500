"""The update of a Keras optimizer on the torch backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quorate.keras.rule import KerasRule


class TorchRule(KerasRule):
    """The variables are parameters of torch, which the update writes in place."""

    def value(self, place: int) -> Tensor:
        """Return the value of the optimizer's variable at this place, in its memory."""
        value: Tensor = self.optimizer.variables[place].value.detach()
        return value

    def put(self, place: int, x: Tensor) -> None:
        """Set the variable at this place."""
        value = self.value(place)
        if value.data_ptr() != x.data_ptr():
            value.copy_(x)

    def apply(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], *, is_held: bool) -> None:
        """Call the optimizer's `apply`; parameters that are no variables are copied there and back."""
        values = [variable.value for variable in self.variables]
        foreign = [(p, x) for p, x in zip(parameters, values, strict=True) if p is not x]
        for p, x in foreign:
            x.detach().copy_(p)
        with self.around():
            chosen: Any = [(x, v) for x, v in zip(gradients, self.variables, strict=True) if x is not None]
            if chosen:
                self.optimizer.apply([x for x, _ in chosen], [v for _, v in chosen])
        for p, x in foreign:
            p.copy_(x)
