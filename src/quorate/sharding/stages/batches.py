"""A batch in micro-batches, and a model's outputs for them as one."""

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
    """Its share of the examples of the batch."""


def micro_batches(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> list[MicroBatch]:
    """Divide a batch into at most `count` micro-batches, as even as possible.

    Every tensor with as many rows as the first one is cut along dimension 0; other arguments are passed with each
    micro-batch. Raises `ConfigurationError` without any tensor, or examples.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    first = next((x for x in leaves if isinstance(x, Tensor) and x.dim()), None)
    if first is None or not len(first):
        raise ConfigurationError("call a model in stages with a batch: a tensor with examples in dimension 0")
    size = len(first)
    sizes = [len(part) for part in torch.arange(size).tensor_split(min(count, size))]
    parts = [
        x.split(sizes) if isinstance(x, Tensor) and x.dim() and len(x) == size else [x] * len(sizes) for x in leaves
    ]
    batches = []
    for number, many in enumerate(sizes):
        own_args, own_kwargs = pytree.tree_unflatten([part[number] for part in parts], spec)
        batches.append(MicroBatch(own_args, own_kwargs, many, many / size))
    return batches


def parts_of(tree: Any, batches: Sequence[MicroBatch]) -> list[Any]:
    """Divide targets (tensors, in lists and dictionaries) of the full batch by micro-batch."""
    sizes = [batch.size for batch in batches]
    leaves, spec = pytree.tree_flatten(tree)
    for x in leaves:
        if isinstance(x, Tensor) and x.dim() and len(x) != sum(sizes):
            raise ConfigurationError(f"a target has {len(x)} rows, but the batch has {sum(sizes)} examples")
    parts = [x.split(sizes) if isinstance(x, Tensor) and x.dim() else [x] * len(sizes) for x in leaves]
    return [pytree.tree_unflatten([part[number] for part in parts], spec) for number in range(len(sizes))]


@dataclass
class Merged:
    """A model's outputs for a full batch."""

    tensors: list[Tensor]
    """Without a graph."""
    learns: list[bool]
    """Whether each has gradients."""
    leaves: tuple[Any, ...]
    """Leaves of the tree; tensors here mark the places of `tensors`."""
    spec: Any
    parts: list[list[Tensor]] = field(default_factory=list)
    """Tensors of each micro-batch, with their graphs; in the last stage."""
    batches: Sequence[MicroBatch] = ()

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        """Return the tree of outputs with these tensors."""
        left = iter(tensors)
        return pytree.tree_unflatten([next(left) if isinstance(x, Tensor) else x for x in self.leaves], self.spec)

    def ends(self, number: int) -> list[Tensor]:
        """Return the tensors from which the backward pass of a micro-batch begins."""
        return [x for x, learns in zip(self.parts[number], self.learns, strict=True) if learns]

    def gradients(self, every: Sequence[Tensor], number: int) -> list[Tensor]:
        """Return the gradients of `ends`, from the gradients of all tensors."""
        begin, microbatch = sum(batch.size for batch in self.batches[:number]), self.batches[number]
        gradients = []
        for gradient, x, learns in zip(every, self.parts[number], self.learns, strict=True):
            if learns:
                is_number = not x.dim()
                gradients.append(
                    gradient * microbatch.share if is_number else gradient[begin : begin + microbatch.size]
                )
        self.parts[number] = []
        return gradients


def merged(outputs: Sequence[Any], batches: Sequence[MicroBatch]) -> Merged:
    """Join outputs along dimension 0; single numbers become the mean, weighted by examples. Other values are those of
    the first micro-batch. Raises `ConfigurationError` for other tensors."""
    trees = [pytree.tree_flatten(output) for output in outputs]
    leaves, spec = trees[0]
    places = [place for place, x in enumerate(leaves) if isinstance(x, Tensor)]
    parts = [[tree[0][place] for place in places] for tree in trees]
    tensors = []
    for column in zip(*parts, strict=True):
        if all(not x.dim() for x in column):
            whole = sum(x.detach() * batch.share for x, batch in zip(column, batches, strict=True))
            tensors.append(torch.as_tensor(whole))
        elif all(x.dim() and len(x) == batch.size for x, batch in zip(column, batches, strict=True)):
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
