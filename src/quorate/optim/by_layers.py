"""The common part of LARS and LAMB: the choice of adapted parameters, norms of parameters in pieces, trust ratios."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded, local


@dataclass(frozen=True)
class Pieces:
    """A sum over the workers that hold the pieces of one set of parameters."""

    size: int
    """The number of workers."""
    sums: Callable[[Sequence[float]], Sequence[float]]
    """Returns the elementwise sums of the numbers that all workers pass; all make the same calls."""


class ByLayers(Optimizer):
    """An optimizer in which the step of each parameter depends on the norm of the full parameter.

    Abstract: LARS and LAMB implement it. A parameter is adapted if its group has `adapts=True`. If the group has None
    (the default), it is adapted if it has two dimensions or more; biases, and parameters of norms, have one.
    """

    pieces: Pieces | None = None
    """Set by `quorate.distribute` where parameters lie in pieces on several workers."""

    def norms(self, pairs: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """Return, for each pair of a parameter and a tensor of its shape, the norm of the tensor; 0 for None.

        Cost where parameters lie in pieces: one message to each other worker, of a number for each pair.
        Raises `ConfigurationError` for pieces of an optimizer that was not distributed.
        """
        here = [norm_of(local(x)) if x is not None else torch.zeros((), device=local(p).device) for p, x in pairs]
        if self.pieces is None:
            if any(_cut_into(p) > 1 for p, _ in pairs):
                raise ConfigurationError(
                    f"{type(self).__name__} needs norms of whole parameters, and these lie in pieces on several "
                    "workers; call quorate.distribute(optimizer, model) before the first step"
                )
            return here
        copies = [self.pieces.size / _cut_into(p) for p, _ in pairs]
        squares = [norm**2 / count for norm, count in zip(values_of(here), copies, strict=True)]
        whole = self.pieces.sums(squares)
        return [torch.full_like(norm, math.sqrt(square)) for norm, square in zip(here, whole, strict=True)]

    def adapted(self) -> list[Tensor]:
        """Return the adapted parameters, including those without a gradient, in the groups' order."""
        return [p for group in self.param_groups for p in group["params"] if is_adapted(p, group)]


def is_adapted(p: Tensor, group: dict[str, Any]) -> bool:
    """Return whether the step of `p`, in `group`, depends on its norm."""
    return p.dim() > 1 if group["adapts"] is None else bool(group["adapts"])


def dense_gradient(p: Tensor, optimizer: str) -> Tensor:
    """Return the local part of a parameter's gradient. Raises `ConfigurationError` for sparse and for complex ones."""
    assert p.grad is not None
    gradient = local(p.grad)
    if gradient.layout != torch.strided or gradient.is_complex():
        raise ConfigurationError(f"{optimizer} takes dense gradients of real numbers; use SGD, or AdamW, for others")
    return gradient


def without(params: Iterable[Any], exclude: Sequence[str], optimizer: str) -> list[Any]:
    """Return `params` for an optimizer, with those whose names match in separate groups, which do not adapt.

    A pattern matches a full name (`*` for anything), or a part between dots: `norm` and `*.norm.*` match
    `blocks.0.norm.weight`. Raises `ConfigurationError` for parameters without names, and for a pattern without a match.
    """
    listed = list(params)
    if not exclude:
        return listed
    if isinstance(exclude, str):
        raise ConfigurationError(f'{optimizer}: exclude is a list of patterns, such as ["{exclude}"], not one string')
    groups = listed if listed and isinstance(listed[0], dict) else [{"params": listed}]
    divided: list[dict[str, Any]] = []
    matched: set[str] = set()
    for group in groups:
        named = list(group["params"])
        if not all(isinstance(pair, tuple) for pair in named):
            raise ConfigurationError(
                f"{optimizer}: exclude needs names; give the optimizer model.named_parameters(), or groups of them"
            )
        hits = {name: _matches(name, exclude) for name, _ in named}
        matched.update(*hits.values())
        out = [pair for pair in named if hits[pair[0]]]
        left = [pair for pair in named if not hits[pair[0]]]
        divided += [{**group, "params": left}] * bool(left)
        divided += [{**group, "params": out, "adapts": False}] * bool(out)
    unknown = sorted(set(exclude) - matched)
    if unknown:
        raise ConfigurationError(f'{optimizer}: no parameter matches exclude "{unknown[0]}"')
    return divided


def _matches(name: str, patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern) or pattern in name.split(".")]


def _cut_into(p: Tensor) -> int:
    """Return the number of pieces of a parameter; 1 where each worker that has it holds it in full."""
    if not is_sharded(p):
        return 1
    sharded: Any = p
    sizes = sharded.device_mesh.shape
    return math.prod(size for size, how in zip(sizes, sharded.placements, strict=True) if not how.is_replicate())


def at_least(name: str, value: float, least: float, optimizer: str, *, below: float = math.inf) -> None:
    """Raise `ConfigurationError` for a number that is not from `least` on and smaller than `below`."""
    if not least <= value < below:
        limit = f"at least {least:g}" if below == math.inf else f"at least {least:g} and below {below:g}"
        raise ConfigurationError(f"{optimizer}: {name} must be {limit}, not {value!r}")


def norm_of(x: Tensor) -> Tensor:
    """Return the Euclidean norm of a tensor: a tensor (), float32 or wider, on its device; 0 without elements.

    The square of a float16 number is out of range from 256 on.
    """
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
