"""One training of a model with sparse tables: by rows over the shards of replicas, and on one worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.local_tensor import local
from quorate.wire import current
from tests.support.sharded_trainings import Training, whole

ROWS, WIDTH, STEPS = 25, 3, 4


class Tables(nn.Module):
    """Two layers with one table, which is summed by bags as well, another table, and dense layers with a block."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH, sparse=sparse, padding_idx=2)
        self.bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse)
        self.bags.weight = self.words.weight
        self.others = nn.EmbeddingBag(7, WIDTH, mode="mean", sparse=sparse)
        self.blocks = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, indices: Tensor, weights: Tensor) -> Tensor:
        words = self.words(indices[:, 0]) + self.bags(indices, per_sample_weights=weights)
        return self.blocks(words + self.others(input=indices % 7)).square()


@dataclass(frozen=True)
class Case(Training):
    """One training."""

    precision: str | None = None
    numbers: str = "float64"
    is_along_tensor: bool = False
    empty: int = -1
    """The rank whose batches have no examples."""


def loss_of(model: Any, case: Case, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    indices = torch.randint(0, ROWS, (0 if rank == case.empty else 4, 3), generator=generator)
    weights = torch.rand(indices.shape, generator=generator, dtype=torch.float64)
    loss: Tensor = model(indices, weights.to(getattr(torch, case.numbers))).sum() / 4
    return loss / case.accumulates


def made(case: Case, model: Any) -> list[torch.optim.Optimizer]:
    """The optimizers of the tables and of the dense layers; one for both where it takes both."""
    tables, dense = [model.words.weight, model.others.weight], list(model.blocks.parameters())
    if case.optimizer == "sgd":
        return [torch.optim.SGD([*tables, *dense], lr=0.05)]
    if case.optimizer == "adagrad":
        return [torch.optim.Adagrad([*tables, *dense], lr=0.05)]
    return [torch.optim.SparseAdam(tables, lr=0.02), torch.optim.AdamW(dense, lr=0.02)]


def begun(case: Case, world: Any, *, shards: bool, seed: int) -> tuple[Any, list[Any]]:
    torch.manual_seed(seed)
    model: Any = Tables().to(getattr(torch, case.numbers))
    if shards:
        mesh = world.mesh(tensor=world.size) if case.is_along_tensor else world.mesh(replicas=case.replicas)
        plan: Any = {"blocks.0": "columns", "blocks.2": "rows"} if case.is_along_tensor else None
        model = quorate.parallelize(model, mesh, zero=case.zero, precision=case.precision, tensor=plan)
        assert max(len(local(p)) for p in model.parameters()) < ROWS
    optimizers: list[Any] = made(case, model)
    if world is not None:
        optimizers = [quorate.distribute(x, model, case.strategy, **case.settings) for x in optimizers]
    return model, optimizers


def step_once(case: Case, model: Any, optimizers: list[Any], step: int, ranks: range) -> None:
    """One step on the batches of `ranks`."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    for part in range(case.accumulates):
        number = step * case.accumulates + part
        losses = [loss_of(model, case, number, rank) / len(ranks) for rank in ranks]
        loss: Any = sum(losses)
        is_last = part == case.accumulates - 1
        contexts = [] if is_last else [x.accumulate() for x in optimizers if hasattr(x, "accumulate")]
        for context in contexts:
            context.__enter__()
        loss.backward()
        for context in contexts:
            context.__exit__(None, None, None)
    for optimizer in optimizers:
        optimizer.step()


def spread(case: Case, world: Any) -> list[Tensor]:
    """The parameters after a training on real workers, whose models begin differently."""
    model, optimizers = begun(case, world, shards=True, seed=1 + world.rank)
    share = 0 if case.is_along_tensor else world.rank
    for step in range(STEPS):
        step_once(case, model, optimizers, step, range(share, share + 1))
    for table in (model.words.weight, model.others.weight):
        assert local(table.grad).layout == torch.sparse_coo
    for optimizer in optimizers:
        optimizer.finish()
    return [whole(p) for p in model.parameters()]


def alone(case: Case, batches: int, until: int = STEPS) -> list[Tensor]:
    """The parameters after a training of one process on the joined batches."""
    model, optimizers = begun(case, None, shards=False, seed=1)
    for step in range(until):
        step_once(case, model, optimizers, step, range(batches))
    return [p.detach() for p in model.parameters()]


def kept(case: Case, root: Path, until: int, batches: int, world: Any) -> list[Tensor]:
    """The parameters at step `until` of a training that goes on from the newest checkpoint in `root`, and saves one."""
    current.here().context(CheckpointContext).root = root
    model, optimizers = begun(case, world, shards=world.size > 1, seed=1 + world.rank)
    workers, rank = (1, 0) if case.is_along_tensor else (world.size, world.rank)
    each = batches // workers
    for step in range(quorate.load() or 0, until):
        step_once(case, model, optimizers, step, range(each * rank, each * (rank + 1)))
    quorate.save()
    with world.evaluate(at="replica"), quorate.whole(model):
        return [p.detach().clone() for p in model.parameters()]
