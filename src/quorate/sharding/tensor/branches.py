"""Modules of which several are given an input side by side, each on one of the workers that compute a model together.

Every worker has the whole input; it calculates the branches that are its, and is given the outputs of the others.
Backward it is given the gradients of all outputs by what follows, which all calculate alike, and the workers form the
sum of what their branches say of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from quorate.core.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from quorate.sharding.tensor.dealt import Dealt

Combine = Literal["tuple", "concatenate", "sum"] | Callable[[tuple[Tensor, ...]], Any]
_COMBINES, _INPUTS = ("tuple", "concatenate", "sum"), ("same", "each")


class Branches(Module):
    """Made by `branches`. In one process, and where no workers compute layers together, it calculates all of them."""

    def __init__(self, branches: Sequence[Module], combine: Combine, inputs: str, dim: int, costs: list[float]) -> None:
        super().__init__()
        self.items, self.combine, self.inputs, self.dim, self.costs = ModuleList(branches), combine, inputs, dim, costs
        self.dealt: Dealt | None = None
        """Which of them are here; None where all are."""

    def forward(self, *inputs: Tensor) -> Any:
        """The outputs, combined. Raises `ConfigurationError` for another number of inputs than there are branches,
        where each has its own."""
        count = len(self.items)
        if self.inputs == "each" and len(inputs) != count:
            raise ConfigurationError(f'{count} branches with inputs="each" were given {len(inputs)} inputs')
        if self.dealt is None:
            given = [inputs] * count if self.inputs == "same" else [(x,) for x in inputs]
            outputs = tuple(branch(*own) for branch, own in zip(self.items, given, strict=True))
        else:
            from quorate.sharding.tensor.dealt import run  # it takes torch a second

            outputs = run(self, self.dealt, inputs)
        if self.combine == "tuple":
            return outputs
        if self.combine == "concatenate":
            return torch.cat(outputs, self.dim)
        return torch.stack(outputs).sum(0) if self.combine == "sum" else self.combine(outputs)


def branches(
    branches: Sequence[Module],
    combine: Combine = "tuple",
    *,
    inputs: Literal["same", "each"] = "same",
    dim: int = 1,
    costs: Sequence[float] | None = None,
) -> Branches:
    """A module of `branches`, which lie on different workers where `quorate.parallelize` has a mesh with `tensor`.

    All are given the same `inputs`, or with "each" the first one the first input, and so on. Each gives one tensor;
    `combine` makes of them a "tuple", concatenates them along `dim`, forms their "sum", or is called with the tuple.
    A module that is there twice, or shares parameters with another one, has these on all workers, and their gradients
    are summed (Siamese networks; Bromley et al. 1993). Other parameters, and what the optimizer keeps of them, lie on
    one worker. `costs` says what each takes, in any unit; None: as many as it has parameters. The most costly is dealt
    first, to the worker that has least by then.

    Cost: each worker sends its outputs to the T - 1 others, and backward 2 (T - 1) / T of the bytes of inputs and of
    shared parameters that have gradients. It keeps as many numbers as the worker that has most.

    Raises `ConfigurationError` for what are no modules, or nobody's, and for other costs than there are branches.
    """
    given = list(branches)
    if not given or not all(isinstance(branch, Module) for branch in given):
        raise ConfigurationError("branches must be a list of at least one module")
    if not callable(combine) and combine not in _COMBINES:
        raise unknown("way to combine branches", str(combine), _COMBINES)
    if inputs not in _INPUTS:
        raise unknown("way to give inputs to branches", str(inputs), _INPUTS)
    if any(isinstance(part, Branches) for branch in given for part in branch.modules()):
        raise ConfigurationError("branches cannot be nested; list them all in one quorate.branches")
    counted = [float(sum(p.numel() for p in branch.parameters())) for branch in given]
    found = counted if costs is None else [float(cost) for cost in costs]
    if len(found) != len(given) or any(not 0 <= cost < float("inf") for cost in found):
        raise ConfigurationError(
            f"costs={costs!r} must have one number of at least 0 for each of {len(given)} branches"
        )
    return Branches(given, combine, inputs, dim, found)


def branches_in(model: Module) -> dict[str, Branches]:
    """All of them, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Branches)}


def dealt_in_words(model: Module) -> str:
    """A line of each module with branches that are dealt out: the branches of each worker."""
    lines = []
    for name, module in branches_in(model).items():
        dealt = module.dealt
        if dealt is not None:
            workers = (", ".join(map(str, dealt.of(worker))) or "none" for worker in range(dealt.together.size))
            lines.append(f"branches of {name or 'the model'}, by worker: {' | '.join(workers)}\n")
    return "".join(lines)


def is_in_branches(name: str, found: dict[str, Branches]) -> bool:
    """Whether the module of this name is a part of one of them."""
    return any(name.startswith(f"{inner}." if inner else "") and name != inner for inner in found)
