"""Norms whose mean and variance are over rows that lie on several workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.sharding.tensor.activations import Together


class _Normalized(Function):
    """Numbers less their mean, by their standard deviation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, together: Together, dims: list[int], count: int, eps: float) -> Any:
        """These, the mean, and the variance (of which the sum of squares is divided by `count`)."""
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        mean = together.sum(wide.sum(dims, keepdim=True)) / count
        centred = wide - mean
        variance = together.sum(centred.square().sum(dims, keepdim=True)) / count
        scale = (variance + eps).rsqrt()
        found = (centred * scale).to(x.dtype)
        ctx.save_for_backward(found, scale)
        ctx.how = together, dims, count
        ctx.mark_non_differentiable(mean, variance)
        return found, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        """Both means of it in one sum (Ioffe and Szegedy 2015, section 3, written with the normalised numbers)."""
        found, scale = ctx.saved_tensors
        together, dims, count = ctx.how
        wide, of = gradient.to(scale.dtype), found.to(scale.dtype)
        sums = torch.stack([wide.sum(dims, keepdim=True), (wide * of).sum(dims, keepdim=True)])
        plain, along = together.sum(sums) / count
        return ((wide - plain - of * along) * scale).to(gradient.dtype), None, None, None, None


def normalized(x: Tensor, together: Together, dims: list[int], count: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`x` normalised over `dims`, with the mean and the variance of the `count` numbers that all workers have there.

    Cost: two sums over the workers forward, one number each per mean, and one of two numbers backward.
    """
    found, mean, variance = _Normalized.apply(x, together, dims, count, eps)  # type: ignore[no-untyped-call]
    return found, mean, variance
