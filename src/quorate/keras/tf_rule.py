"""The update of a Keras optimizer on the TensorFlow backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from torch import Tensor

from quorate.foreign.tf_tensors import to_tf, to_torch
from quorate.keras.rule import KerasRule


class TensorFlowRule(KerasRule):
    """The update is a compiled function that writes variables of TensorFlow."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._update = tf.function(self._applied, reduce_retracing=True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _applied(self, gradients: list[Any]) -> None:
        with self.around():
            self.optimizer.apply(gradients, self.variables)

    def value(self, place: int) -> Tensor:
        """Return the value of the optimizer's variable at this place."""
        return to_torch(self.optimizer.variables[place].value).clone()

    def put(self, place: int, x: Tensor) -> None:
        """Set the variable at this place."""
        variable = self.optimizer.variables[place]
        variable.assign(tf.cast(to_tf(x), variable.dtype))

    def apply(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], *, is_held: bool) -> None:
        """Call the optimizer's `apply`."""
        if not is_held:
            for p, variable in zip(parameters, self.variables, strict=True):
                variable.assign(to_tf(p))
        self._update([None if x is None else to_tf(x) for x in gradients])
        for p, variable in zip(parameters, self.variables, strict=True):
            p.copy_(to_torch(variable.value))
