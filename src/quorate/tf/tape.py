"""`quorate.tf.gradients`: a gradient tape whose gradients are those of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.script_errors import CallbackErrors
from quorate.core.strategy import Strategy
from quorate.foreign.rule import Rule, RuleState
from quorate.foreign.tf_tensors import to_tf, to_torch
from quorate.foreign.training import ForeignTraining
from quorate.wire import current
from quorate.wire.current import Place


class _Means:
    """An update that changes nothing, and keeps the gradients that it gets: the means of all workers."""

    rate: float | None = None

    def __init__(self, count: int) -> None:
        self._count = count
        self.means: list[Tensor | None] = []

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
        """Keep the gradients."""
        self.means = [None if x is None else x.clone() for x in gradients]

    def state(self) -> RuleState:
        return RuleState([{} for _ in range(self._count)])

    def take_state(self, state: RuleState) -> None:
        """There is none."""

    def like(self, parameters: Sequence[Tensor]) -> Rule:
        return _Means(len(parameters))


class _Exchange:
    """The means of gradients of some variables."""

    def __init__(self, place: Place, variables: Sequence[Any], strategy: Strategy | str, settings: Any) -> None:
        self.place, self.rule = place, _Means(len(variables))
        values = [to_torch(tf.convert_to_tensor(v)) for v in variables]
        self.training = ForeignTraining(
            [(f"variable{number}", x) for number, x in enumerate(values)],
            [],
            lambda _: self.rule,
            kind="GradientTape",
            strategy=strategy,
            settings={"compare_every": 0, **settings},
        )
        if self.training.is_shared:
            raise ConfigurationError(
                "quorate.tf.gradients returns means of gradients, which this strategy does not make; use all-reduce "
                "with compress or reduce, or quorate.keras.distribute, which has every strategy"
            )
        for variable, p in zip(variables, self.training.parameters, strict=True):
            variable.assign(to_tf(p))

    def means(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the means, with zeros for those without a gradient."""
        self.training.step([None if x is None else x.clone() for x in gradients])  # TensorFlow's may be constants
        pairs = zip(self.rule.means, self.training.parameters, strict=True)
        return [torch.zeros_like(p) if x is None else x for x, p in pairs]


@dataclass
class _Exchanges:
    by_variables: dict[tuple[int, ...], _Exchange] = field(default_factory=dict)
    variables: list[Any] = field(default_factory=list)
    """Variables that must live, as their ids are keys."""


class Tape:
    """A `tf.GradientTape` whose `gradient` returns the means of all workers; all other attributes are the tape's."""

    def __init__(self, tape: Any, strategy: Strategy | str, settings: dict[str, Any]) -> None:
        self._tape, self._strategy, self._settings = tape, strategy, settings

    def __enter__(self) -> Tape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
        """Return the means of the gradients of `target` with respect to `sources`, in their structure.

        At the first call every worker gets rank 0's variables, unless `begin` has done it before. A gradient that one
        worker lacks is zero there, and one that all lack is None.

        Raises:
            ConfigurationError: Inside a `tf.function` of a virtual worker.
        """
        flat = tf.nest.flatten(sources)
        own = tf.nest.flatten(self._tape.gradient(target, sources, *arguments, **named))
        values = [_native(v) for v in flat]
        with tf.init_scope():
            exchange = _exchange_of(values, self._strategy, self._settings)
        dense = [None if x is None else tf.convert_to_tensor(x) for x in own]
        means = _eager(exchange, dense) if tf.executing_eagerly() else _compiled(exchange, dense)
        return tf.nest.pack_sequence_as(sources, means)


def _exchange_of(variables: list[Any], strategy: Strategy | str, settings: dict[str, Any]) -> _Exchange:
    place = current.here()
    known, key = place.context(_Exchanges), tuple(map(id, variables))
    if key not in known.by_variables:
        known.by_variables[key] = _Exchange(place, variables, strategy, settings)
        known.variables += variables
    return known.by_variables[key]


def begin(variables: Sequence[Any], strategy: Strategy | str = "all-reduce", **settings: Any) -> None:
    """Give every worker rank 0's variables, before the first gradient: in loops without `tf.function`.

    Args:
        variables: The variables that `tape.gradient` gets later, in the same order.
        strategy: As in `gradients`, of which later calls for these variables take the strategy and the settings.
        settings: The settings of `quorate.distribute`.

    Raises:
        ConfigurationError: As `gradients`.

    Example:
        >>> quorate.tf.begin(model.trainable_variables, compress="half")
    """
    _exchange_of([_native(v) for v in variables], strategy, settings)


def _native(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def _eager(exchange: _Exchange, gradients: list[Any]) -> list[Any]:
    means = exchange.means([None if x is None else to_torch(x) for x in gradients])
    return [None if x is None else to_tf(mean) for x, mean in zip(gradients, means, strict=True)]


def _compiled(exchange: _Exchange, gradients: list[Any]) -> list[Any]:
    """Return the means in a function that is being compiled; TensorFlow calls the exchange from its own thread."""
    if current.is_of_thread():
        raise ConfigurationError(
            "quorate.tf.gradients inside tf.function needs workers that are processes; run without --virtual, or call "
            "tape.gradient outside of tf.function"
        )
    exchange.place.context(CallbackErrors).by_text["No registered 'PyFunc' OpKernel for XLA"] = ConfigurationError(
        "quorate.tf.gradients works in a tf.function without jit_compile=True, since XLA makes no calls of Python; "
        "leave it out, or compile what returns the tape's gradients in a function of its own"
    )
    present = [place for place, x in enumerate(gradients) if x is not None]

    def exchanged(*arrays: Any) -> list[Any]:
        own: list[Tensor | None] = [None] * len(gradients)
        for place, x in zip(present, arrays, strict=True):
            own[place] = torch.as_tensor(x)
        try:
            means = exchange.means(own)
        except QuorateError as error:
            exchange.place.context(CallbackErrors).note(error)
            raise
        return [means[place].numpy() for place in present]

    chosen = [gradients[place] for place in present]
    means = tf.numpy_function(exchanged, chosen, [x.dtype for x in chosen], stateful=True)
    all_means: list[Any] = [None] * len(gradients)
    for place, x, mean in zip(present, chosen, means, strict=True):
        mean.set_shape(x.shape)
        all_means[place] = mean
    return all_means


def gradients(tape: Any, strategy: Strategy | str = "all-reduce", **settings: Any) -> Tape:
    """Return a tape whose `gradient` returns the means of the gradients of all workers.

    Args:
        tape: A `tf.GradientTape`, before or after the computation that it records.
        strategy: All-reduce, or another strategy that means gradients in each step.
        settings: The settings of `quorate.distribute`, such as `compress`.

    Raises:
        ConfigurationError: As `quorate.distribute`, or the strategy makes no means of gradients.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(model(x), y)
        >>> grads = quorate.tf.gradients(tape).gradient(loss, model.trainable_variables)
        >>> optimizer.apply_gradients(zip(grads, model.trainable_variables))
    """
    if not callable(getattr(tape, "gradient", None)):
        raise ConfigurationError(f"quorate.tf.gradients takes a tf.GradientTape, not {type(tape).__name__}")
    return Tape(tape, strategy, settings)
