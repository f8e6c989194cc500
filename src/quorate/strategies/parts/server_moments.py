"""The second moments of the adaptive optimizers that take the mean way of clients for a gradient; pure."""

from __future__ import annotations

from torch import Tensor


def moved(kind: str, v: Tensor, delta: Tensor, beta2: float) -> Tensor:
    """v after a mean way `delta` (Reddi et al. 2021, Algorithm 2), element by element; a new tensor.

    adagrad  v + delta^2
    yogi     v - (1 - beta2) delta^2 sign(v - delta^2)
    adam     beta2 v + (1 - beta2) delta^2
    """
    square = delta.abs().square() if delta.is_complex() else delta.square()
    if kind == "adagrad":
        return v + square
    if kind == "yogi":
        return v - (1 - beta2) * square * (v - square).sgn()
    return beta2 * v + (1 - beta2) * square
