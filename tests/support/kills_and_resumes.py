"""A training on real processes that is killed again and again, also while it writes a checkpoint, and goes on."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.checkpoint.saving import saving
from quorate.checkpoint.tensor_file import FileOutput
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.launching import LIMIT
from tests.support.processes import outcomes_real_world, run_real_world

STEPS_A_SESSION = 6
"""Seconds of a session: a survivor that was just connecting to the dead one is ended by its launcher, or by this."""


class Deadly(FileOutput):
    """The process is killed when so many bytes have been written, in the middle of a file or between two."""

    left = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        super().write(view[: Deadly.left])
        if len(view) > Deadly.left:
            os.kill(os.getpid(), signal.SIGKILL)
        Deadly.left -= len(view)


def train(steps: int, strategy: str, root: str, victim: int, at_step: int, at_byte: int, world: World) -> list[float]:
    """Train up to `steps` in all, saving every second step; `victim` is killed in or behind a step of this session."""
    torch.set_num_threads(1)
    place = current.here()
    place.context(CheckpointContext).root = Path(root)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer: Any = quorate.distribute(plain, model, strategy=strategy, on_death="stop")
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 5, 0.9)
    draw = torch.Generator().manual_seed(1)
    loader = quorate.loader(
        TensorDataset(torch.randn(48, 8, generator=draw), torch.randn(48, 1, generator=draw)), 4, share="static"
    )
    torch.manual_seed(world.rank)
    began = quorate.load(scheduler=scheduler) or 0
    if world.rank == victim and at_byte >= 0:
        Deadly.left = at_byte
        saving(place).opened = Deadly
    step = began
    while step < steps:
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            if world.rank == victim and step - began == at_step:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 2 == 0:
                quorate.save(scheduler=scheduler)
            if step == steps:
                break
    optimizer.finish()
    place.leave()
    return [float(x) for p in model.parameters() for x in p.detach().reshape(-1)]


def survive(kills: int, root: Path, *, strategy: str, size: int = 2, seed: int = 0) -> None:
    """Kill a worker so many times, anywhere, and go on each time; raises `AssertionError` where that does not work.

    Under all-reduce the end is held against that of a training that was never killed, bit for bit.
    """
    draw = random.Random(seed)
    steps = STEPS_A_SESSION
    for kill in range(kills):
        at_byte = draw.randrange(60_000) if draw.random() < 0.5 else -1
        at_step = draw.randrange(STEPS_A_SESSION)
        task = partial(train, 10_000, strategy, str(root / "kept"), draw.randrange(size), at_step + 4, at_byte)
        ends = outcomes_real_world(size, task, timeout=LIMIT)
        assert any(end.exit_code == -signal.SIGKILL for end in ends), f"kill {kill} did not happen"
    ends = run_real_world(size, partial(_steps_so_far, str(root / "kept")))
    steps += max(ends)
    after = run_real_world(size, partial(train, steps, strategy, str(root / "kept"), -1, 0, -1))
    assert after[0] == after[-1]
    if strategy == "all-reduce":
        assert after == run_real_world(size, partial(train, steps, strategy, str(root / "none"), -1, 0, -1))


def _steps_so_far(root: str, world: World) -> int:
    from quorate.checkpoint.folder import complete_ones, verify

    found = complete_ones(Path(root))
    return int(verify(found[0])["step"]) if found else 0
