"""Operations of recurrent layers, which torch's FlopCounterMode does not count where one kernel computes a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

_KERNELS = ("mkldnn_rnn_layer", "_cudnn_rnn")


def counter_of_operations() -> FlopCounterMode:
    """Return a counter that also knows fused LSTM and GRU; multiplications and additions count one each."""
    known: dict[Any, Callable[..., int]] = {}
    for kernel in _KERNELS:
        for name, passes in ((kernel, 1), (f"{kernel}_backward", 2)):
            if hasattr(torch.ops.aten, name):
                known[getattr(torch.ops.aten, name)] = _recurrent(passes)
    return FlopCounterMode(display=False, custom_mapping=known)


def _recurrent(passes: int) -> Callable[..., int]:
    """Return the formula of a kernel whose first argument is its input, and whose next ones are its weights.

    Each weight matrix is multiplied with each token once, and twice in the backward pass.
    """

    def operations(inputs: Sequence[int], *others: Any, **_: Any) -> int:
        tokens = math.prod(inputs[:-1])
        first = others[0]
        weights = first if first and not isinstance(first, torch.Size) else others[:2]
        return 2 * passes * tokens * sum(math.prod(shape) for shape in _matrices(weights))

    return operations


def _matrices(shapes: Iterable[Any]) -> list[Sequence[int]]:
    return [shape for shape in shapes if isinstance(shape, torch.Size) and len(shape) == 2]
