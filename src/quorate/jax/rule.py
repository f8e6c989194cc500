"""The update of an optax transformation, for any parameters and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from torch import Tensor

from quorate.foreign.jax_arrays import to_jax, to_torch
from quorate.foreign.rule import Rule, RuleState

_RATE = "learning_rate"


class OptaxRule:
    """An optax transformation with its state, for the parameters of one tree."""

    def __init__(self, tx: Any, params: Any, *, is_compiled: bool = True) -> None:
        """`params` are the parameters, of which the shapes, dtypes and devices count."""
        self.tx, self.state_of_tx = tx, tx.init(params)
        self._like, self._tree = jax.tree.flatten(params)
        self.newest: list[Any] = list(self._like)
        """The arrays of the newest update."""
        self._update = jax.jit(self._updated) if is_compiled else self._updated

    @property
    def rate(self) -> float | None:
        """The learning rate among the hyperparameters of `optax.inject_hyperparams`; None: there is none."""
        holder = self._hyperparameters()
        return None if holder is None else float(holder[_RATE])

    @rate.setter
    def rate(self, rate: float | None) -> None:
        holder = self._hyperparameters()
        assert holder is not None
        holder[_RATE] = jnp.asarray(rate, dtype=jnp.asarray(holder[_RATE]).dtype)

    def _hyperparameters(self) -> Any:
        known = optax.tree_utils.tree_get_all_with_path(self.state_of_tx, "hyperparams")
        holders = [x for _, x in known if _RATE in x]
        return holders[0] if len(holders) == 1 else None

    def _updated(self, params: list[Any], grads: list[Any], state: Any, factor: Any) -> Any:
        tree, of_gradients = jax.tree.unflatten(self._tree, params), jax.tree.unflatten(self._tree, grads)
        updates, state = self.tx.update(of_gradients, state, tree)
        scaled = jax.tree.map(lambda x: x * factor.astype(x.dtype), updates)
        return jax.tree.leaves(optax.apply_updates(tree, scaled)), state

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
        """Update `parameters` in place; those without a gradient get one of zeros."""
        params = [to_jax(x, like) for x, like in zip(parameters, self._like, strict=True)]
        grads = [jnp.zeros_like(p) if x is None else to_jax(x, p) for x, p in zip(gradients, params, strict=True)]
        updated, state = self._update(params, grads, self.state_of_tx, jnp.float32(factor))
        self.newest, self.state_of_tx = jax.block_until_ready(list(updated)), state
        for p, x in zip(parameters, self.newest, strict=True):
            p.copy_(to_torch(x))

    def state(self) -> RuleState:
        """Return the leaves of the optax state: those in the shape of a parameter beside it, by their path."""
        by_parameter: list[dict[str, Tensor]] = [{} for _ in self._like]
        common: dict[str, Tensor] = {}
        for path, x in self._leaves(self.state_of_tx):
            if isinstance(x, list):
                for own, leaf in zip(by_parameter, x, strict=True):
                    own[path] = to_torch(leaf)
            else:
                common[path] = to_torch(x)
        return RuleState(by_parameter, common)

    def take_state(self, state: RuleState) -> None:
        """Replace the leaves of the optax state."""
        leaves: list[Any] = []
        for path, x in self._leaves(self.state_of_tx):
            if isinstance(x, list):
                leaves += [
                    to_jax(own[path], leaf) if path in own else leaf
                    for own, leaf in zip(state.by_parameter, x, strict=True)
                ]
            else:
                leaves.append(to_jax(state.common[path], x) if path in state.common else x)
        self.state_of_tx = jax.tree.unflatten(jax.tree.structure(self.state_of_tx), leaves)

    def _leaves(self, state: Any) -> list[tuple[str, Any]]:
        """Return the leaves of a state by path; those of a tree like the parameters', in their shapes, as a list."""

        def is_like_parameters(x: Any) -> bool:
            leaves, tree = jax.tree.flatten(x)
            return tree == self._tree and all(
                getattr(leaf, "shape", None) == like.shape for leaf, like in zip(leaves, self._like, strict=True)
            )

        entries, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_like_parameters)
        return [(jax.tree_util.keystr(path), jax.tree.leaves(x) if is_like_parameters(x) else x) for path, x in entries]

    def like(self, parameters: Sequence[Tensor]) -> Rule:
        """Return a rule with the same transformation for a list of parameters."""
        return OptaxRule(self.tx, [jnp.asarray(x.detach().numpy()) for x in parameters], is_compiled=False)
