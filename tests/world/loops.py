"""Training loops as users write them, each written once and run under torch DDP and under `distribute`.

A loop gets a `Rig`: how to call the model, the optimizer, and how to accumulate. What differs between the two ways of
training is only how the rig is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import quorate
from quorate.launch.worker.world import World

STEPS = 6
WIDTH = 12


@dataclass
class Rig:
    """One way of training one model."""

    world: World
    model: nn.Module
    call: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    accumulate: Callable[[], contextlib.AbstractContextManager[None]]


Loop = Callable[[Rig], None]


@dataclass
class Case:
    """A model, an optimizer and a loop. `exact`: bit for bit at two workers."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loop: Loop
    scheduler_before: Callable[[torch.optim.Optimizer], object] | None = None
    unused: bool = False
    kept: dict[str, object] = field(default_factory=dict)


class Net(nn.Module):
    """A small network with an optional checkpointed middle and an optional branch."""

    def __init__(self, *, checkpointing: str = "none", branch: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(WIDTH, 24), nn.Sequential(nn.Linear(24, 24), nn.Tanh())
        self.last = nn.Linear(24, WIDTH if tied else 4)
        self.branch = nn.Linear(24, 24) if branch else None
        if tied:
            self.last = nn.Linear(24, WIDTH, bias=False)
            self.last.weight = nn.Parameter(self.first.weight.detach().T.contiguous())
            self.again = nn.Linear(24, 24)
            self.again.weight = self.middle[0].weight
        self.tied, self.checkpointing = tied, checkpointing

    def forward(self, x: Tensor, *, branch: bool = True) -> Tensor:
        x = torch.relu(self.first(x))
        if self.checkpointing == "none":
            x = self.middle(x)
        else:
            x = checkpoint(self.middle, x, use_reentrant=self.checkpointing == "reentrant")
        if self.tied:
            x = torch.tanh(self.again(x))
        if self.branch is not None and branch:
            x = x + self.branch(x)
        return self.last(x)


class Mixed(nn.Module):
    """bf16 parameters beside fp32 ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 24).to(torch.bfloat16), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.to(torch.bfloat16))).float())


def frozen() -> nn.Module:
    net = Net(branch=True)
    net.middle.requires_grad_(False)
    return net


def batch(rig: Rig, step: int, rows: int = 8) -> Tensor:
    """The batch of this worker at `step`: another one on every worker and step."""
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rig.world.rank))


def plain(rig: Rig) -> None:
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        rig.call(batch(rig, step)).square().mean().backward()
        rig.optimizer.step()


def clipped(rig: Rig) -> None:
    for step in range(STEPS):
        rig.optimizer.zero_grad(set_to_none=step % 2 == 0)
        rig.call(batch(rig, step)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(rig.model.parameters(), 0.5)
        rig.optimizer.step()


def scheduled(rig: Rig) -> None:
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(rig.optimizer, max_lr=0.05, total_steps=STEPS + 1)
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        rig.call(batch(rig, step)).square().mean().backward()
        rig.optimizer.step()
        one_cycle.step()


def scaled(rig: Rig) -> None:
    """A GradScaler; the last rank's loss is infinite at step 2, rank 0's at step 4. Clipped every other step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=2)
    for step in range(STEPS + 2):
        rig.optimizer.zero_grad()
        loss = rig.call(batch(rig, step)).square().mean()
        if (step, rig.world.rank) in ((2, rig.world.size - 1), (4, 0)):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(rig.optimizer)
            torch.nn.utils.clip_grad_norm_(rig.model.parameters(), 1.0)
        scaler.step(rig.optimizer)
        scaler.update()


def accumulated(rig: Rig) -> None:
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        with rig.accumulate():
            for part in range(2):
                rig.call(batch(rig, 10 * step + part)).square().mean().backward()
        rig.call(batch(rig, 10 * step + 2)).square().mean().backward()
        rig.optimizer.step()


def twice(rig: Rig) -> None:
    """Two backwards without accumulate: each agrees on `.grad` as it then stands."""
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        for part in range(2):
            rig.call(batch(rig, 10 * step + part)).square().mean().backward()
        rig.optimizer.step()


def unused(rig: Rig) -> None:
    """The branch is used by everyone, by nobody, and by one rank alone, in turn."""
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        use = (True, False, rig.world.rank == 0)[step % 3]
        rig.call(batch(rig, step), branch=use).square().mean().backward()
        rig.optimizer.step()


def reloaded(rig: Rig) -> None:
    plain(rig)
    saved = {key: value.clone() for key, value in rig.model.state_dict().items()}
    state = rig.optimizer.state_dict()
    clipped(rig)
    rig.model.load_state_dict(saved)
    rig.optimizer.load_state_dict(state)
    plain(rig)


def loaded(rig: Rig) -> None:
    """A DataLoader of the user's own with torch's DistributedSampler, which asks the default process group."""
    data = TensorDataset(torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(5)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            rig.optimizer.zero_grad()
            rig.call(x).square().mean().backward()
            rig.optimizer.step()


def everything(rig: Rig) -> None:
    """AdamW, OneCycleLR, GradScaler with an inf on one rank, clipping, accumulation and an unused branch at once."""
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(rig.optimizer, max_lr=0.02, total_steps=2 * STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=3)
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        with rig.accumulate():
            scaler.scale(rig.call(batch(rig, 7 * step), branch=step % 2 == 0).square().mean()).backward()
        loss = rig.call(batch(rig, 7 * step + 1), branch=False).square().mean()
        if step == 3 and rig.world.rank == rig.world.size - 1:
            loss = loss * float("nan")
        scaler.scale(loss).backward()
        scaler.unscale_(rig.optimizer)
        torch.nn.utils.clip_grad_norm_(rig.model.parameters(), 0.7)
        scaler.step(rig.optimizer)
        scaler.update()
        one_cycle.step()


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.SGD(
        [{"params": parameters[1::2], "lr": 0.1}, {"params": parameters[::2]}], lr=0.02, momentum=0.5
    )


def checkpointed(kind: str) -> Callable[[], nn.Module]:
    return lambda: Net(checkpointing=kind)


def step_decay(optimizer: torch.optim.Optimizer) -> object:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1)


def scheduled_before(rig: Rig) -> None:
    """The scheduler was built before `distribute` (or DDP); it is found on the rig's optimizer."""
    scheduler = rig.optimizer.__dict__["scheduler_of_the_user"]
    for step in range(STEPS):
        rig.optimizer.zero_grad()
        rig.call(batch(rig, step)).square().mean().backward()
        rig.optimizer.step()
        scheduler.step()


CASES: dict[str, Case] = {
    **{
        f"{loop.__name__} {optimizer.__name__}": Case(Net, optimizer, loop)
        for optimizer in (nesterov, adamw, fused_adamw)
        for loop in (plain, clipped, scheduled, scaled, accumulated, reloaded)
    },
    **{
        f"checkpointing {kind} {loop.__name__}": Case(checkpointed(kind), adamw, loop)
        for kind in ("none", "non-reentrant", "reentrant")
        for loop in (plain, scaled)
    },
    "scheduler built before": Case(Net, nesterov, scheduled_before, scheduler_before=step_decay),
    "scheduler built before, fused": Case(Net, fused_adamw, scheduled_before, scheduler_before=step_decay),
    "two backwards": Case(Net, adamw, twice),
    "unused module": Case(lambda: Net(branch=True), adamw, unused, unused=True),
    "unused module nesterov": Case(lambda: Net(branch=True), nesterov, unused, unused=True),
    "tied parameters": Case(lambda: Net(tied=True), nesterov, plain),
    "frozen parameters": Case(frozen, adamw, clipped),
    "bf16 beside fp32": Case(Mixed, adamw, plain),
    "bf16 beside fp32 nesterov": Case(Mixed, nesterov, clipped),
    "two parameter groups": Case(Net, two_groups, plain),
    "own DataLoader": Case(Net, adamw, loaded),
    "everything": Case(lambda: Net(branch=True), adamw, everything, unused=True),
    "everything fused": Case(lambda: Net(branch=True), fused_adamw, everything, unused=True),
}

UNFUSED = [name for name in CASES if "fused" not in name]
"""Whether an optimizer is fused matters to its step alone, not to how workers agree: seen at two workers only."""


def train(case: Case, world: World, *, ours: bool) -> list[Tensor]:
    """Run a case one of the two ways; returns the parameters at the end."""
    torch.manual_seed(7 + 31 * world.rank)  # both ways copy rank 0's numbers to all
    model = case.model()
    optimizer = case.optimizer(model)
    if case.scheduler_before is not None:
        optimizer.__dict__["scheduler_of_the_user"] = case.scheduler_before(optimizer)
    if ours:
        optimizer = quorate.distribute(optimizer, model)
        rig = Rig(world, model, model, optimizer, optimizer.accumulate)  # type: ignore[attr-defined]
    else:
        ddp = DistributedDataParallel(model, find_unused_parameters=case.unused)
        rig = Rig(world, model, ddp, optimizer, ddp.no_sync)
    case.loop(rig)
    if ours:
        optimizer.finish()  # type: ignore[attr-defined]
    return [p.detach().clone() for p in model.parameters()]
