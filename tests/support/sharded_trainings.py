"""One training loop, of a model in shards on real workers, and of whole replicas in the virtual world.

A replica of S workers with a batch each makes the steps of one worker with the S batches behind one another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.layered import LAYERED, layered

TOKENS, WIDTH, LENGTH, BATCH, STEPS = 31, 64, 6, 3, 6


class Block(nn.Module):
    """49,000 numbers; of its layers none has a size that all numbers of workers divide."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.norm, self.recomputes = nn.LayerNorm(WIDTH), recomputes
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 343), nn.Linear(343, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.mix(self.norm(x))).cumsum(1) / LENGTH
        return y + self.down(F.gelu(self.up(y)))


class Model(nn.Module):
    """A few blocks on tokens."""

    def __init__(self, *, tied: bool = False, recomputes: bool = False, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputes=recomputes) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS, bias=not tied)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Lars(torch.optim.Optimizer):
    """A stranger's optimizer: the rate of each tensor goes by the length of the whole."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("velocity", torch.zeros_like(p))
                    kept.mul_(0.9).add_(p.grad / (1e-6 + torch.linalg.vector_norm(p.grad)))
                    p.sub_(kept, alpha=group["lr"] * 0.1 * (1e-3 + float(torch.linalg.vector_norm(p))))


@dataclass(frozen=True)
class Training:
    """What every training in shards has."""

    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"
    zero: int = 3
    replicas: int = 1
    accumulates: int = 1


@dataclass(frozen=True)
class Case(Training):
    """One training."""

    clip: float | None = None
    frozen: bool = False
    thaws: bool = False
    tied: bool = False
    recomputes: bool = False
    schedule: bool = False
    edits: bool = False
    scaler: bool = False
    precision: str | None = None
    offload: str | None = None
    delayed: bool = False
    correct: Literal["delay"] | None = None
    numbers: str = "float32"
    evaluates: bool = False
    looks: bool = False
    """Another forward pass before each step, with a graph that nobody goes back through."""


def batch(step: int, ranks: range) -> tuple[Tensor, Tensor]:
    """The batches of these workers behind one another."""
    found = []
    for rank in ranks:
        draw = torch.Generator().manual_seed(1000 * step + rank)
        found.append(torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=draw))
    whole = torch.cat(found)
    return whole[:, :-1], whole[:, 1:]


def made(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    parameters: Any = model.parameters()
    if case.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-4)
    if case.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=3e-3, weight_decay=1e-3)
    if case.optimizer == "rprop":
        return torch.optim.Rprop(parameters, lr=1e-4)
    if case.optimizer == "muon":
        return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=3e-3)
    if case.optimizer == "lars":
        return Lars(parameters, lr=0.1)
    if case.optimizer in LAYERED:
        return layered(case.optimizer, model.named_parameters())
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def whole(p: Any) -> Tensor:
    """All of a tensor that may be in pieces."""
    found: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return found.detach().clone()


def train(case: Case, world: Any, each: int, *, shards: bool, seed: int = 1) -> tuple[list[Tensor], list[float]]:
    """The parameters at the end, and the losses of each step; `each` workers' batches on each."""
    model: Any = Model(tied=case.tied, recomputes=case.recomputes, seed=seed).to(getattr(torch, case.numbers))
    if case.frozen:
        model.tokens.weight.requires_grad_(False)
        model.blocks[0].up.weight.requires_grad_(False)
    if shards:
        mesh = world.mesh(replicas=case.replicas)
        chosen: Any = {"precision": case.precision, "offload": case.offload, "delayed_update": case.delayed}
        chosen["correct"] = case.correct
        model = quorate.parallelize(model, mesh, zero=case.zero, **chosen)
    optimizer: Any = quorate.distribute(made(case, model), model, case.strategy, **case.settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) if case.schedule else None
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if case.scaler else None
    losses = []

    def backward(number: int) -> None:
        ids, targets = batch(number, range(each * world.rank, each * (world.rank + 1)))
        logits = model(ids).float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / case.accumulates
        losses.append(loss.item())
        (loss if scaler is None else scaler.scale(loss)).backward()

    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(case.accumulates - 1):
            with optimizer.accumulate():
                backward(step * case.accumulates + part)
        backward((step + 1) * case.accumulates - 1)
        if case.looks:
            losses.append(float(model(batch(98, range(1))[0]).float().mean().detach()))
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None:
            scheduler.step()
        if case.edits and step == 2:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9)
        if case.thaws and step == 3:
            model.blocks[0].up.weight.requires_grad_(True)
        if case.evaluates and step % 2:
            with world.evaluate(), torch.no_grad():
                losses.append(float(model(batch(99, range(1))[0]).float().mean()))
    optimizer.finish()
    return [whole(p) for p in model.parameters()], losses


def sharded(case: Case, world: Any) -> tuple[list[Tensor], list[float]]:
    """On one of R x S real workers. Their models begin differently."""
    return train(case, world, 1, shards=True, seed=1 + world.rank)


def replicated(case: Case, size: int) -> tuple[list[Tensor], list[float]]:
    """What R workers come to that hold the whole model each."""
    each = size // case.replicas
    ends = VirtualWorld(case.replicas).run(joined(lambda world: train(case, world, each, shards=False)))
    return ends[0][0], ends[0][1]


def kept(
    case: Case, root: Path, until: int, world: Any, *, shards: bool = True, first_asks: int | None = None
) -> tuple[list[Tensor], list[str]]:
    """The parameters at step `until` of a training that goes on from the newest checkpoint in `root`, saves one at the
    end, and has the same batch in each step, however many share it; and the sentences that were told.

    With `first_asks` only rank 0 saves, before that step.
    """
    told: list[str] = []
    current.here().context(CheckpointContext).root = root
    current.here().context(CheckpointContext).listeners = [told.append]
    model: Any = Model(seed=1 + world.rank).to(getattr(torch, case.numbers))
    if shards:
        chosen: Any = {"zero": case.zero, "offload": case.offload, "delayed_update": case.delayed}
        chosen["correct"] = case.correct
        model = quorate.parallelize(model, world.mesh(replicas=case.replicas), **chosen)
    plain = made(case, model)
    optimizer: Any = quorate.distribute(plain, model, case.strategy, **case.settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    step = quorate.load(scheduler=scheduler) or 0
    while step < until:
        if step == first_asks and world.is_first:
            quorate.save(scheduler=scheduler)
        ids, targets = (x.tensor_split(world.size)[world.rank] for x in batch(step, range(4)))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        scheduler.step()
        step += 1
    if first_asks is None:
        quorate.save(scheduler=scheduler)
    with world.evaluate(at="replica"):
        return [whole(p) for p in model.parameters()], told


def kept_for_others(
    case: Case, source: Path | None, until: int, to: list[Path], world: Any, *, shards: bool = True
) -> list[Tensor]:
    """As `kept`, beginning with what is in `source`, and written to each of `to` at the end."""
    model: Any = Model(seed=1 if source is None else 1 + world.rank)
    if shards:
        model = quorate.parallelize(model, world.mesh(replicas=case.replicas), zero=case.zero)
    optimizer: Any = quorate.distribute(made(case, model), model, case.strategy, **case.settings)
    begin = 0 if source is None else quorate.load(source)
    assert begin is not None
    for step in range(begin, until):
        ids, targets = (x.tensor_split(world.size)[world.rank] for x in batch(step, range(4)))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    for path in to:
        quorate.save(path)
    with world.evaluate(at="replica"):
        return [whole(p) for p in model.parameters()]


def kept_by_torch(case: Case, folder: Path, until: int, world: Any, *, shards: bool = True) -> list[Tensor]:
    """As `kept`, by `torch.distributed.checkpoint` from and to `folder`, of what `state_dict()` of model and optimizer
    say."""
    model: Any = Model(seed=1 + world.rank)
    if shards:
        model = quorate.parallelize(model, world.mesh(replicas=case.replicas), zero=case.zero)
    optimizer: Any = quorate.distribute(made(case, model), model, case.strategy, **case.settings)
    begin = 0
    if folder.exists():  # else torch's first step with zeros, for states to be there, would count
        mine, its = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": mine, "optimizer": its, "step": 0}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begin = state["step"]
    for step in range(begin, until):
        ids, targets = (x.tensor_split(world.size)[world.rank] for x in batch(step, range(4)))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    mine, its = get_state_dict(model, optimizer)
    dcp.save({"model": mine, "optimizer": its, "step": until}, checkpoint_id=folder)
    with world.evaluate(at="replica"):
        return [whole(p) for p in model.parameters()]


def kept_alone(case: Case, until: int, *, gamma: float = 0.9) -> list[Tensor]:
    """The same of one process, from the beginning; the rate is `gamma` times the last one in each step."""
    model = Model(seed=1)
    optimizer = made(case, model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    for step in range(until):
        ids, targets = batch(step, range(4))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        scheduler.step()
    return [p.detach() for p in model.parameters()]
