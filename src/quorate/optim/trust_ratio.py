"""The trust ratios of LARS and LAMB, which scale the step of one layer. Pure functions of norms.

Norms are float32 (float64 where parameters are), whatever the parameters' dtype: the square of a float16 number is out
of range from 256 on.
"""

from __future__ import annotations

import torch
from torch import Tensor


def norm_of(x: Tensor) -> Tensor:
    """Return the Euclidean norm of a tensor: a tensor (), float32 or wider, on its device; 0 without elements."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
    return norm


def lars_ratio(weight: Tensor, gradient: Tensor, *, coefficient: float, weight_decay: float, eps: float) -> Tensor:
    """Return coefficient |w| / (|g| + weight_decay |w| + eps), from the norms |w| and |g|; 1 where either is 0.

    You, Gitman, Ginsburg 2017, arXiv 1708.03888, equation 6. Norms and ratio have one shape and dtype.
    """
    ratio = coefficient * weight / (gradient + weight_decay * weight + eps)
    return torch.where((weight > 0) & (gradient > 0), ratio, torch.ones_like(ratio))


def lamb_ratio(weight: Tensor, update: Tensor, *, bounds: tuple[float, float] | None) -> Tensor:
    """Return phi(|w|) / |u|, from the norms of a layer and of its update; 1 where either norm is 0.

    You et al. 2020, arXiv 1904.00962, Algorithm 2. phi is the identity, or limits |w| to `bounds`.
    """
    limited = weight if bounds is None else weight.clamp(*bounds)
    return torch.where((weight > 0) & (update > 0), limited / update, torch.ones_like(limited))
