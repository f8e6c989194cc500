"""Training of a model on pieces of sequences, and the same in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.tensor_trainings import End, train

TOKENS, WIDTH, HEADS, BATCH = 23, 16, 4, 2
PADDING = -100


class Attention(nn.Module):
    """Causal, with half as many heads of keys and values as of queries."""

    def __init__(self, by: Any) -> None:
        super().__init__()
        self.by = by
        self.qkv, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        each = WIDTH // HEADS
        q, k, v = (
            y.unflatten(-1, (-1, each)).transpose(1, 2) for y in self.qkv(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        )
        found = quorate.sequence_attention(q, k, v, is_causal=True, enable_gqa=True, by=self.by)
        return self.out(found.transpose(1, 2).flatten(-2))


class Language(nn.Module):
    """Two blocks, positions, and a parameter of its own."""

    def __init__(self, length: int, by: str = "heads") -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(WIDTH), Attention(by), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)])
            for _ in range(2)
        )
        self.scale, self.head = nn.Parameter(torch.full((WIDTH,), 1.1)), nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = (self.tokens(ids) + self.positions(positions)) * self.scale
        for norm, attention, other, linear in self.blocks:
            x = x + attention(norm(x))
            x = x + F.gelu(linear(other(x)))
        found: Tensor = self.head(x)
        return found


@dataclass(frozen=True)
class Case:
    """One training; sequences of `length` positions, of which some targets are padding."""

    mesh: dict[str, int]
    length: int = 11
    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    clip: float | None = 0.05
    by: str = "heads"


def loss_of(model: Any, length: int, step: int, number: int) -> Tensor:
    """Over what is not padding, most of which is in the first half."""
    draw = torch.Generator().manual_seed(1000 * step + number)
    ids = torch.randint(0, TOKENS, (BATCH, length + 1), generator=draw)
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    targets[0, length // 2 :] = PADDING
    inputs, targets = quorate.sequence_piece(inputs), quorate.sequence_piece(targets)
    logits = model(inputs, quorate.sequence_piece(torch.arange(length), dim=0))
    losses = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PADDING, reduction="none")
    return quorate.sequence_mean(losses, targets != PADDING)


def in_pieces(case: Case, world: Any) -> End:
    """On one of several workers; their models begin differently."""
    torch.set_num_threads(1)
    torch.manual_seed(1 + world.rank)
    model = quorate.parallelize(Language(case.length, case.by).double(), world.mesh(**case.mesh), tensor="sequence")
    return _trained(case, model, [world.rank // case.mesh["tensor"]])


def whole(case: Case) -> list[End]:
    """The same of replicas that hold whole sequences, in one process."""
    replicas, shards = case.mesh.get("replicas", 1), case.mesh.get("shards", 1)

    def one(world: Any) -> End:
        torch.manual_seed(1)
        return _trained(
            case, Language(case.length).double(), list(range(shards * world.rank, shards * (world.rank + 1)))
        )

    return VirtualWorld(replicas).run(joined(one))


def _trained(case: Case, model: Any, batches: list[int]) -> End:
    optimizer = quorate.distribute(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, case.strategy, **case.settings
    )

    def backward(step: int) -> float:
        losses = [loss_of(model, case.length, step, number) for number in batches]
        torch.stack(losses).mean().backward()
        return losses[0].item()

    class _Clip:
        clip = case.clip

    return train(_Clip, model, optimizer, backward)  # type: ignore[arg-type]
