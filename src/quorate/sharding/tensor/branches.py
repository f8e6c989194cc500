"""Parallel modules with one input, each on one of the workers that compute a model together.

Every worker has the full input, calculates its branches, and receives the outputs of the others. Backward, every worker
has the gradients of all outputs, and the workers sum their branches' gradients of the input.
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
    """The result of `branches`. In one process, and without workers that compute layers together, it calculates all."""

    def __init__(self, branches: Sequence[Module], combine: Combine, inputs: str, dim: int, costs: list[float]) -> None:
        super().__init__()
        self.items, self.combine, self.inputs, self.dim, self.costs = ModuleList(branches), combine, inputs, dim, costs
        self.dealt: Dealt | None = None
        """Which of them are here; None where all are."""

    def forward(self, *inputs: Tensor) -> Any:
        """Return the combined outputs. Raises `ConfigurationError` for another number of inputs than branches, where
        each has its own."""
        count = len(self.items)
        if self.inputs == "each" and len(inputs) != count:
            raise ConfigurationError(f'{count} branches with inputs="each" were given {len(inputs)} inputs')
        if self.dealt is None:
            arguments = [inputs] * count if self.inputs == "same" else [(x,) for x in inputs]
            outputs = tuple(branch(*own) for branch, own in zip(self.items, arguments, strict=True))
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
    """Return a module of `branches`, which lie on different workers where `quorate.parallelize` has a mesh with
    `tensor`.

    Args:
        branches: The modules; each returns one tensor. A module that appears twice, or shares parameters with another
            one, has these on all workers, and their gradients are summed (Siamese networks; Bromley et al. 1993). Other
            parameters, and their optimizer state, lie on one worker.
        combine: "tuple" returns the outputs as a tuple, "concatenate" joins them along `dim`, "sum" adds them; a
            function is called with the tuple.
        inputs: "same" passes all inputs to every branch, "each" the first to the first branch, and so on.
        dim: The dimension of "concatenate".
        costs: The cost of each branch, in any unit; None: its number of parameters. The most costly branch is placed
            first, on the worker with the least load by then.

    Cost: each worker sends its outputs to the T - 1 others, and backward 2 (T - 1) / T of the bytes of inputs and of
    shared parameters that have gradients. It holds as many numbers as the worker with the most.

    Returns:
        The module.

    Raises:
        ConfigurationError: There are no branches, one is not a Module, or the number of costs differs from theirs.

    Example:
        >>> block = quorate.branches([torch.nn.Linear(4, 2), torch.nn.Linear(4, 3)], "concatenate")
        >>> block(inputs).shape
        torch.Size([8, 5])
    """
    modules = list(branches)
    if not modules or not all(isinstance(branch, Module) for branch in modules):
        raise ConfigurationError("branches must be a list of at least one module")
    if not callable(combine) and combine not in _COMBINES:
        raise unknown("way to combine branches", str(combine), _COMBINES)
    if inputs not in _INPUTS:
        raise unknown("way to give inputs to branches", str(inputs), _INPUTS)
    if any(isinstance(part, Branches) for branch in modules for part in branch.modules()):
        raise ConfigurationError("branches cannot be nested; list them all in one quorate.branches")
    counted = [float(sum(p.numel() for p in branch.parameters())) for branch in modules]
    loads = counted if costs is None else [float(cost) for cost in costs]
    if len(loads) != len(modules) or any(not 0 <= cost < float("inf") for cost in loads):
        raise ConfigurationError(
            f"costs={costs!r} must have one number of at least 0 for each of {len(modules)} branches"
        )
    return Branches(modules, combine, inputs, dim, loads)


def branches_in(model: Module) -> dict[str, Branches]:
    """Return all `Branches` of `model`, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Branches)}


def dealt_in_words(model: Module) -> str:
    """Return a line for each module whose branches are distributed: the branches of each worker."""
    lines = []
    for name, module in branches_in(model).items():
        dealt = module.dealt
        if dealt is not None:
            workers = (", ".join(map(str, dealt.of(worker))) or "none" for worker in range(dealt.together.size))
            lines.append(f"branches of {name or 'the model'}, by worker: {' | '.join(workers)}\n")
    return "".join(lines)


def is_in_branches(name: str, branches_by_name: dict[str, Branches]) -> bool:
    """Return whether the module called `name` is inside one of the branches."""
    return any(name.startswith(f"{inner}." if inner else "") and name != inner for inner in branches_by_name)
