"""The result of each collective, from the tensors of all workers by rank; pure functions.

Sums are formed in order of rank, host by host, in float32 for smaller floats, so that every worker has the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.wire.exchange import sum_in_order

Inputs = Sequence[Tensor]
"""The inputs of one worker: one tensor, one per rank, or none."""


def form(operation: str, inputs: Sequence[Inputs], root: int, hosts: Sequence[int] = ()) -> list[Any]:
    """Return the results of `operation`, by rank, written into the inputs where the contract says so.

    `inputs[r]` are those of worker r, and `hosts[r]` its host, where there are several. Tensors in the results belong
    to the worker that gets them.
    """
    size = len(inputs)
    match operation:
        case "barrier":
            return [None] * size
        case "all_reduce":
            total = sum_in_order([x for (x,) in inputs], hosts)
            return [write(x, total) for (x,) in inputs]
        case "reduce":
            total = sum_in_order([x for (x,) in inputs], hosts)
            return [write(x, total) if rank == root else x for rank, (x,) in enumerate(inputs)]
        case "broadcast":
            (source,) = inputs[root]
            return [x if rank == root else write(x, source) for rank, (x,) in enumerate(inputs)]
        case "reduce_scatter":
            total = sum_in_order([x for (x,) in inputs], hosts).flatten()
            return [piece.clone() for piece in total.tensor_split(size)]
        case "all_gather":
            return [[copy(x) for (x,) in inputs] for _ in range(size)]
        case "gather":
            return [[copy(x) for (x,) in inputs] if rank == root else None for rank in range(size)]
        case "all_to_all":
            return [[copy(pieces[rank]) for pieces in inputs] for rank in range(size)]
        case "scatter":
            return [copy(piece) for piece in inputs[root]]
    raise ValueError(f"{operation!r} is not a collective")


def write(x: Tensor, value: Tensor) -> Tensor:
    """Write `value` into `x` in any autograd mode; return `x`."""
    with torch.inference_mode(x.is_inference()), torch.no_grad():
        x.copy_(value)
    return x


def copy(x: Tensor) -> Tensor:
    """Return a contiguous copy outside of autograd."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def nbytes(tensors: Inputs) -> int:
    """Return the bytes of all tensors."""
    return sum(x.numel() * x.element_size() for x in tensors)
