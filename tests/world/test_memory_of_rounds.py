"""Rounds among real processes take their memory in `distribute`: fresh pages cost more than the first steps do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quorate.core.contracts import Wire
from quorate.launch.worker.join import join
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.real import shared
from tests.support.processes import run_real

pytestmark = pytest.mark.skipif(not shared.is_possible(), reason="this system has no memory that processes can share")

NUMEL = 4 * shared.LEAST_BYTES


def made_while_training(wire: Wire) -> list[int]:
    """Sizes of the blocks of memory that are made after `distribute`, in the first steps of two quorums in turn."""
    current.enter(wire)
    world = join()
    models = [nn.Linear(NUMEL, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        distribute(optimizer, model, strategy="quorum", wait_for="all", grace=5.0, compare_every=0)
    made: list[int] = []
    make_pages = shared._make_pages

    def counted(address: int, nbytes: int) -> None:
        made.append(nbytes)
        make_pages(address, nbytes)

    shared._make_pages = counted
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.full((2, NUMEL), 1.0 + world.rank + step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            world.barrier()
    return made


def test_the_first_steps_of_two_quorums_make_no_memory() -> None:
    """One vector may be made where the other worker is slow to let go of its last; each step would make several."""
    assert all(len(made) <= 1 for made in run_real(2, made_while_training))
