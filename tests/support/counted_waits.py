"""Steps of trainings on the devices that stand in for GPUs: where Quorate waits for the device, and what it copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.buckets import flat
from tests.support.on_gpu import GPU, run_on_gpu
from tests.support.second_device import Event, watching

WIDTH = 16


@dataclass(frozen=True)
class Case:
    """One training, of which the steps behind `before` are counted."""

    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = 2
    gpus: str = "nccl"
    adamw: bool = False
    index: int = 0
    """The device of each worker's model, which no code makes current but Quorate."""
    before: int = 5
    steps: int = 2


@dataclass(frozen=True)
class Counts:
    """For one step in the mean, by line of Quorate; and the strategy's own limit."""

    waits: Counter[str]
    copies: Counter[str]
    strange: list[Event]
    """Uses of a device that was not the thread's current one."""


def model_of(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


def stepped(case: Case, layers: int, world: Any) -> list[Event]:
    """The events of the counted steps on one worker."""
    flat.PART_BYTES_ON_GPU = 4 * WIDTH * WIDTH  # so that each layer has a part of its own
    flat.layout_of.__kwdefaults__["first_part_bytes"] = flat.PART_BYTES_ON_GPU  # type: ignore[index]
    device = torch.device(GPU.type, case.index)
    model = model_of(layers).to(device)
    plain: Any = (
        torch.optim.AdamW(model.parameters(), lr=1e-3)
        if case.adamw
        else torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    )
    optimizer: Any = quorate.distribute(plain, model, case.strategy, **case.settings)  # type: ignore[arg-type]

    def steps(begin: int, count: int) -> None:
        for step in range(begin, begin + count):
            optimizer.zero_grad()
            model(batch(world.rank, step).to(device)).square().mean().backward()
            optimizer.step()

    steps(0, case.before)
    with watching() as events:
        steps(case.before, case.steps)
    optimizer.finish()
    return [event for event in events if event.line]


def counts_of(case: Case, events: Sequence[Event]) -> Counts:
    waits = Counter(f"{e.name} at {e.line}" for e in events if e.kind == "wait")
    copies = Counter(f"{e.name} at {e.line}" for e in events if e.kind == "copy")
    strange = [e for e in events if e.kind in ("kernel", "pin") and e.current != case.index]
    return Counts(waits, copies, strange)


def all_stepped(cases: Sequence[Case], layers: Sequence[int], world: Any) -> list[list[list[Event]]]:
    """By case, and by number of layers."""
    return [[stepped(case, count, world) for count in layers] for case in cases]


def counted(cases: Sequence[Case], layers: Sequence[int] = (2, 6), timeout: float = 100.0) -> list[list[Counts]]:
    """By case, all of which have one size and one way of sums, and by number of layers: the busiest worker's."""
    task = partial(all_stepped, cases, layers)
    workers = run_on_gpu(cases[0].size, task, timeout, gpus=cases[0].gpus)
    by_case = []
    for number, case in enumerate(cases):
        each = [[counts_of(case, events[number][place]) for events in workers] for place in range(len(layers))]
        by_case.append([max(of_all, key=lambda counts: counts.waits.total()) for of_all in each])
    return by_case
