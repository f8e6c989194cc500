"""Steps of trainings on the devices that stand in for GPUs: where Quorate waits for the device, and what it copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import quorate
from quorate.buckets import flat
from tests.support.counted_networks import NETWORKS, WIDTH, loss_of
from tests.support.on_gpu import GPU, run_on_gpu
from tests.support.second_device import Event, watching


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
    network: str = "layers"
    mesh: dict[str, int] = field(default_factory=dict)
    """By which the model is divided, as `world.mesh` takes it; none: each worker has all of it."""
    divided: dict[str, Any] = field(default_factory=dict)
    """Arguments of `quorate.parallelize`."""
    are_alike: bool = False
    """Whether all workers have the same batches."""
    clips: bool = False
    by_schedule: bool = False
    """Whether `quorate.forward_backward` makes the passes."""


@dataclass(frozen=True)
class Counts:
    """For one step in the mean, by line of Quorate; and the strategy's own limit."""

    waits: Counter[str]
    copies: Counter[str]
    strange: list[Event]
    """Uses of a device that was not the thread's current one."""


def model_of(case: Case, layers: int, device: torch.device, world: Any) -> Any:
    torch.manual_seed(0)
    model = NETWORKS[case.network].make(layers).to(device)
    if not case.mesh:
        return model
    divided = dict(case.divided)
    if divided.get("tensor") == "tables":
        divided["tensor"] = {f"tables.{layer}": "embedding" for layer in range(layers)}
    return quorate.parallelize(model, world.mesh(**case.mesh), **divided)


def stepped(case: Case, layers: int, world: Any, *, part_bytes: int | None) -> list[Event]:
    """The events of the counted steps on one worker. `part_bytes`: the size of parts, by default the usual one."""
    usual = flat.PART_BYTES_ON_GPU, flat.layout_of.__kwdefaults__["first_part_bytes"]  # type: ignore[index]
    sizes = usual if part_bytes is None else (part_bytes, part_bytes)
    flat.PART_BYTES_ON_GPU, flat.layout_of.__kwdefaults__["first_part_bytes"] = sizes  # type: ignore[index]
    try:
        return counted_steps(case, layers, world)
    finally:
        flat.PART_BYTES_ON_GPU, flat.layout_of.__kwdefaults__["first_part_bytes"] = usual  # type: ignore[index]


def counted_steps(case: Case, layers: int, world: Any) -> list[Event]:
    device = torch.device(GPU.type, case.index)
    model, network = model_of(case, layers, device, world), NETWORKS[case.network]
    plain: Any = (
        torch.optim.AdamW(model.parameters(), lr=1e-3)
        if case.adamw
        else torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    )
    optimizer: Any = quorate.distribute(plain, model, case.strategy, **case.settings)  # type: ignore[arg-type]
    rank = 0 if case.are_alike else world.rank // case.mesh.get("tensor", 1) // case.mesh.get("stages", 1)

    def steps(begin: int, count: int) -> None:
        for step in range(begin, begin + count):
            seed = 1000 * step + rank
            optimizer.zero_grad()
            if case.by_schedule:
                x = network.inputs(seed, *network.shape).to(device)
                quorate.forward_backward(model, x, x, lambda y, target: (y - target).square().mean())
            else:
                loss_of(network, model, seed, device).backward()
            if case.clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
    strange += [e for e in events if e.name == "synchronize" and e.index != case.index]
    return Counts(waits, copies, strange)


def all_stepped(
    cases: Sequence[Case], layers: Sequence[int], part_bytes: int | None, world: Any
) -> list[list[list[Event]]]:
    """By case, and by number of layers."""
    return [[stepped(case, count, world, part_bytes=part_bytes) for count in layers] for case in cases]


def counted(
    cases: Sequence[Case],
    layers: Sequence[int] = (2, 6),
    timeout: float = 100.0,
    *,
    part_bytes: int | None = 4 * WIDTH * WIDTH,
) -> list[list[Counts]]:
    """By case, all of which have one size and one way of sums, and by number of layers: the busiest worker's.

    By default each layer has a part of its own.
    """
    task = partial(all_stepped, cases, layers, part_bytes)
    workers = run_on_gpu(cases[0].size, task, timeout, gpus=cases[0].gpus)
    by_case = []
    for number, case in enumerate(cases):
        each = [[counts_of(case, events[number][place]) for events in workers] for place in range(len(layers))]
        by_case.append([max(of_all, key=lambda counts: counts.waits.total()) for of_all in each])
    return by_case
