"""A backward pass of torch whose gradients another framework has computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Computed(torch.autograd.Function):
    """A loss of which the gradients are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *factors: Any) -> Any:
        (factor,), gradients = factors, ctx.gradients
        ctx.gradients = ()
        scale, memory = float(factor), set[int]()
        own: list[Tensor | None] = []
        for x in gradients:
            if x is not None:  # autograd copies tensors that others refer to, but not new ones of the same memory
                is_shared = x.data_ptr() in memory
                memory.add(x.data_ptr())
                x = x * scale if is_shared or scale != 1.0 else x.detach()
            own.append(x)
        return None, None, *own


def backward(loss: Tensor, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> None:
    """Make a backward pass in which each of `parameters` gets its gradient, as if torch had computed it.

    Observers see the pass, and `loss`, a tensor of one number. Gradients are not copied: `.grad` is their memory, which
    strategies write. Of several in the same memory only the first is.
    """
    computed: Any = _Computed.apply(loss, gradients, *parameters)  # type: ignore[no-untyped-call]
    computed.backward()
