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
        if float(factor) != 1.0:
            gradients = [None if x is None else x * factor.to(x.dtype) for x in gradients]
        return None, None, *gradients


def backward(loss: Tensor, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> None:
    """Make a backward pass in which each of `parameters` gets its gradient, as if torch had computed it.

    Observers see the pass, and `loss`, a tensor of one number. Gradients are not copied: `.grad` may be their memory.
    """
    computed: Any = _Computed.apply(loss, gradients, *parameters)  # type: ignore[no-untyped-call]
    computed.backward()
