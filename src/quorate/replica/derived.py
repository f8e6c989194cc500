"""Weights that are computed from other parameters of their layers, and optimizers that step on these.

A layer stays the same object, with the same name: its class becomes a subclass. A weight W of it, `weight`, is computed
from parameters in its place whose names begin with its own, such as `weight_a` and `weight_b`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.rnn import RNNBase
from torch.optim import Optimizer

from quorate.replica.optimizer_state import inner_optimizers
from quorate.replica.worker_momentum import WorkerMomentum

_MEANS = frozenset({"momentum_buffer", "exp_avg", "grad_avg"})
"""State of torch's optimizers that is linear in gradients."""
_SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
"""State of torch's optimizers that is linear in squares of gradients."""

Carry = Callable[[Tensor, bool], Sequence[Tensor]]
"""Takes a mean of gradients of W, or of their squares (True), and returns that of each parameter in its place."""


class Derived(Module):
    """The base of layers whose weights are computed from other parameters."""

    @staticmethod
    @abstractmethod
    def derive(tensors: Mapping[str, Tensor | None], name: str) -> Tensor | None:
        """Return the weight `name` from the layer's own parameters and buffers; None if they hold it itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("weight"):
            own = self.__dict__
            weight = self.derive({**own.get("_parameters", {}), **own.get("_buffers", {})}, name)
            if weight is not None:
                return weight
        return super().__getattr__(name)


class DerivedRecurrent(Derived, RNNBase):
    """A recurrent layer that computes its weights once in each forward pass."""

    def _weights_have_changed(self) -> bool:
        return False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs and states of the layer, as its class does."""
        self._flat_weights = [getattr(self, name) for name in self._flat_weights_names]
        try:
            return super().forward(*inputs, **named)
        finally:
            self._flat_weights = []  # they belong to the graph of this pass: copies of the module have none


def take_place(module: Module, name: str, kinds: Mapping[type[Module], type[Module]]) -> Parameter:
    """Remove the weight `name` of `module`, whose class becomes that of `kinds`, and return it."""
    weight: Parameter = module._parameters[name]  # type: ignore[assignment]
    if type(module) in kinds:
        module.__class__ = kinds[type(module)]
    if isinstance(module, RNNBase):
        module._flat_weights = []
    del module._parameters[name]
    return weight


def step_on_parts(
    optimizer: Optimizer,
    weight: Parameter,
    parts: Mapping[str, Parameter],
    carry: Carry,
    momentum: WorkerMomentum | None = None,
) -> bool:
    """Let `optimizer` step on `parts` in place of `weight`, with the means that it keeps of gradients.

    Args:
        optimizer: The optimizer of `weight`, with those inside it.
        weight: The weight that is computed from `parts` now.
        parts: The parameters in its place, by what their names have behind that of the weight.
        carry: Converts means.
        momentum: The momentum of a worker's own gradients, where it is kept beside the optimizer.

    Returns:
        False if the state of `weight` is of an unknown kind: that of the parts begins again.
    """
    lists: set[int] = set()
    is_known = True
    for inside in (optimizer, *inner_optimizers(optimizer).values()):
        for group in inside.param_groups:
            if id(group["params"]) not in lists:
                lists.add(id(group["params"]))
                _replace(group, weight, parts)
        state = inside.state.pop(weight, None)
        if state:
            states = carried(state, weight, carry, len(parts))
            is_known &= states is not None
            if states is not None:
                inside.state.update(zip(parts.values(), states, strict=True))
    own = None if momentum is None else momentum.own.pop(weight, None)
    if momentum is not None and own is not None:
        for p, m in zip(parts.values(), carry(own.m, False), strict=True):
            momentum.own[p] = copy.copy(own)
            momentum.own[p].m = m
    return is_known


def _replace(group: dict[str, Any], weight: Parameter, parts: Mapping[str, Parameter]) -> None:
    place = next((place for place, p in enumerate(group["params"]) if p is weight), None)
    if place is None:
        return
    group["params"][place : place + 1] = parts.values()
    if names := group.get("param_names"):
        names[place : place + 1] = [f"{names[place]}{suffix}" for suffix in parts]


def carried(state: Mapping[str, Any], weight: Tensor, carry: Carry, count: int) -> list[dict[str, Any]] | None:
    """Return the state of each of `count` parts from that of `weight`; None if it has tensors of an unknown kind."""
    states = [dict[str, Any]() for _ in range(count)]
    for key, x in state.items():
        if not isinstance(x, Tensor) or x.shape != weight.shape:
            if isinstance(x, Tensor) and x.numel() > 1:
                return None
            values: Sequence[Any] = [copy.deepcopy(x) for _ in states]
        elif key in _MEANS | _SQUARES:
            values = carry(x, key in _SQUARES)
        else:
            return None
        for own, value in zip(states, values, strict=True):
            own[key] = value
    return states
