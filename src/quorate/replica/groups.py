"""Layers whose weights share few values: parameters `weight_values` (k), and buffers `weight_groups` of small integers.

The group of a number is 0 if the number is zero (a pruned one, which stays zero), and g if it has the value c_g, from 1
on. The gradient of c_g is the mean of the gradients of its n_g numbers, so that k numbers of a weight are trained and
sent. A step of SGD on c_g is then the mean of the steps of its numbers, at the same learning rate and weight decay. It
is the projection of the step of the full weight. With the sum, as published, the rate would have to fall with n_g.
The mean of gradients M that an optimizer keeps becomes the means of M over groups. Mean squares V become sum(V) /
n_g^2, as if the numbers of a gradient were uncorrelated.

The values are those of k-means in one dimension, from values equally far from each other (`clustered`).

Source: Han, Mao, Dally, "Deep compression", ICLR 2016, with sums; the means are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.replica.derived import Derived, DerivedRecurrent, step_on_parts, take_place
from quorate.replica.worker_momentum import WorkerMomentum

VALUES, GROUPS = "_values", "_groups"
MOST = 255
"""The largest number of groups: their indices are bytes."""
_ROUNDS = 300


class Clustered(Derived):
    """The base of layers whose weights share values."""

    @staticmethod
    def derive(tensors: Mapping[str, Tensor | None], name: str) -> Tensor | None:
        values, groups = tensors.get(f"{name}{VALUES}"), tensors.get(f"{name}{GROUPS}")
        return None if values is None or groups is None else shared(values, groups)


class ClusteredLinear(Clustered, nn.Linear):
    """A linear layer whose numbers share values."""


class ClusteredConv1d(Clustered, nn.Conv1d):
    """A convolution over one dimension whose numbers share values."""


class ClusteredConv2d(Clustered, nn.Conv2d):
    """A convolution over two dimensions whose numbers share values."""


class ClusteredConv3d(Clustered, nn.Conv3d):
    """A convolution over three dimensions whose numbers share values."""


class ClusteredEmbedding(Clustered, nn.Embedding):
    """A table of embeddings whose numbers share values."""


class ClusteredLSTM(Clustered, DerivedRecurrent, nn.LSTM):
    """An LSTM whose numbers share values."""


class ClusteredGRU(Clustered, DerivedRecurrent, nn.GRU):
    """A GRU whose numbers share values."""


KINDS: Mapping[type[Module], type[Module]] = {
    nn.Linear: ClusteredLinear,
    nn.Conv1d: ClusteredConv1d,
    nn.Conv2d: ClusteredConv2d,
    nn.Conv3d: ClusteredConv3d,
    nn.Embedding: ClusteredEmbedding,
    nn.LSTM: ClusteredLSTM,
    nn.GRU: ClusteredGRU,
}
"""The layers whose weights can share values, and these."""
_OF_KINDS = {clustered: plain for plain, clustered in KINDS.items()}


def weights_of(module: Module) -> list[str]:
    """Return the names of the weights of `module` that can share values, those that do already included."""
    if _OF_KINDS.get(type(module), type(module)) not in KINDS:
        return []
    names = dict.fromkeys(name.removesuffix(VALUES) for name in module._parameters)
    return [name for name in names if name.startswith("weight")]


def shared(values: Tensor, groups: Tensor) -> Tensor:
    """Return the weight (...) of `values` (k) in `groups` (..., uint8), with zeros where the group is 0.

    The gradient of a value is the mean of those of its group.
    """
    if values.requires_grad and torch.is_grad_enabled():
        counts = groups.reshape(-1).bincount(minlength=len(values) + 1)[1:].clamp_min(1)
        values = values.detach() + (values - values.detach()) / counts.to(values.dtype)
    return torch.cat([values.new_zeros(1), values])[groups.int()]


def clustered(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `count` values (k) of k-means, and the group of each number (..., uint8); zeros stay in group 0.

    Lloyd's rounds from equally spaced values over the range of the numbers. They are sorted once, and a round takes two
    searches for each group in their prefix sums, which are in float64. Groups without any number are left out, and as
    many values as there are different numbers suffice.
    """
    numbers = weight.detach().reshape(-1)
    kept = numbers != 0
    ordered = numbers[kept].double().sort().values
    if not len(ordered):
        return weight.new_zeros(1).detach(), torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    values = torch.linspace(float(ordered[0]), float(ordered[-1]), count, dtype=torch.float64, device=weight.device)
    for _ in range(_ROUNDS):
        ends = torch.searchsorted(ordered, (values[1:] + values[:-1]) / 2)
        ends = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(ordered))])
        counts = ends.diff()
        means = torch.where(counts > 0, (sums[ends[1:]] - sums[ends[:-1]]) / counts.clamp_min(1), values)
        if torch.equal(means, values):
            break
        values = means
    values = values[counts > 0]
    groups = torch.zeros(len(numbers), dtype=torch.uint8, device=weight.device)
    nearest = torch.bucketize(numbers[kept].double(), (values[1:] + values[:-1]) / 2)
    groups[kept] = (nearest + 1).to(torch.uint8)
    return values.to(weight.dtype), groups.view(weight.shape)


def share_values(module: Module, name: str, values: Tensor, groups: Tensor) -> tuple[Parameter, Parameter]:
    """Put values and groups in place of the weight `name` of `module`; return the weight and the new parameter."""
    weight = take_place(module, name, KINDS)
    parameter = Parameter(values, requires_grad=weight.requires_grad)
    module.register_parameter(f"{name}{VALUES}", parameter)
    module.register_buffer(f"{name}{GROUPS}", groups)
    return weight, parameter


def step_on_values(
    optimizer: Optimizer, weight: Parameter, values: Parameter, groups: Tensor, momentum: WorkerMomentum | None = None
) -> bool:
    """Let `optimizer` step on `values` in place of `weight`: see `step_on_parts`."""
    return step_on_parts(optimizer, weight, {VALUES: values}, partial(_of_groups, groups, len(values)), momentum)


def _of_groups(groups: Tensor, count: int, mean: Tensor, are_squares: bool) -> list[Tensor]:
    places = groups.reshape(-1)
    sums = mean.new_zeros(count + 1).index_add_(0, places.int(), mean.reshape(-1))[1:]
    counts = places.bincount(minlength=count + 1)[1:].clamp_min(1).to(mean.dtype)
    return [sums / (counts.square() if are_squares else counts)]
