"""An optimizer of its own over a vector: the outer step of local-step methods, or a server's share of the parameters.

It is made again for every gradient, from a plain dict as its memory, which goes into checkpoints and may lie on another
device. The user's optimizer has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.vectors import Flat
from quorate.replica.plain_step import step_unseen

KINDS: dict[str, type[Optimizer]] = {"adagrad": Adagrad, "adam": Adam, "adamw": AdamW, "sgd": SGD}
"""By their names in settings."""


def updater(vector: Flat, memory: dict[str, Any], *, kind: str = "sgd", **options: Any) -> Callable[[Flat], None]:
    """Return a function that updates `vector` with a gradient, in place; `options` are those of torch's optimizer.

    `memory` is the optimizer's state between gradients, by name: a number, or a tensor for each part of the vector.
    Headers are left out. Raises `ConfigurationError` for an unknown kind, and for options that it does not accept.
    """
    if kind not in KINDS:
        raise unknown("outer optimizer", kind, KINDS)
    numbers = [Parameter(part) for part in _without_header(vector)]
    try:
        optimizer: Any = KINDS[kind](numbers, **options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the outer optimizer {kind} does not accept {options}: {error}") from None

    def update(gradient: Flat) -> None:
        for place, p in enumerate(numbers):
            if memory:
                optimizer.state[p] = {name: _part_of(value, place, p) for name, value in memory.items()}
            p.grad = _without_header(gradient)[place]
        step_unseen(optimizer)
        for p in numbers:
            p.grad = None
        memory.update(_remembered(optimizer, numbers))

    return update


def _without_header(x: Flat) -> list[Tensor]:
    last = x.parts[-1]
    return [*x.parts[:-1], last[: last.numel() - x.layout.header]]


def _part_of(value: Any, place: int, p: Tensor) -> Any:
    if isinstance(value, list):
        return value[place].to(p.device)
    return torch.tensor(float(value)) if value is not None else None


def _remembered(optimizer: Any, numbers: list[Parameter]) -> dict[str, Any]:
    memory: dict[str, Any] = {}
    for name, value in optimizer.state[numbers[0]].items():
        if isinstance(value, Tensor) and value.shape == numbers[0].shape:
            memory[name] = [optimizer.state[p][name] for p in numbers]
        else:
            memory[name] = None if value is None else float(value)
    return memory
