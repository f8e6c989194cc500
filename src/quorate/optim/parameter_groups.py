"""Parameter groups for large batches: no weight decay on norms and biases; residual blocks that begin as identities."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import Module, Parameter

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError


@one_sentence({"model": "it is the torch.nn.Module whose parameters are trained"})
def parameter_groups(
    model: Module, weight_decay: float, *, no_decay: Sequence[str] = (), zero_gammas: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the trained parameters of `model` for an optimizer, in two groups: with and without `weight_decay`.

    Args:
        model: The model.
        weight_decay: The weight decay of the first group, at least 0.
        no_decay: Names of parameters without decay, besides those of one dimension or none (biases, weights of norms).
        zero_gammas: Names of norms whose weights become 0 here, such as the last norms of residual blocks. A block then
            begins as its shortcut (Goyal et al. 2017, arXiv 1706.02677, section 5.1).

    Patterns are of full names, with `*` for anything: `*.bn3`. Parameters have their names, as torch's and our
    optimizers take them; an empty group is left out.

    Returns:
        The groups, for any optimizer of torch.

    Raises:
        ConfigurationError: A pattern matches nothing, a norm has no weight, or the decay is below 0.

    Example:
        >>> decayed, plain = quorate.parameter_groups(model, weight_decay=0.01)
        >>> decayed["weight_decay"], plain["weight_decay"]
        (0.01, 0.0)
    """
    if not isinstance(model, Module):
        raise ConfigurationError(f"parameter_groups takes a torch.nn.Module, not {type(model).__name__}")
    if not weight_decay >= 0:
        raise ConfigurationError(f"weight_decay must be at least 0, not {weight_decay!r}")
    for pattern in zero_gammas:
        for gamma in _gammas(model, pattern):
            with torch.no_grad():
                gamma.zero_()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for pattern in no_decay:
        if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in named):
            raise ConfigurationError(f'no trained parameter matches no_decay "{pattern}"')
    plain = [
        (name, p)
        for name, p in named
        if p.dim() <= 1 or any(fnmatch.fnmatchcase(name, pattern) for pattern in no_decay)
    ]
    without = {name for name, _ in plain}
    decayed = [(name, p) for name, p in named if name not in without]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _gammas(model: Module, pattern: str) -> Iterator[Parameter]:
    modules = [(name, module) for name, module in model.named_modules() if fnmatch.fnmatchcase(name, pattern)]
    if not modules:
        raise ConfigurationError(
            f'no module matches zero_gammas "{pattern}"; it must be a name as in model.named_modules()'
        )
    for name, module in modules:
        gamma = getattr(module, "weight", None)
        if not isinstance(gamma, Parameter) or gamma.dim() != 1:
            raise ConfigurationError(f'"{name}" ({type(module).__name__}) has no weight of one dimension to be zero')
        yield gamma
