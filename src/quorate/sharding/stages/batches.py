"""A batch in micro-batches, and what a model gives of these as one again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from quorate.core.errors import ConfigurationError


@dataclass(frozen=True)
class MicroBatch:
    """Some of the examples of a batch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int
    share: float
    """Of all examples of the batch."""


def micro_batches(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> list[MicroBatch]:
    """At most `count`, as even as can be. Cut along dimension 0 is every tensor that is as long there as the first one;
    what else there is goes with each of them. Raises `ConfigurationError` without any tensor, or examples."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    first = next((x for x in leaves if isinstance(x, Tensor) and x.dim()), None)
    if first is None or not len(first):
        raise ConfigurationError("call a model in stages with a batch: a tensor with examples in dimension 0")
    size = len(first)
    sizes = [len(part) for part in torch.arange(size).tensor_split(min(count, size))]
    parts = [
        x.split(sizes) if isinstance(x, Tensor) and x.dim() and len(x) == size else [x] * len(sizes) for x in leaves
    ]
    found = []
    for number, many in enumerate(sizes):
        own_args, own_kwargs = pytree.tree_unflatten([part[number] for part in parts], spec)
        found.append(MicroBatch(own_args, own_kwargs, many, many / size))
    return found


def parts_of(tree: Any, batches: Sequence[MicroBatch]) -> list[Any]:
    """What belongs to each micro-batch of targets (tensors, in lists and dictionaries) of the whole batch."""
    sizes = [one.size for one in batches]
    leaves, spec = pytree.tree_flatten(tree)
    for x in leaves:
        if isinstance(x, Tensor) and x.dim() and len(x) != sum(sizes):
            raise ConfigurationError(f"a target has {len(x)} rows, but the batch has {sum(sizes)} examples")
    parts = [x.split(sizes) if isinstance(x, Tensor) and x.dim() else [x] * len(sizes) for x in leaves]
    return [pytree.tree_unflatten([part[number] for part in parts], spec) for number in range(len(sizes))]


@dataclass
class Merged:
    """What a model gives of a whole batch."""

    tensors: list[Tensor]
    """Without a graph."""
    learns: list[bool]
    """Which have gradients."""
    leaves: tuple[Any, ...]
    """Of the tree; tensors stand in the places of `tensors`."""
    spec: Any
    parts: list[list[Tensor]] = field(default_factory=list)
    """Of each micro-batch, with their graphs; in the last stage."""
    batches: Sequence[MicroBatch] = ()

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        """With these in their places."""
        left = iter(tensors)
        return pytree.tree_unflatten([next(left) if isinstance(x, Tensor) else x for x in self.leaves], self.spec)

    def ends(self, number: int) -> list[Tensor]:
        """Where the backward pass of a micro-batch begins."""
        return [x for x, learns in zip(self.parts[number], self.learns, strict=True) if learns]

    def gradients(self, every: Sequence[Tensor], number: int) -> list[Tensor]:
        """Of `ends`, from those of all tensors."""
        begin, one = sum(batch.size for batch in self.batches[:number]), self.batches[number]
        found = []
        for gradient, x, learns in zip(every, self.parts[number], self.learns, strict=True):
            if learns:
                is_number = not x.dim()
                found.append(gradient * one.share if is_number else gradient[begin : begin + one.size])
        self.parts[number] = []
        return found


def merged(outputs: Sequence[Any], batches: Sequence[MicroBatch]) -> Merged:
    """Tensors behind one another along dimension 0; of single numbers the mean, weighted by examples. What is no tensor
    is that of the first. Raises `ConfigurationError` for other tensors."""
    trees = [pytree.tree_flatten(output) for output in outputs]
    leaves, spec = trees[0]
    places = [place for place, x in enumerate(leaves) if isinstance(x, Tensor)]
    parts = [[tree[0][place] for place in places] for tree in trees]
    tensors = []
    for column in zip(*parts, strict=True):
        if all(not x.dim() for x in column):
            whole = sum(x.detach() * one.share for x, one in zip(column, batches, strict=True))
            tensors.append(torch.as_tensor(whole))
        elif all(x.dim() and len(x) == one.size for x, one in zip(column, batches, strict=True)):
            tensors.append(torch.cat([x.detach() for x in column]))
        else:
            raise ConfigurationError(
                f"a model in stages gave a tensor of the shape {tuple(column[0].shape)} for {batches[0].size} "
                "examples; each tensor has examples in dimension 0, or is one number"
            )
    if not tensors:
        kind = type(outputs[0]).__name__
        raise ConfigurationError(f"a model in stages must return tensors (in tuples, lists, dictionaries), not {kind}")
    return Merged(tensors, [x.requires_grad for x in parts[0]], tuple(leaves), spec, parts, batches)
