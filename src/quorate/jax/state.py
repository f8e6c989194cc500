"""`quorate.jax.distribute`: parameters of JAX and an optax transformation under a strategy."""

from __future__ import annotations

from typing import Any

import jax
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.foreign.jax_arrays import copied, to_torch
from quorate.foreign.optimizer import Stamp, note_rate
from quorate.foreign.training import ForeignTraining
from quorate.jax.rule import OptaxRule
from quorate.wire import current


class State:
    """Parameters in JAX that are trained with those of the other workers; made by `quorate.jax.distribute`."""

    def __init__(self, params: Any, tx: Any, statistics: Any, strategy: Strategy | str, settings: Any) -> None:
        _check(params, tx)
        entries, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self._arrays = [x for _, x in entries]
        self._statistics_tree = jax.tree.structure(statistics)
        self._statistics = jax.tree.leaves(statistics)
        self.rule = OptaxRule(tx, params)
        named = [(f"params.{_name(path)}", to_torch(x)) for path, x in entries]
        of_layers = jax.tree_util.tree_flatten_with_path(statistics)[0]
        kept = [(f"statistics.{_name(path)}", to_torch(x).clone()) for path, x in of_layers]
        self.training = ForeignTraining(
            named, kept, lambda _: self.rule, kind="Optax", strategy=strategy, settings=settings
        )
        self._rate = self.rule.rate
        """The learning rate of the rule after the newest step."""
        self._stamp: Stamp | None = None
        self._rank = current.here().wire.rank

    @property
    def optimizer(self) -> Any:
        """The distributed optimizer: `finish()`, and what it counts."""
        return self.training.optimizer

    @property
    def params(self) -> Any:
        """The parameters, as a tree of arrays: of this worker in training, and the mean in `world.evaluate()`."""
        stamp = self.training.stamp
        if stamp != self._stamp:
            if stamp == self.training.updated:
                self._arrays = self.rule.newest
            else:
                mirror = self.training.parameters
                self._arrays = [copied(p, like) for p, like in zip(mirror, self._arrays, strict=True)]
            self._stamp = stamp
        return jax.tree.unflatten(self._tree, self._arrays)

    @property
    def statistics(self) -> Any:
        """The statistics that were passed to the newest step, or that all workers have agreed on since."""
        kept = zip(self.training.statistics, self._statistics, strict=True)
        return jax.tree.unflatten(self._statistics_tree, [copied(x, like) for x, like in kept])

    @property
    def opt_state(self) -> Any:
        """The state of the optax transformation."""
        return self.rule.state_of_tx

    def step(self, grads: Any, *, loss: Any = None, statistics: Any = None) -> None:
        """Make a step of the strategy; the new parameters are in `params`.

        Args:
            grads: This worker's gradients, in the tree of the parameters. They are not copied, and their memory may be
                overwritten: do not use them afterwards.
            loss: This worker's loss, for records and reports.
            statistics: The newest statistics of layers, in the tree that `distribute` got.

        Raises:
            ConfigurationError: The tree of gradients differs from that of the parameters.
        """
        try:
            leaves = self._tree.flatten_up_to(grads)  # None may take the place of a gradient
        except (TypeError, ValueError):
            tree = jax.tree.structure(grads)
            raise ConfigurationError(f"state.step got gradients {tree}, but the parameters are {self._tree}") from None
        if statistics is not None:
            self._take_statistics(statistics)
        known = None if loss is None else to_torch(loss).float()
        if self.rule.rate != self._rate:  # the script has set it in the state of optax
            note_rate(self.training.own)
        self.training.step([None if x is None else to_torch(x) for x in leaves], known)
        if self.rule.rate != self._rate:  # a schedule of optax has moved on
            note_rate(self.training.own)
            self._rate = self.rule.rate

    def _take_statistics(self, statistics: Any) -> None:
        for x, newest in zip(self.training.statistics, jax.tree.leaves(statistics), strict=True):
            x.copy_(to_torch(newest))

    def own_key(self, key: Any) -> Any:
        """Return a random key of this worker, made of a key that all workers have: for dropout and augmentation."""
        return jax.random.fold_in(key, self._rank)

    def finish(self) -> Any:
        """Wait until all workers have ended, and return the parameters, which are equal then."""
        self.training.optimizer.finish()
        return self.params


def distribute(
    params: Any,
    tx: Any,
    strategy: Strategy | str = "all-reduce",
    *,
    statistics: Any = None,
    **settings: Any,
) -> State:
    """Train `params` with those of the other workers, by the updates of `tx`.

    Every worker gets rank 0's parameters. JAX computes gradients as before, under `jit` and on its own device;
    `state.step(grads)` lets workers agree, and calls the update of `tx` as often as the strategy says.

    Args:
        params: A tree of arrays: the parameters of Flax, Equinox (`eqx.filter(model, eqx.is_inexact_array)`) or others.
        tx: An optax transformation. With `optax.inject_hyperparams` its learning rate is that of the optimizer, so that
            it travels with rounds; otherwise the optimizer's `lr` is a factor of the update.
        strategy: A strategy or its name, as in `quorate.distribute`.
        statistics: A tree of arrays that the forward pass updates (batch norm); made equal at pauses and at the end.
        settings: The settings of `quorate.distribute`, and those of the strategy.

    Returns:
        A `State` with `params`, `step(grads)` and `finish()`.

    Raises:
        ConfigurationError: As `quorate.distribute`; also for parameters that are no arrays of numbers.

    Example:
        >>> state = quorate.jax.distribute(params, optax.adam(1e-3), "quorum", wait_for=1)
        >>> loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
        >>> state.step(grads, loss=loss)
    """
    return State(params, tx, statistics, strategy, settings)


def _check(params: Any, tx: Any) -> None:
    if not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        raise ConfigurationError(f"quorate.jax.distribute takes an optax transformation, not {type(tx).__name__}")
    for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not isinstance(x, jax.Array) or not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            raise ConfigurationError(
                f"params{jax.tree_util.keystr(path)} is no array of real numbers, which updates could train; leave it "
                "out of params (with Equinox: eqx.filter(model, eqx.is_inexact_array))"
            )


def _name(path: Any) -> str:
    """Return a dotted name for a path in a tree."""
    words = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))) for key in path)
    return ".".join(str(word).replace(".", "_").replace("/", "_") for word in words) or "array"


def as_tensors(tree: Any) -> list[Tensor]:
    """Return the leaves of a tree of arrays as tensors, which may share their memory."""
    return [to_torch(x) for x in jax.tree.leaves(tree)]
