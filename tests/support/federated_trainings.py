"""Trainings on clients among virtual workers, and the papers' algorithms written out beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.core.clients import ClientTerms, Turn
from quorate.data.clients import ClientShare
from quorate.data.partitions import split
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

CLIENTS, BATCH, RATE, ROUNDS = 9, 4, 0.05, 5
PARTITION = "dirichlet:alpha=0.5,spread=0.6"
draw = torch.Generator().manual_seed(4)
X = torch.randn(90, 4, generator=draw)
LABELS = (X.sum(1) > 0).long() + 2 * (X[:, 0] > 0).long()
Y = X @ torch.randn(4, 2, generator=draw) + LABELS.unsqueeze(1)
DATA = TensorDataset(X, Y, LABELS)


def net() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    numbers = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers))
    return model


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(
    world: World,
    strategy: str,
    *,
    rounds: int = ROUNDS,
    clients: int = CLIENTS,
    before: Callable[[World, int, int], None] = lambda world, number, step: None,
    **settings: Any,
) -> Tensor:
    """The model at the end of a training of so many rounds; `before` is called in each step."""
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer: Any = quorate.distribute(plain, model, strategy, with_one_worker="algorithm", **settings)
    loader = quorate.shard(DATA, BATCH, partition=PARTITION, clients=clients)
    for number in range(rounds):
        for step, (x, y, _) in enumerate(loader):
            before(world, number, step)
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    optimizer.finish()
    return flat(model)


def trained(size: int, strategy: str, **settings: Any) -> Tensor:
    """As `train`, of all workers of a virtual world, which end alike."""
    ends = VirtualWorld(size, seed=1).run(joined(lambda world: train(world, strategy, **settings)))
    assert all(torch.equal(end, ends[0]) for end in ends)
    return ends[0]


def rounds_of(rounds: int = ROUNDS, **terms: Any) -> list[list[tuple[Turn, list[int]]]]:
    """Every round's batches of all clients, each with whose it is."""
    chosen = ClientTerms(**{"sampled": 0.1, "epochs": 1, **terms})
    share = ClientShare(
        rank=0,
        size=1,
        examples_of=tuple(split(PARTITION, LABELS, len(DATA), CLIENTS, seed=0)),
        batch_size=BATCH,
        terms=lambda: chosen,
    )
    found = []
    for number in range(rounds):
        mine = share.of_epoch(number)
        lists = [indices for _, indices in mine.batches(torch.arange(len(DATA)), BATCH)]
        turns = [mine.turn(place) for place in range(len(lists))]
        found.append([(turn, indices) for turn, indices in zip(turns, lists, strict=True) if turn is not None])
    return found


def gradient(w: Tensor, indices: list[int]) -> Tensor:
    """Of the loss at `w`, flat."""
    model = net()
    nn.utils.vector_to_parameters(w, model.parameters())
    (model(X[indices]) - Y[indices]).square().mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
