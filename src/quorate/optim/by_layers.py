"""What LARS and LAMB have in common: which parameters are adapted, and norms of those that lie in pieces."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded, local
from quorate.optim.trust_ratio import norm_of


@dataclass(frozen=True)
class Pieces:
    """How the workers that hold the pieces of one set of parameters form sums."""

    size: int
    """How many workers."""
    sums: Callable[[Sequence[float]], Sequence[float]]
    """Of the numbers that all of them give, place by place; all make the same calls."""


class ByLayers(Optimizer):
    """An optimizer in which the step of each parameter goes by the norm of the whole of it.

    Abstract: LARS and LAMB are it. A parameter is adapted where its group says `adapts=True`; where the group says
    None (the default), it is adapted if it has two dimensions or more: biases, and parameters of norms, have
    one.
    """

    pieces: Pieces | None = None
    """Where parameters lie in pieces on several workers: set by `quorate.distribute`."""

    def norms(self, pairs: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """For each pair of a parameter and a tensor of its shape, the norm of the tensor; 0 for None.

        Cost where parameters lie in pieces: one message to each other worker, of a number for each pair.
        Raises `ConfigurationError` for pieces of an optimizer that nobody has distributed.
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
        squares = [norm**2 / count for norm, count in zip(_numbers(here), copies, strict=True)]
        whole = self.pieces.sums(squares)
        return [torch.full_like(norm, math.sqrt(square)) for norm, square in zip(here, whole, strict=True)]

    def adapted(self) -> list[Tensor]:
        """The parameters whose step goes by their norm, those without a gradient included, in the groups' order."""
        return [p for group in self.param_groups for p in group["params"] if is_adapted(p, group)]


def _numbers(norms: Sequence[Tensor]) -> list[float]:
    """Their values; a device is asked once."""
    if len({norm.device for norm in norms}) != 1:
        return [float(norm) for norm in norms]
    return [float(norm) for norm in torch.stack([norm.double() for norm in norms]).tolist()]


def is_adapted(p: Tensor, group: dict[str, Any]) -> bool:
    """Whether the step of `p`, which is of `group`, goes by its norm."""
    return p.dim() > 1 if group["adapts"] is None else bool(group["adapts"])


def dense_gradient(p: Tensor, optimizer: str) -> Tensor:
    """What lies here of a parameter's gradient. Raises `ConfigurationError` for sparse and for complex ones."""
    assert p.grad is not None
    gradient = local(p.grad)
    if gradient.layout != torch.strided or gradient.is_complex():
        raise ConfigurationError(f"{optimizer} takes dense gradients of real numbers; use SGD, or AdamW, for others")
    return gradient


def without(params: Iterable[Any], exclude: Sequence[str], optimizer: str) -> list[Any]:
    """`params` as an optimizer takes them, with those whose names match in groups of their own, which do not adapt.

    A pattern matches a whole name (`*` for anything), or what stands between dots of it: `norm` and `*.norm.*` match
    `blocks.0.norm.weight`. Raises `ConfigurationError` for parameters without names, and for a pattern without a match.
    """
    given = list(params)
    if not exclude:
        return given
    if isinstance(exclude, str):
        raise ConfigurationError(f'{optimizer}: exclude is a list of patterns, such as ["{exclude}"], not one string')
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    found: list[dict[str, Any]] = []
    matched: set[str] = set()
    for group in groups:
        named = list(group["params"])
        if not all(isinstance(one, tuple) for one in named):
            raise ConfigurationError(
                f"{optimizer}: exclude needs names; give the optimizer model.named_parameters(), or groups of them"
            )
        hits = {name: _matches(name, exclude) for name, _ in named}
        matched.update(*hits.values())
        out = [one for one in named if hits[one[0]]]
        left = [one for one in named if not hits[one[0]]]
        found += [{**group, "params": left}] * bool(left)
        found += [{**group, "params": out, "adapts": False}] * bool(out)
    unknown = sorted(set(exclude) - matched)
    if unknown:
        raise ConfigurationError(f'{optimizer}: no parameter matches exclude "{unknown[0]}"')
    return found


def _matches(name: str, patterns: Sequence[str]) -> list[str]:
    return [one for one in patterns if fnmatch.fnmatchcase(name, one) or one in name.split(".")]


def _cut_into(p: Tensor) -> int:
    """Into how many pieces a parameter is cut; 1 where it lies whole on each worker that has it."""
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
