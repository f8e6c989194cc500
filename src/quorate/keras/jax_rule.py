"""The update of a Keras optimizer on the JAX backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from torch import Tensor

from quorate.foreign.jax_arrays import copied, to_jax, to_torch
from quorate.keras.rule import KerasRule


class JaxRule(KerasRule):
    """The update is a compiled function of arrays; variables have them outside of `fit` only."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values: list[Any] = []
        """The arrays of the optimizer's variables."""
        self.newest: list[Any] = []
        """The arrays of the parameters, as the newest update has returned them."""
        self.take_variables()
        self._update = jax.jit(self._applied)
        self._update_in_place = jax.jit(self._applied, donate_argnums=(0, 1))
        self._is_overwriting = False

    @contextmanager
    def overwriting(self) -> Iterator[None]:
        """Let updates inside write into the arrays of parameters and of the optimizer, which nobody else uses."""
        self._is_overwriting = True
        try:
            yield
        finally:
            self._is_overwriting = False

    def _applied(self, parameters: list[Any], values: list[Any], gradients: list[Any]) -> Any:
        with self.around():
            return self.optimizer.stateless_apply(values, gradients, parameters)

    def take_variables(self) -> None:
        """Take the arrays of all variables."""
        self.values = [variable.value for variable in self.optimizer.variables]
        self.newest = [variable.value for variable in self.variables]

    def show(self) -> None:
        """Assign the arrays to the optimizer's variables."""
        for variable, x in zip(self.optimizer.variables, self.values, strict=True):
            variable.assign(x)

    def value(self, place: int) -> Tensor:
        """Return the value of the optimizer's variable at this place."""
        return to_torch(self.values[place])

    def put(self, place: int, x: Tensor) -> None:
        """Set the value at this place."""
        before = self.values[place]
        self.values[place] = copied(x, before).astype(before.dtype)

    def apply(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], *, is_held: bool) -> None:
        """Call the optimizer's `stateless_apply`."""
        likes = self.newest
        arrays = likes if is_held else [to_jax(p, like) for p, like in zip(parameters, likes, strict=True)]
        grads = [jnp.zeros_like(p) if x is None else to_jax(x, p) for x, p in zip(gradients, arrays, strict=True)]
        update = self._update_in_place if self._is_overwriting and is_held else self._update
        updated, values = update(list(arrays), self.values, grads)
        self.newest, self.values = jax.block_until_ready(list(updated)), list(values)
        for p, x in zip(parameters, self.newest, strict=True):
            p.copy_(to_torch(x))
