"""`KerasTraining`: a Keras model and its optimizer under a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.data.consumption import Consumed
from quorate.foreign.optimizer import hand_back, note_rate
from quorate.foreign.training import ForeignTraining
from quorate.keras.backends import backend, train_function_of
from quorate.keras.rule import KerasRule
from quorate.wire import current

TRAINING = "_quorate_training"
"""The attribute of a model and of its optimizer that holds their training."""


class KerasTraining:
    """Lets the optimizer of a model agree with those of other workers.

    `optimizer.apply` is replaced on the object, so its class stays Keras' own. So is `make_train_function` of the
    model. Exchanges begin as soon as the model has variables: at the latest with the first step.
    """

    def __init__(self, optimizer: Any, model: Any, strategy: Strategy | str, settings: dict[str, Any]) -> None:
        self.optimizer, self.model, self.backend = optimizer, model, backend()
        self._strategy, self._settings = strategy, settings
        self.place = current.here()
        if self.backend.name == "tensorflow":
            self.place.context(Consumed).count_when_used()
        self.foreign: ForeignTraining | None = None
        self._is_updating = False
        self._captured: list[list[Any]] | None = None
        self._losses = LossTracker(model)
        self._sums: list[Tensor] | None = None
        """The sums of the gradients of micro-batches."""
        self._count = 0
        self._accumulating = ExitStack()
        self._hook(optimizer)
        set_attribute(optimizer, "finish", self.finish)
        set_attribute(model, TRAINING, self)
        set_attribute(model, "make_train_function", self._make_train_function)
        if model.built and model.trainable_variables:
            self.begin()

    def _hook(self, optimizer: Any) -> None:
        set_attribute(optimizer, TRAINING, self)
        set_attribute(optimizer, "apply", partial(self._apply, optimizer))
        set_attribute(optimizer, "stateless_apply", partial(self._stateless_apply, optimizer))

    # -- the beginning and the end

    def begin(self) -> ForeignTraining:
        """Begin exchanges, unless they have begun: all workers get the variables of rank 0."""
        self._take_outermost()
        if self.foreign is not None:
            return self.foreign
        model = self.model
        if not model.built:
            raise ConfigurationError(
                "the model has no variables yet, which all workers need before the first step; begin it with "
                "keras.Input, or call it on a batch"
            )
        self.variables = list(model.trainable_variables)
        if not self.optimizer.built:
            self.optimizer.build(self.variables)
        self.statistics = [v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
        self.rule: KerasRule = self.backend.rule(self.optimizer, self.variables, self.updating)
        names = names_of([*self.variables, *self.statistics])
        is_torch = self.backend.name == "torch"
        values = [v.value if is_torch else self.backend.to_torch(v.value) for v in self.variables]
        kept = [self.backend.to_torch(v.value) for v in self.statistics]
        foreign = self.foreign = ForeignTraining(
            zip(names, values, strict=False),
            zip(names[len(values) :], [x if is_torch else x.clone() for x in kept], strict=True),
            lambda _: self.rule,
            kind=type(self.rule.inner).__name__,
            strategy=self._strategy,
            settings=self._settings,
        )
        self.rule.trusts_stamps = not foreign.is_shared
        self._check_scaled()
        self._move_seeds()
        self.show()
        return foreign

    def _take_outermost(self) -> None:
        """Train by the optimizer that `compile` has put around the script's, to scale losses."""
        outer = getattr(self.model, "optimizer", None)
        if outer is None or outer is self.optimizer:
            return
        if getattr(outer, "inner_optimizer", None) is not self.optimizer:
            raise ConfigurationError(
                f"the model is compiled with another optimizer ({outer.name}) than the distributed one "
                f"({self.optimizer.name}); pass model.compile what quorate.keras.distribute has returned"
            )
        self.optimizer = outer
        self._hook(outer)
        if self.foreign is not None:
            if not outer.built:
                outer.build(self.variables)
            trusts = self.rule.trusts_stamps
            self.rule = self.foreign.own.rule = self.backend.rule(outer, self.variables, self.updating)
            self.rule.trusts_stamps = trusts
            self._check_scaled()

    def _check_scaled(self) -> None:
        foreign = self.foreign
        if foreign is not None and foreign.is_shared and hasattr(self.optimizer, "inner_optimizer"):
            raise ConfigurationError(
                "the loss is scaled by the LossScaleOptimizer of this worker, which a strategy with updates of its own "
                "cannot follow; use all-reduce, or compile with auto_scale_loss=False and bfloat16"
            )

    def _move_seeds(self) -> None:
        """Move the seeds of layers by the rank, so that workers draw different masks of dropout."""
        rank = self.place.wire.rank
        for layer in self.model._flatten_layers():
            for generator in getattr(layer, "_seed_generators", ()):
                value = keras.ops.convert_to_numpy(generator.state.value).copy()
                value[0] += rank
                generator.state.assign(value)

    def finish(self) -> None:
        """Wait until all workers have ended; the variables are equal then. A later step begins again."""
        foreign = self.foreign
        if foreign is not None:
            self.hide()
            foreign.optimizer.finish()
            self.show()
            self.foreign = None

    def hide(self) -> None:
        """Bring the statistics of layers into the mirror, for a pause."""
        if self.foreign is not None:
            for x, variable in zip(self.foreign.statistics, self.statistics, strict=True):
                value = self.backend.to_torch(variable.value)
                if value.data_ptr() != x.data_ptr():
                    x.copy_(value)

    def show(self, *, rates: bool = False) -> None:
        """Bring the mirror and the state into the variables; `rates`: the learning rate of the mirror, too."""
        foreign = self.foreign
        assert foreign is not None
        mirrored = zip([*foreign.parameters, *foreign.statistics], [*self.variables, *self.statistics], strict=True)
        for x, variable in mirrored:
            self.backend.assign(variable, x.detach())
        hand_back(foreign.own)
        if rates and self.rule.rate is not None:
            self.rule.rate = float(foreign.own.param_groups[0]["lr"])
        self.rule.show()
        self.rule.take_variables()
        self.rule.held = foreign.stamp

    def take_edits(self) -> None:
        """Take the parameters that the script has set since, as on all workers."""
        foreign = self.foreign
        assert foreign is not None
        with torch.no_grad():
            for p, variable in zip(foreign.parameters, self.variables, strict=True):
                value = self.backend.to_torch(variable.value)
                if value.data_ptr() != p.data_ptr() and not torch.equal(value, p):
                    p.copy_(value)
        self.rule.take_variables()
        self.rule.held = foreign.stamp

    # -- functions that Keras calls

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Let `apply` of the optimizer update inside, at each call."""
        before, self._is_updating = self._is_updating, True
        inner = self.rule.inner
        steps, inner.gradient_accumulation_steps = inner.gradient_accumulation_steps, None
        try:
            yield
        finally:
            self._is_updating, inner.gradient_accumulation_steps = before, steps

    def capture(self, function: Callable[[], Any]) -> tuple[Any, list[Any]]:
        """Return the result of `function`, and the gradients that it wanted applied, in the order of the variables."""
        self._captured = []
        try:
            result = function()
            if len(self._captured) != 1:
                raise ConfigurationError(
                    f"train_step applied gradients {len(self._captured)} times a batch, where quorate.keras supports "
                    "once; use the torch backend with quorate.distribute, or quorate.jax.distribute in your own loop"
                )
            return result, self._captured[0]
        finally:
            self._captured = None

    def _apply(self, optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        """Replace `optimizer.apply`."""
        if self._is_updating:
            type(optimizer).apply(optimizer, grads, trainable_variables)
            return
        own = list(grads)
        if self._captured is None:
            if any(self.backend.is_symbolic(x) for x in own if x is not None):
                raise ConfigurationError(
                    "the optimizer was called inside a compiled function of the script, where workers cannot agree; "
                    "compile what returns the gradients, and call optimizer.apply outside of it, or use model.fit"
                )
            self.begin()
        ordered = self._ordered(own, trainable_variables)
        if self._captured is not None:
            self._captured.append(ordered)
        elif self.backend.name == "torch":
            self._step_on_torch(ordered)
        else:
            self.rule.take_variables()
            self.step_on_variables(ordered, None)

    def _stateless_apply(self, optimizer: Any, values: Any, grads: Any, trainable_variables: Any) -> Any:
        """Replace `optimizer.stateless_apply`, which JAX's `train_step` calls."""
        if self._is_updating:
            return type(optimizer).stateless_apply(optimizer, values, grads, trainable_variables)
        if self._captured is None:
            raise ConfigurationError(
                "optimizer.stateless_apply was called in a loop of the script, where workers cannot agree; call "
                "optimizer.apply with the gradients outside of jax.jit, or use model.fit or quorate.jax.distribute"
            )
        self._captured.append(list(grads))
        return trainable_variables, values

    def _ordered(self, grads: Sequence[Any], variables: Any) -> list[Any]:
        if variables is None:
            return list(grads)
        places = {id(v): place for place, v in enumerate(self.variables)}
        ordered: list[Any] = [None] * len(self.variables)
        for x, variable in zip(grads, variables, strict=True):
            if id(variable) not in places:
                raise ConfigurationError(
                    f"the optimizer was called for the variable {variable.path}, which was not trainable when training "
                    "began; call optimizer.finish() before layers are thawed, and compile with a new optimizer"
                )
            ordered[places[id(variable)]] = x
        return ordered

    def _make_train_function(self, force: bool = False) -> None:
        """Replace `model.make_train_function`."""
        model = self.model
        self.begin()
        if model.train_function is not None and not force:
            return
        if self.backend.name != "torch":
            model.train_function = train_function_of(model, self.capture, self)
            return
        if model.jit_compile:
            raise ConfigurationError(
                "on the torch backend jit_compile=True compiles the update together with the gradients, and workers "
                "agree between the two; leave it out of model.compile"
            )
        type(model).make_train_function(model, force)
        plain = model.train_function

        def function(data: Any) -> Any:
            if not self._micro_batches:
                return plain(data)
            with self._accumulating:
                self._accumulating.enter_context(self.begin().optimizer.accumulate())
                return plain(data)

        model.train_function = function

    # -- steps

    @property
    def examples(self) -> float:
        """The number of examples in the running means of metrics."""
        return self._losses.examples

    @property
    def batches_per_update(self) -> int:
        """The number of batches whose gradients are added up for an update."""
        return max(self._micro_batches, 1)

    @property
    def _micro_batches(self) -> int:
        return self.rule.inner.gradient_accumulation_steps or 0

    def _step_on_torch(self, gradients: list[Any]) -> None:
        """Make a step on the torch backend, whose backward pass the strategy has seen."""
        foreign = self.begin()
        if self._micro_batches:
            self._accumulating.close()
            self._step(gradients, None)
            return
        for p, x in zip(foreign.parameters, gradients, strict=True):
            if p.grad is not x:
                p.grad = x
        note_rate(foreign.own)
        foreign.optimizer.step()

    def step_on_variables(self, gradients: Sequence[Any], logs: Any) -> None:
        """Make a step with native gradients; the variables have the parameters before and after it."""
        foreign = self.begin()
        tensors = [None if x is None else self.backend.to_torch(x) for x in gradients]
        if self.backend.name == "tensorflow":  # which returns the memory of its constants
            self.place.context(Consumed).use()
            tensors = [None if x is None else x.clone() for x in tensors]
        self._step(tensors, self._losses.newest(logs))
        self.rule.show()
        if self.backend.name == "jax" or foreign.stamp != foreign.updated:
            for p, variable in zip(foreign.parameters, self.variables, strict=True):
                self.backend.assign(variable, p)

    def step_on_arrays(self, state: Any, metrics: Any, gradients: Sequence[Any], logs: Any) -> tuple[Any, Any]:
        """Make a step in `fit` on the JAX backend; return the arrays of the parameters and of the optimizer.

        As in Keras' own step, `state` cannot be used any more: its arrays may have been overwritten.
        """
        foreign, rule = self.begin(), self.rule
        rule.values, rule.newest = list(state[2]), list(state[0])  # type: ignore[attr-defined]
        loss = self._losses.newest(logs, metrics)
        with rule.overwriting():  # type: ignore[attr-defined]
            self._step([None if x is None else self.backend.to_torch(x) for x in gradients], loss)
        hand_back(foreign.own)
        assert self.backend.arrays is not None
        return self.backend.arrays(rule, foreign), rule.values  # type: ignore[attr-defined]

    def _step(self, gradients: list[Tensor | None], loss: Tensor | None) -> None:
        foreign, steps = self.begin(), self._micro_batches
        note_rate(foreign.own)
        if not steps:
            foreign.step(gradients, loss)
            return
        zeros = [
            torch.zeros_like(p) if x is None else x.clone() for p, x in zip(foreign.parameters, gradients, strict=True)
        ]
        self._sums = zeros if self._sums is None else [a + x for a, x in zip(self._sums, zeros, strict=True)]
        self._count += 1
        if self._count % steps:
            self.rule.count_micro_batch()
            return
        means, self._sums = [x / steps for x in self._sums], None
        foreign.step(means, loss)


class LossTracker:
    """The loss of the newest batch, from the running mean that Keras keeps."""

    def __init__(self, model: Any) -> None:
        self._model, self._before = model, (0.0, 0.0)

    @property
    def examples(self) -> float:
        """The number of examples in the running mean."""
        tracker = getattr(self._model, "_loss_tracker", None)
        return 0.0 if tracker is None else float(keras.ops.convert_to_numpy(tracker.count.value))

    def newest(self, logs: Any, arrays: Sequence[Any] | None = None) -> Tensor | None:
        """Return the loss of the newest batch; None: unknown. `arrays` are the values of all variables of metrics."""
        tracker = getattr(self._model, "_loss_tracker", None)
        if logs is None or tracker is None:
            return None
        if arrays is None:
            total, count = (float(keras.ops.convert_to_numpy(v.value)) for v in (tracker.total, tracker.count))
        else:
            places = {id(v): place for place, v in enumerate(self._model.metrics_variables)}
            total, count = (float(arrays[places[id(v)]]) for v in (tracker.total, tracker.count))
        before, self._before = self._before, (total, count)
        if count <= before[1]:
            before = (0.0, 0.0)
        return torch.tensor((total - before[0]) / max(count - before[1], 1e-12))


def set_attribute(target: Any, name: str, value: Any) -> None:
    """Set an attribute of an object of Keras, which would track it otherwise."""
    target.__dict__[name] = value


def names_of(variables: Sequence[Any]) -> list[str]:
    """Return a dotted name for each variable: its path, with a number where several have the same."""
    names: list[str] = []
    for variable in variables:
        name = variable.path.replace(".", "_").replace("/", ".")
        same = sum(other == name or other.startswith(f"{name}-") for other in names)
        names.append(f"{name}-{same}" if same else name)
    return names
