"""What each collective makes of the workers' tensors: pure functions, by rank.

Sums are formed in order of rank, host by host, in float32 where the type is a smaller float, so that every worker has
the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.wire.exchange import sum_in_order

Given = Sequence[Tensor]
"""What one worker gives: one tensor, one per rank, or none."""


def form(operation: str, given: Sequence[Given], root: int, hosts: Sequence[int] = ()) -> list[Any]:
    """The results of `operation`, by rank; those that the contract says are written into `x` are.

    `given[r]` is what worker r gave, and `hosts[r]` its host, where there are several. Tensors in the results belong to
    the worker that gets them.
    """
    size = len(given)
    match operation:
        case "barrier":
            return [None] * size
        case "all_reduce":
            total = sum_in_order([x for (x,) in given], hosts)
            return [write(x, total) for (x,) in given]
        case "reduce":
            total = sum_in_order([x for (x,) in given], hosts)
            return [write(x, total) if rank == root else x for rank, (x,) in enumerate(given)]
        case "broadcast":
            (source,) = given[root]
            return [x if rank == root else write(x, source) for rank, (x,) in enumerate(given)]
        case "reduce_scatter":
            total = sum_in_order([x for (x,) in given], hosts).flatten()
            return [piece.clone() for piece in total.tensor_split(size)]
        case "all_gather":
            return [[copy(x) for (x,) in given] for _ in range(size)]
        case "gather":
            return [[copy(x) for (x,) in given] if rank == root else None for rank in range(size)]
        case "all_to_all":
            return [[copy(pieces[rank]) for pieces in given] for rank in range(size)]
        case "scatter":
            return [copy(piece) for piece in given[root]]
    raise ValueError(f"{operation!r} is not a collective")


def write(x: Tensor, value: Tensor) -> Tensor:
    """Write `value` into `x`, whatever modes of autograd are on; returns `x`."""
    with torch.inference_mode(x.is_inference()), torch.no_grad():
        x.copy_(value)
    return x


def copy(x: Tensor) -> Tensor:
    """A contiguous copy outside of autograd."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def nbytes(tensors: Given) -> int:
    """Bytes of all of them."""
    return sum(x.numel() * x.element_size() for x in tensors)
