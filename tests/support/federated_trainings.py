"""Trainings on clients among virtual workers, and the papers' algorithms written out beside them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quorate.core.clients import ClientTerms, Turn
from quorate.data.clients import ClientShare, split
from tests.support.scene import Scene

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


def scene(strategy: str, size: int = 2, *, rounds: int = ROUNDS, **chosen: Any) -> Scene:
    """A training of so many rounds."""
    shard = {"batch_size": BATCH, "partition": PARTITION, "clients": CLIENTS, **chosen.pop("shard", {})}
    fields: dict[str, Any] = {"model": net, "rate": RATE, "world": {"seed": 1}, **chosen}
    return Scene(strategy, size, data=DATA, epochs=rounds, shard=shard, **fields)


def trained(size: int, strategy: str, **settings: Any) -> Tensor:
    """The model at the end, which is the same on all workers."""
    return scene(strategy, size, **settings).end()


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
