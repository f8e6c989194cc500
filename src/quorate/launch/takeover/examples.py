"""The examples of a training step of a script that has no loader of this library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from quorate.data.consumption import consumed
from quorate.wire.current import Place


def count_examples(place: Place, arguments: Iterable[Any]) -> None:
    """Count the rows of the first tensor that a model in training is called with."""
    first = next((x for x in arguments if isinstance(x, Tensor) and x.dim() > 0), None)
    if first is not None:
        consumed(place).note(0.0, len(first), None)
