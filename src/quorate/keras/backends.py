"""The parts that differ between backends of Keras: conversions, rules, and compiled training functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.keras.rule import KerasRule


@dataclass(frozen=True)
class Backend:
    """A backend of Keras."""

    name: str
    rule: type[KerasRule]
    to_torch: Callable[[Any], Tensor]
    """Returns the numbers of a native tensor, in the same memory if possible."""
    assign: Callable[[Any, Tensor], None]
    """Sets a variable."""
    is_symbolic: Callable[[Any], bool]
    """Whether a gradient belongs to a function that is being compiled."""
    arrays: Callable[[Any, Any], list[Any]] | None = None
    """Returns the parameters after a step as arrays, from the rule and the `ForeignTraining`."""


def backend() -> Backend:
    """Return the backend that Keras uses. Raises `ConfigurationError` for one that is not supported."""
    makers = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}
    name = keras.backend.backend()
    if name not in makers:
        raise ConfigurationError(f"quorate.keras supports the backends torch, jax and tensorflow, not {name}")
    return makers[name]()


def _torch() -> Backend:
    from quorate.keras.torch_rule import TorchRule

    def assign(variable: Any, x: Tensor) -> None:
        value = variable.value.detach()
        if value.data_ptr() != x.data_ptr():
            value.copy_(x)

    return Backend("torch", TorchRule, lambda x: x.detach(), assign, lambda _: torch.compiler.is_compiling())


def _jax() -> Backend:
    import jax

    from quorate.foreign.jax_arrays import copied, to_torch
    from quorate.keras.jax_rule import JaxRule

    def assign(variable: Any, x: Tensor) -> None:
        variable.assign(copied(x, variable.value))

    def arrays(rule: Any, foreign: Any) -> list[Any]:
        if foreign.stamp == foreign.updated:
            return list(rule.newest)
        return [copied(p, like) for p, like in zip(foreign.parameters, rule.newest, strict=True)]

    return Backend("jax", JaxRule, to_torch, assign, lambda x: isinstance(x, jax.core.Tracer), arrays)


def _tensorflow() -> Backend:
    import tensorflow as tf

    from quorate.foreign.tf_tensors import to_tf, to_torch
    from quorate.keras.tf_rule import TensorFlowRule

    def assign(variable: Any, x: Tensor) -> None:
        variable.assign(tf.cast(to_tf(x), variable.dtype))

    return Backend("tensorflow", TensorFlowRule, to_torch, assign, lambda _: not tf.executing_eagerly())


Capture = Callable[[Callable[[], Any]], tuple[Any, list[Any]]]
"""Calls a function in which gradients are applied; returns its result, and the gradients that were not applied."""
Step = Callable[[Sequence[Any], Any], None]
"""Makes a step with native gradients and the logs of the batch."""


def train_function_of(model: Any, capture: Capture, training: Any) -> Callable[..., Any]:
    """Return the function that `fit` calls for a step, for the backends whose step is compiled.

    The compiled part is `train_step` of the model without the update; workers agree outside of it, on this thread.
    """
    made = _jax_function if keras.backend.backend() == "jax" else _tf_function
    return made(model, capture, training)


def _jax_function(model: Any, capture: Capture, training: Any) -> Callable[..., Any]:
    import jax

    def compute(state: Any, data: Any) -> Any:
        (logs, newest), gradients = capture(lambda: model.train_step(state, data))
        return logs, newest[1], newest[3], gradients  # the rest is as it came, and would be copied

    compiled = compute if model.run_eagerly or not model.jit_compile else jax.jit(compute)

    def function(state: Any, iterator: Any) -> Any:
        logs, is_first = None, True
        for _ in range(model.steps_per_execution):
            try:
                data = next(iterator)
            except StopIteration:
                if is_first:
                    raise
                break
            is_first = False
            logs, statistics, metrics, gradients = compiled(state, data)
            trained, values = training.step_on_arrays(state, metrics, gradients, logs)
            state = (trained, statistics, values, metrics)
        return logs, state

    return function


def _tf_function(model: Any, capture: Capture, training: Any) -> Callable[..., Any]:
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute(data: Any) -> Any:
        without = keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
        logs, gradients = capture(lambda: model.train_step(without))
        return logs, [None if x is None else tf.convert_to_tensor(x) for x in gradients]

    if not model.run_eagerly:
        compute = tf.function(compute, reduce_retracing=True, jit_compile=bool(model.jit_compile))

    def function(iterator: Any) -> Any:
        logs: Any = None
        for count in range(model.steps_per_execution):
            try:
                data = next(iterator)
            except StopIteration:
                if not count:
                    raise
                break
            logs, gradients = compute(data)
            training.step_on_variables(gradients, logs)
        return logs

    return function
