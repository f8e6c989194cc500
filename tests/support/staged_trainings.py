"""Training of models in stages on real workers, and the same in one process or with whole replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.attention import Window
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.staged import Tied, cross_entropy, made, pictures, tokens

SIZES = (8, 5, 8)
"""Of the batches of each step; not all of them have a micro-batch of equal size for each turn."""


def six_tied() -> nn.Module:
    """A language model that has a block for each stage of any schedule on two workers."""
    return Tied(6)


def six_untied() -> nn.Module:
    """The same, whose first and last modules may lie on one worker in shards."""
    return Tied(6, is_tied=False)


class Recomputed(Tied):
    """Whose own code lets the activations of its blocks be calculated again in the backward pass."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        found: Tensor = self.head(self.norm(x))
        return found


class Attending(nn.Module):
    """A block with sparse attention: a position sees its block of two and the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = quorate.sparse_attention(q, k, v, Window(block=2, width=3), is_causal=True)
        found: Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return found


def attending() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 8), *(Attending() for _ in range(4)), nn.Linear(8, 11))


def wide() -> nn.Module:
    """Blocks of two linear layers, which two workers can compute together."""
    torch.manual_seed(1)
    pair = lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))  # noqa: E731
    return nn.Sequential(pair(), nn.LayerNorm(8), pair(), nn.Linear(8, 4), nn.Linear(4, 11))


def of_tokens(step: int, number: int) -> tuple[Tensor, Tensor]:
    ids = tokens(100 * step + number, SIZES[step])
    return ids, ids.roll(1, 1)


def of_pictures(step: int, number: int) -> tuple[Tensor, Tensor]:
    return pictures(100 * step + number, SIZES[step])


def of_rows(step: int, number: int) -> tuple[Tensor, Tensor]:
    x, labels = pictures(100 * step + number, SIZES[step])
    return x.flatten(1)[:, :8], labels


@dataclass(frozen=True)
class Case:
    """One training; `mesh` is what `world.mesh` is given."""

    mesh: dict[str, int]
    build: Callable[[], nn.Module] = six_tied
    batch: Callable[[int, int], tuple[Tensor, Tensor]] = of_tokens
    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    """Of `parallelize`."""
    is_loop: bool = False
    """Whether the model is called, and backward made from its loss."""
    scales: bool = False
    """Whether losses are scaled."""
    clip: float | None = 0.3
    steps: int = 3

    @property
    def shards(self) -> int:
        return self.mesh.get("shards", 1)


@dataclass
class End:
    """What is compared."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]
    lengths: dict[str, float]
    """Norms of the parameters that are in shards."""


def whole(p: Any) -> Tensor:
    """All of a tensor that may be in pieces."""
    found: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return found.detach().clone()


def train(case: Case, world: Any, model: nn.Module, backward: Callable[[Any, int, Any], float]) -> End:
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = quorate.distribute(optimizer, model, case.strategy, **case.settings)
    losses, norms = [], []
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=case.scales)
    for step in range(case.steps):
        optimizer.zero_grad()
        losses.append(backward(model, step, scaler))
        scaler.unscale_(optimizer)
        if case.clip is not None:
            norms.append(float(whole(nn.utils.clip_grad_norm_(model.parameters(), case.clip))))
        scaler.step(optimizer)
        scaler.update()
        if step == 1:
            with world.evaluate(at="replica"), torch.no_grad():
                inputs, targets = case.batch(0, 99)
                losses.append(float(cross_entropy(model(inputs), targets)))
    optimizer.finish()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    lengths = {name: float(p.norm()) for name, p in parameters.items() if hasattr(p, "full_tensor")}
    return End(losses, norms, {name: whole(p) for name, p in parameters.items()}, lengths)


def staged(cases: list[Case], world: Any) -> list[End]:
    """Each of them on one of several workers, whose models begin differently."""
    torch.set_num_threads(1)
    return [_staged(case, world) for case in cases]


def _staged(case: Case, world: Any) -> End:
    model = quorate.parallelize(made(case.build, 3 + world.rank), world.mesh(**case.mesh), **case.chosen)
    tensor, stages = case.mesh.get("tensor", 1), case.mesh.get("stages", 1)
    replica, rest = divmod(world.rank, stages * case.shards * tensor)
    number = replica * case.shards + rest // tensor % case.shards

    def backward(model: Any, step: int, scaler: Any) -> float:
        inputs, targets = case.batch(step, number)
        if case.is_loop:
            loss = cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            return loss.item()
        return quorate.forward_backward(model, inputs, targets, cross_entropy, scaler=scaler).item()

    return train(case, world, model, backward)


def replicated(case: Case) -> list[End]:
    """What whole replicas come to that have the batches of all their shards behind one another; of each replica.

    Losses are those of the first shard's batch.
    """
    if case.shards > 1:
        assert all(size == SIZES[0] for size in SIZES[: case.steps]), "shards count equally, whatever their batches"

    def task(world: Any) -> End:
        def backward(model: Any, step: int, scaler: Any) -> float:
            numbers = range(world.rank * case.shards, (world.rank + 1) * case.shards)
            losses = [cross_entropy(model(x), y) for x, y in (case.batch(step, number) for number in numbers)]
            scaler.scale(torch.stack(losses).mean()).backward()
            return losses[0].item()

        return train(case, world, made(case.build), backward)

    return VirtualWorld(case.mesh.get("replicas", 1)).run(joined(task))


def kept(
    case: Case, optimizer_class: Any, root: Path, begins: int, until: int, world: Any
) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters at step `until` of a training that goes on from the newest checkpoint in `root`, which is to be of
    step `begins`, and saves one at the end; and the sentences that were told.

    Each step has the same batch, however many share it.
    """
    torch.set_num_threads(1)
    told: list[str] = []
    current.here().context(CheckpointContext).root = root
    current.here().context(CheckpointContext).listeners = [told.append]
    model = made(case.build, 3 + world.rank)
    if case.mesh:
        model = quorate.parallelize(model, world.mesh(**case.mesh), **case.chosen)
    plain = optimizer_class(grouped(model), lr=0.05)
    optimizer: Any = quorate.distribute(plain, model, case.strategy, **case.settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    step = quorate.load(scheduler=scheduler) or 0
    assert step == begins
    shares = world.size // (case.mesh.get("stages", 1) * case.mesh.get("tensor", 1))
    each = case.mesh.get("stages", 1) * case.shards * case.mesh.get("tensor", 1)
    replica, rest = divmod(world.rank, each)
    number = replica * case.shards + rest // case.mesh.get("tensor", 1) % case.shards
    while step < until:
        ids = tokens(step, 8)
        inputs, targets = ids.tensor_split(shares)[number], ids.roll(1, 1).tensor_split(shares)[number]
        optimizer.zero_grad()
        quorate.forward_backward(model, inputs, targets, cross_entropy)
        optimizer.step()
        scheduler.step()
        step += 1
    quorate.save(scheduler=scheduler)
    with world.evaluate(at="replica"):
        return {name: whole(p) for name, p in model.named_parameters(remove_duplicate=False)}, told


def kept_alone(case: Case, optimizer_class: Any, until: int) -> dict[str, Tensor]:
    """The same of one process, from the beginning."""
    model = made(case.build)
    optimizer = optimizer_class(grouped(model), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(until):
        ids = tokens(step, 8)
        optimizer.zero_grad()
        cross_entropy(model(ids), ids.roll(1, 1)).backward()
        optimizer.step()
        scheduler.step()
    return {name: whole(p) for name, p in model.named_parameters(remove_duplicate=False)}


def grouped(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices, which are decayed, and the rest: numbers of parameters do not follow the model's order."""
    every = list(model.parameters())
    matrices = {"params": [p for p in every if p.dim() > 1], "weight_decay": 0.01}
    return [matrices, {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0}]
