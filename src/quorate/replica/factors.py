"""Layers in two factors, W = B A, in place of layers with the weight W: parameters `weight_a` (A) and `weight_b` (B).

W is a matrix of m rows: the outputs of a linear layer or a convolution (whose other dimensions are n columns), or the
gates of a recurrent layer. A has r rows and B has r columns; r is the rank.

The gradient of A is B^T G, and that of B is G A^T, where G is the gradient of W. So the mean of gradients M that an
optimizer keeps becomes M_A = B^T M and M_B = M A^T. A mean of squares V becomes V_A = (B * B)^T V and
V_B = V (A * A)^T, as if the numbers of a gradient were uncorrelated.

Sources: Wang, Agarwal, Papailiopoulos, "Pufferfish", MLSys 2021 (the layers and the SVD); the means are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from quorate.replica.derived import Derived, DerivedRecurrent, step_on_parts, take_place
from quorate.replica.worker_momentum import WorkerMomentum

_A, _B = "_a", "_b"

Pair = tuple[Tensor, Tensor]
"""The factors A and B of a weight."""


class LowRank(Derived):
    """The base of layers in two factors; a weight is the product of its factors."""

    @staticmethod
    def derive(tensors: Mapping[str, Tensor | None], name: str) -> Tensor | None:
        a, b = tensors.get(f"{name}{_A}"), tensors.get(f"{name}{_B}")
        return None if a is None or b is None else product(a, b)


class LowRankLinear(LowRank, nn.Linear):
    """A linear layer in two factors: r (m + n) multiplications for each input, where it had m n."""

    def forward(self, input: Tensor) -> Tensor:
        """Return B (A x) + bias, for `input` x (..., n)."""
        return nn.functional.linear(nn.functional.linear(input, self.weight_a), self.weight_b, self.bias)


class _LowRankConv(LowRank, _ConvNd):
    """A convolution with r outputs, followed by one with kernels of size 1."""

    def forward(self, input: Tensor) -> Tensor:
        of_kernel: Any = self
        reduced = of_kernel._conv_forward(input, self.weight_a, None)
        second: Any = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[self.weight_a.dim() - 3]
        expanded: Tensor = second(reduced, self.weight_b, self.bias)
        return expanded


class LowRankConv1d(_LowRankConv, nn.Conv1d):
    """A convolution over one dimension in two factors."""


class LowRankConv2d(_LowRankConv, nn.Conv2d):
    """A convolution over two dimensions in two factors."""


class LowRankConv3d(_LowRankConv, nn.Conv3d):
    """A convolution over three dimensions in two factors."""


class LowRankLSTM(LowRank, DerivedRecurrent, nn.LSTM):
    """An LSTM in two factors, whose gates share A."""


class LowRankGRU(LowRank, DerivedRecurrent, nn.GRU):
    """A GRU in two factors, whose gates share A."""


KINDS: Mapping[type[Module], type[Module]] = {
    nn.Linear: LowRankLinear,
    nn.Conv1d: LowRankConv1d,
    nn.Conv2d: LowRankConv2d,
    nn.Conv3d: LowRankConv3d,
    nn.LSTM: LowRankLSTM,
    nn.GRU: LowRankGRU,
}
"""The layers that can be in two factors, and these. Layers of subclasses compute something else with their weights."""
_OF_KINDS = {low_rank: plain for plain, low_rank in KINDS.items()}


def full_rank(weight: Tensor) -> int:
    """Return the largest rank of `weight` (m, ...), as a matrix of m rows."""
    return min(weight.shape[0], weight[0].numel()) if weight.numel() else 0


def size_at(weight: Tensor, rank: int) -> int:
    """Return the number of elements of the factors of `weight`: r (m + n)."""
    return rank * (weight.shape[0] + weight[0].numel())


def weights_of(module: Module) -> list[str]:
    """Return the names of the weights of `module` that can be factored, those in two factors already included."""
    plain = _OF_KINDS.get(type(module), type(module))
    if plain not in KINDS or getattr(module, "groups", 1) != 1:
        return []
    names = dict.fromkeys(name.removesuffix(_A).removesuffix(_B) for name in module._parameters)
    return [name for name in names if name.startswith("weight")]


def factored(weight: Tensor, rank: int) -> Pair:
    """Return factors A (r, ...) and B (m, r, ...) of `weight` (m, ...) by its SVD, U S V^T.

    B = U S^(1/2) and A = S^(1/2) V^T, of the `rank` largest singular values. Cost: m n min(m, n) operations, in
    float32, or in float64 if the weight is.
    """
    matrix = weight.detach().flatten(1)
    wide = matrix if matrix.dtype == torch.float64 else matrix.float()
    u, s, v = torch.linalg.svd(wide, full_matrices=False)
    root = s[:rank].sqrt()
    return _shaped(weight, (root[:, None] * v[:rank]).to(weight.dtype), (u[:, :rank] * root).to(weight.dtype))


def empty_factors(weight: Tensor, rank: int) -> Pair:
    """Return factors of `weight` that are zero, as `factored` shapes them."""
    m, n = weight.shape[0], weight[0].numel()
    return _shaped(weight, weight.new_zeros(rank, n).detach(), weight.new_zeros(m, rank).detach())


def _shaped(weight: Tensor, a: Tensor, b: Tensor) -> Pair:
    kernel = [1] * max(0, weight.dim() - 2)
    pair = a.reshape(-1, *weight.shape[1:]), b.reshape(*b.shape, *kernel)
    # `contiguous` keeps odd strides of dimensions of size 1, which differ between workers.
    return pair[0].clone(memory_format=torch.contiguous_format), pair[1].clone(memory_format=torch.contiguous_format)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return B A in the shape of the weight (m, ...)."""
    return (b.flatten(1) @ a.flatten(1)).view(b.shape[0], *a.shape[1:])


def factor(module: Module, name: str, pair: Pair) -> tuple[Parameter, Parameter, Parameter]:
    """Put factors in place of the weight `name` of `module`, in place; return the weight and both new parameters."""
    weight = take_place(module, name, KINDS)
    a, b = (Parameter(x, requires_grad=weight.requires_grad) for x in pair)
    module.register_parameter(f"{name}{_A}", a)
    module.register_parameter(f"{name}{_B}", b)
    return weight, a, b


def step_on_factors(
    optimizer: Optimizer, weight: Parameter, a: Parameter, b: Parameter, momentum: WorkerMomentum | None = None
) -> bool:
    """Let `optimizer` step on the factors in place of `weight`: see `step_on_parts`."""
    carry = partial(carried_to_factors, (a.detach(), b.detach()))
    return step_on_parts(optimizer, weight, {_A: a, _B: b}, carry, momentum)


def carried_to_factors(pair: Pair, mean: Tensor, are_squares: bool) -> Pair:
    """Return B^T M and M A^T of a `mean` M, in the shapes of A and B; of squares with the squares of A and B."""
    a, b = (x.to(mean.dtype).flatten(1) for x in pair)
    if are_squares:
        a, b = a.square(), b.square()
    matrix = mean.flatten(1)
    return (b.t() @ matrix).view(pair[0].shape).contiguous(), (matrix @ a.t()).view(pair[1].shape).contiguous()


def stable_rank(weight: Tensor) -> float:
    """Return the stable rank of `weight`, ||W||_F^2 / s^2, where s is its largest singular value.

    Source: Wang, Agarwal, U-chupala, Tanaka, Xing, Papailiopoulos, "Cuttlefish", MLSys 2023. Cost: 30 products with a
    vector, and as many with the transpose.
    """
    matrix = weight.detach().flatten(1).float()
    x = matrix.t() @ matrix.sum(1)
    x = torch.ones_like(x) if not x.any() else x
    for _ in range(30):
        x = matrix.t() @ (matrix @ (x / x.norm().clamp_min(1e-30)))
    largest = float(x.norm())
    return float(matrix.square().sum()) / largest if largest else 0.0


def assigned(sizes: Mapping[str, float], ranks: Sequence[int]) -> dict[str, int]:
    """Return the rank that computes each task, by its size: the largest first, to the one with the least so far."""
    load, owners = dict.fromkeys(ranks, 0.0), {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = min(ranks, key=lambda rank: (load[rank], rank))
        load[owners[name]] += sizes[name]
    return owners
