"""Tensors that several processes hold together (torch's DTensor): the piece that lies here.

Everything that packs, copies or compares a replica's numbers asks here what it has of them, so that a strategy sees
the pieces of a sharded model as it sees whole tensors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor
from torch.nn import Parameter


def local(x: Tensor) -> Tensor:
    """What this process holds of `x`, in the same memory; `x` itself where it is an ordinary tensor."""
    kind = type(x)
    if kind is Parameter or kind is Tensor:
        return x
    piece: Tensor | None = getattr(x, "_local_tensor", None)
    return x if piece is None else piece


def is_sharded(x: Tensor) -> bool:
    """Whether other processes hold the rest of `x`."""
    return local(x) is not x


def as_piece_of(whole: Tensor, x: Tensor) -> Tensor:
    """`x`, in the shape of what this process holds of `whole`, as a tensor of the kind of `whole`; no copy.

    `x` may be of any dtype, and on any device: it stays there. Cost: some microseconds, a tenth of `from_local`'s.
    """
    if not is_sharded(whole):
        return x
    sharded: Any = whole
    spec = sharded._spec
    if x.dtype != spec.tensor_meta.dtype:
        spec = dataclasses.replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=x.dtype))
    made: Tensor = type(sharded)(x, spec, requires_grad=False)
    return made


def exchange_numbers(p: Tensor, x: Tensor) -> Tensor:
    """Let `p` stand on the memory of `x` from now on; returns what it stood on."""
    if not is_sharded(p):
        before, p.data = p.data, x
        return before
    sharded: Any = p
    before, sharded._local_tensor = local(p), x
    return before
