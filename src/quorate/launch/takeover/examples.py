"""The examples of a training step of a script that has no loader of this library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from quorate.data.consumption import Consumed


def count_examples(consumed: Consumed, arguments: Iterable[Any]) -> None:
    """Count the rows of the first tensor that a model in training is called with, in each step."""
    for x in arguments:
        if isinstance(x, Tensor) and x.dim() > 0:
            consumed.note(0.0, x.shape[0], None)
            return
