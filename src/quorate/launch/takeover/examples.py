"""The examples of a training step of a script that has no loader of this library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from quorate.data.consumption import Consumed


def count_examples(consumed: Consumed, arguments: Iterable[Any]) -> None:
    """Count the rows of the first tensor that a model in training is called with, in each step."""
    for x in arguments:
        if isinstance(x, Tensor):
            if x.dim() > 0:
                consumed.note(0.0, x.shape[0], None)
                return
        elif isinstance(x, list | tuple | Mapping):  # the batch of a Lightning module
            inside = x.values() if isinstance(x, Mapping) else x
            if any(isinstance(y, Tensor) and y.dim() > 0 for y in inside):
                count_examples(consumed, inside)
                return
