"""The numbers of an optimizer's parameter groups (learning rate, betas, decay), which travel with every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Every number of every parameter group, as JSON: a learning rate held in a tensor is its number."""
    return [
        {key: number for key, value in group.items() if (number := _number(value)) is not None}
        for group in optimizer.param_groups
    ]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple | list) and value and all(isinstance(x, int | float) for x in value):
        return list(value)
    return None


def put_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let `options` be in force; returns what was, for the same function."""
    before = options_of(optimizer)
    for group, numbers in zip(optimizer.param_groups, options, strict=False):  # the last ones may have come since
        for key, number in numbers.items():
            old = group[key]
            if isinstance(old, Tensor):
                old.fill_(number)
            else:
                group[key] = type(old)(number) if isinstance(number, list) else number
    return before
