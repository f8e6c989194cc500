"""Whether an optimizer treats each number alike: whether its update of pieces is that of the full tensor.

For torch's own optimizers this is listed. Others make three trial steps on small tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.optim.by_layers import ByLayers
from quorate.replica.optimizer_state import trial_of
from quorate.replica.plain_step import step_unseen

ShardBy = Literal["rows", "tensors"]
Reach = Literal["numbers", "tensors", "all"]
"""The gradients on which an update depends: the number's own, those of its tensor, or all."""
_BY_NUMBERS = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD", "SparseAdam",
)  # fmt: skip
_BY_TENSORS = ("Adafactor", "Muon", "Rprop")
"""Rprop treats each number alike, and its step fails on pieces."""
_STEPS = 3


def check_shard_by(value: object) -> None:
    """Raise `ConfigurationError` for an unknown value of `shard_by`."""
    if value is not None and value not in get_args(ShardBy):
        raise ConfigurationError(f"shard_by={value!r} is unknown; known: {', '.join(get_args(ShardBy))}, None")


def shard_by_of(plain: type[Optimizer], groups: Sequence[Mapping[str, Any]], chosen: ShardBy | None) -> ShardBy:
    """Return how the state of an optimizer of class `plain` is divided among the workers of a replica.

    `chosen` has precedence. Raises `ConfigurationError` for an optimizer that calculates with all parameters at once.
    """
    if issubclass(plain, ByLayers):
        if chosen == "tensors":
            raise ConfigurationError(f'{plain.__name__} adds up norms over the pieces; leave out shard_by="tensors"')
        return "rows"
    name, is_own = plain.__name__, _is_of_torch(plain)
    if is_own and name == "LBFGS":
        raise ConfigurationError(
            "LBFGS calculates with all parameters at once, and asks for the loss several times a step. With a model in "
            "shards use an optimizer that treats numbers, or tensors, each by itself, such as AdamW, Muon or Adafactor"
        )
    if chosen == "rows" and is_own and name in _BY_TENSORS:
        raise ConfigurationError(f'{name} computes with full tensors; leave out shard_by="rows"')
    if chosen is not None:
        return chosen
    if is_own and name in (*_BY_NUMBERS, *_BY_TENSORS):
        return "rows" if name in _BY_NUMBERS else "tensors"
    reaches = {reach_of(plain, group) for group in groups}
    if "all" in reaches:
        raise ConfigurationError(
            f"{name} calculates with all parameters at once, as a trial on two small tensors has shown, and a worker "
            'of a model in shards has only some. If it is right with each tensor by itself, set shard_by="tensors"'
        )
    return "rows" if reaches == {"numbers"} else "tensors"


def is_by_numbers(plain: type[Optimizer]) -> bool:
    """Return whether it is one of torch's own optimizers that treat each number alike."""
    return _is_of_torch(plain) and plain.__name__ in _BY_NUMBERS


def _is_of_torch(plain: type[Optimizer]) -> bool:
    return f"{plain.__module__}.".startswith("torch.optim.")


def reach_of(plain: type[Optimizer], group: Mapping[str, Any]) -> Reach:
    """Return what an update depends on, with the options of `group`. One that cannot be tried counts as "tensors".

    Cost: some 15 steps on at most 24 numbers.
    """
    first, second = _start(0), _start(1)
    try:
        whole = _after(plain, group, [first])[0]
        beside = _after(plain, group, [first, second])[0]
        pieces = torch.cat([_after(plain, group, [part])[0] for part in first.split(2)])
    except Exception:  # the class is foreign code, and its error says nothing about a model
        return "tensors"
    if not _are_equal(whole, beside, first):
        return "all"
    return "numbers" if _are_equal(whole, pieces, first) else "tensors"


def _start(which: int) -> Tensor:
    return torch.sin(torch.arange(1.0, 13.0, dtype=torch.float64) * (1 + which)).view(4, 3)


def _after(plain: type[Optimizer], group: Mapping[str, Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return `tensors` after steps down a bowl that is steep in some directions."""
    parameters = [Parameter(x.clone()) for x in tensors]
    optimizer = trial_of(plain, group, parameters, lr=0.1)  # a schedule may begin with 0
    with torch.random.fork_rng(devices=[]):
        for step in range(_STEPS):
            torch.manual_seed(step)  # the first tensor gets the draws that it would get alone
            for p in parameters:
                p.grad = p.detach() ** 3 + 0.3 * (step - 1)
            step_unseen(optimizer)
    return [p.detach() for p in parameters]


def _are_equal(x: Tensor, y: Tensor, start: Tensor) -> bool:
    """Return whether both have moved from `start` to the same numbers."""
    return bool((x - y).abs().max() <= 1e-6 * (x - start).abs().max())
