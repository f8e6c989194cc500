"""Layers in two factors, W = B A, in place of layers with the weight W, and an optimizer that steps on the factors.

A layer stays the same object, with the same name, and has parameters `weight_a` (A) and `weight_b` (B). Its `weight` is
their product. W is a matrix of m rows: the outputs of a linear layer or a convolution (whose other dimensions are n
columns), or the gates of a recurrent layer. A has r rows and B has r columns; r is the rank.

The gradient of A is B^T G, and that of B is G A^T, where G is the gradient of W. So the mean of gradients M that an
optimizer keeps becomes M_A = B^T M and M_B = M A^T. A mean of squares V becomes V_A = (B * B)^T V and
V_B = V (A * A)^T, as if the numbers of a gradient were uncorrelated.

Sources: Wang, Agarwal, Papailiopoulos, "Pufferfish", MLSys 2021 (the layers and the SVD); the means are ours.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.rnn import RNNBase
from torch.optim import Optimizer

from quorate.core.errors import CheckpointError
from quorate.replica.optimizer_state import inner_optimizers
from quorate.replica.worker_momentum import WorkerMomentum

_MEANS = frozenset({"momentum_buffer", "exp_avg", "grad_avg"})
"""State of torch's optimizers that is linear in gradients."""
_SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
"""State of torch's optimizers that is linear in squares of gradients."""
_A, _B = "_a", "_b"

Pair = tuple[Tensor, Tensor]
"""The factors A and B of a weight."""


class LowRank(Module):
    """The base of layers in two factors; a weight is the product of its factors."""

    def __getattr__(self, name: str) -> Any:
        parameters = self.__dict__.get("_parameters", {})
        if f"{name}{_A}" in parameters:
            return product(parameters[f"{name}{_A}"], parameters[f"{name}{_B}"])
        return super().__getattr__(name)


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


class _LowRankRecurrent(LowRank, RNNBase):
    """A recurrent layer in two factors, whose gates share A; each forward pass forms its weights, B A, once."""

    def _weights_have_changed(self) -> bool:
        return False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._flat_weights = [getattr(self, name) for name in self._flat_weights_names]
        try:
            return super().forward(*inputs, **named)
        finally:
            self._flat_weights = []  # they belong to the graph of this pass: copies of the module have none


class LowRankLSTM(_LowRankRecurrent, nn.LSTM):
    """An LSTM in two factors."""


class LowRankGRU(_LowRankRecurrent, nn.GRU):
    """A GRU in two factors."""


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


def is_factored(module: Module, name: str) -> bool:
    """Return whether the weight `name` of `module` is in two factors."""
    return f"{name}{_A}" in module._parameters


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
    """Return uninitialized factors of `weight`, as `factored` shapes them."""
    m, n = weight.shape[0], weight[0].numel()
    return _shaped(weight, weight.new_empty(rank, n).detach(), weight.new_empty(m, rank).detach())


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
    weight: Parameter = module._parameters[name]  # type: ignore[assignment]
    if type(module) in KINDS:
        module.__class__ = KINDS[type(module)]
    if isinstance(module, RNNBase):
        module._flat_weights = []
    del module._parameters[name]
    a, b = (Parameter(x, requires_grad=weight.requires_grad) for x in pair)
    module.register_parameter(f"{name}{_A}", a)
    module.register_parameter(f"{name}{_B}", b)
    return weight, a, b


def step_on_factors(
    optimizer: Optimizer, weight: Parameter, a: Parameter, b: Parameter, momentum: WorkerMomentum | None = None
) -> bool:
    """Let `optimizer` step on the factors in place of `weight`, with the means that it keeps of gradients.

    `momentum` is that of a worker's own gradients, kept beside the optimizer. Returns False if the state of `weight` is
    of an unknown kind: that of the factors begins again.
    """
    lists: set[int] = set()
    is_known = True
    for inside in (optimizer, *inner_optimizers(optimizer).values()):
        for group in inside.param_groups:
            if id(group["params"]) not in lists:
                lists.add(id(group["params"]))
                _replace(group, weight, a, b)
        state = inside.state.pop(weight, None)
        if state:
            pair = factored_state(state, weight, (a.detach(), b.detach()))
            is_known &= pair is not None
            if pair is not None:
                inside.state[a], inside.state[b] = pair
    own = None if momentum is None else momentum.own.pop(weight, None)
    if own is not None:
        assert momentum is not None
        m_a, m_b = _of_means(own.m, (a.detach(), b.detach()))
        for p, m in ((a, m_a), (b, m_b)):
            momentum.own[p] = copy.copy(own)
            momentum.own[p].m = m
    return is_known


def _replace(group: dict[str, Any], weight: Parameter, a: Parameter, b: Parameter) -> None:
    place = next((place for place, p in enumerate(group["params"]) if p is weight), None)
    if place is None:
        return
    group["params"][place : place + 1] = [a, b]
    if names := group.get("param_names"):
        names[place : place + 1] = [f"{names[place]}{_A}", f"{names[place]}{_B}"]


def factored_state(
    state: Mapping[str, Any], weight: Tensor, pair: Pair
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the state of both factors from that of `weight`; None if it has tensors of an unknown kind."""
    state_a, state_b = dict[str, Any](), dict[str, Any]()
    for key, x in state.items():
        if not isinstance(x, Tensor) or x.shape != weight.shape:
            if isinstance(x, Tensor) and x.numel() > 1:
                return None
            state_a[key], state_b[key] = copy.deepcopy(x), copy.deepcopy(x)
        elif key in _MEANS:
            state_a[key], state_b[key] = _of_means(x, pair)
        elif key in _SQUARES:
            a, b = (factor.to(x.dtype).square() for factor in pair)
            state_a[key], state_b[key] = _of_means(x, (a, b))
        else:
            return None
    return state_a, state_b


def _of_means(x: Tensor, pair: Pair) -> Pair:
    """Return B^T X and X A^T, in the shapes of the factors A and B."""
    a, b = (factor.to(x.dtype).flatten(1) for factor in pair)
    matrix = x.flatten(1)
    return (b.t() @ matrix).view(pair[0].shape).contiguous(), (matrix @ a.t()).view(pair[1].shape).contiguous()


def ranks_in(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the rank of each weight in two factors among the tensors of a model's state, by its name."""
    ranks = {}
    for key, b in state.items():
        a = state.get(f"{key.removesuffix(_B)}{_A}")
        is_pair = key.endswith(_B) and isinstance(a, Tensor) and isinstance(b, Tensor) and min(a.dim(), b.dim()) > 1
        name = key.removesuffix(_B)
        if is_pair and name.rpartition(".")[2].startswith("weight") and state[f"{name}{_A}"].shape[0] == b.shape[1]:
            ranks[name] = int(b.shape[1])
    return ranks


def give_ranks(model: Module, ranks: Mapping[str, int], optimizers: Collection[Optimizer] = ()) -> list[str]:
    """Put uninitialized factors of these `ranks` in place of weights, by name; return the names of those replaced.

    Names of weights that are in two factors already, or that `model` lacks, are left out: loading the state then says
    what differs. Raises `CheckpointError` for a layer that cannot be in two factors.
    """
    replaced = []
    for name, rank in ranks.items():
        path, _, key = name.rpartition(".")
        module = dict(model.named_modules()).get(path)
        if module is None or key not in module._parameters or is_factored(module, key):
            continue
        if key not in weights_of(module) or not 0 < rank <= full_rank(module._parameters[key]):
            raise CheckpointError(f"{name} is in two factors of rank {rank} in the file, and cannot be in the model")
        pair = empty_factors(module._parameters[key], rank)
        weight, a, b = factor(module, key, pair)
        for optimizer in optimizers:
            step_on_factors(optimizer, weight, a, b)
        replaced.append(name)
    return replaced


def singular_share(weight: Tensor) -> float:
    """Return the stable rank of `weight`, ||W||_F^2 / s^2, where s is its largest singular value.

    Source: Wang, Agarwal, U-chupala, Tanaka, Xing, Papailiopoulos, "Cuttlefish", MLSys 2023. Cost: 30 products with a
    vector.
    """
    matrix = weight.detach().flatten(1).float()
    x = matrix.t() @ matrix.sum(1)
    x = torch.ones_like(x) if not x.any() else x
    for _ in range(30):
        x = matrix.t() @ (matrix @ (x / x.norm().clamp_min(1e-30)))
    largest = float(x.norm())
    return float(matrix.square().sum()) / largest if largest else 0.0


def shares_of(sizes: Mapping[str, float], ranks: Sequence[int]) -> dict[str, int]:
    """Return the rank that computes each task, by its size: the largest first, to the one with the least so far."""
    load, owners = dict.fromkeys(ranks, 0.0), {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = min(ranks, key=lambda rank: (load[rank], rank))
        load[owners[name]] += sizes[name]
    return owners
