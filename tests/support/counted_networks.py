"""Small models of many layers, for each way to divide a model, of which steps on a device are counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import quorate

WIDTH, LENGTH, BATCH = 16, 8, 8


class Words(nn.Module):
    """One table for each layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(2 * WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.head(torch.stack([table(ids) for table in self.tables]).sum(0))
        return x


class Tied(nn.Module):
    """A table, and a head with the same numbers behind all layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(2 * WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Attention(nn.Module):
    """Of positions that several workers may have."""

    def __init__(self, by: Any) -> None:
        super().__init__()
        self.by, self.qkv, self.out = by, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = quorate.sequence_attention(q, k, v, is_causal=True, by=self.by)
        return x + self.out(y.transpose(1, 2).flatten(-2))


class Routed(nn.Module):
    """Experts, beside what they are given."""

    def __init__(self, capacity_factor: float | None = 1.25) -> None:
        super().__init__()
        make = partial(nn.Linear, WIDTH, WIDTH)
        self.experts = quorate.Experts(make, 4, WIDTH, capacity_factor=capacity_factor)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.experts(x)
        return y


def repeated(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda layers: nn.Sequential(*(make() for _ in range(layers)))


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


def filters() -> nn.Module:
    there, back = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
    return nn.Sequential(there, nn.BatchNorm2d(8), nn.ReLU(), back)


def branches() -> nn.Module:
    return quorate.branches([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)], "sum")


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(seed: int, *shape: int) -> Tensor:
    return torch.randint(0, 2 * WIDTH, shape, generator=torch.Generator().manual_seed(seed))


class Network(NamedTuple):
    """A model of so many layers, and the shape of its inputs, which are numbers or ids."""

    make: Callable[[int], nn.Module]
    shape: tuple[int, ...] = (BATCH, WIDTH)
    inputs: Callable[..., Tensor] = numbers
    is_sequence: bool = False
    """Whether workers have pieces of the inputs along their second dimension."""


ROWS = (BATCH, LENGTH, WIDTH)
NETWORKS: dict[str, Network] = {
    "layers": Network(repeated(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))),
    "pairs": Network(repeated(pair)),
    "words": Network(Words, (BATCH, LENGTH), ids),
    "tied": Network(Tied, (BATCH, LENGTH), ids),
    "filters": Network(repeated(filters), (BATCH, 4, 5, 5)),
    "branches": Network(repeated(branches)),
    "experts": Network(repeated(Routed), ROWS),
    "experts without limits": Network(repeated(partial(Routed, None)), ROWS),
    "heads": Network(repeated(lambda: Attention("heads")), ROWS, is_sequence=True),
    "ring": Network(repeated(lambda: Attention("ring")), ROWS, is_sequence=True),
}


def loss_of(network: Network, model: Any, seed: int, device: torch.device) -> Tensor:
    x = network.inputs(seed, *network.shape).to(device)
    if network.is_sequence:
        return quorate.sequence_mean(model(quorate.sequence_piece(x)).square().mean(-1))
    loss: Tensor = model(x).square().mean()
    return loss
