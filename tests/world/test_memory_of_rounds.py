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


def sizes_made() -> list[int]:
    """A list to which this process adds the size of every block of memory that it makes from now on."""
    made: list[int] = []
    make_pages = shared._make_pages

    def counted(address: int, nbytes: int) -> None:
        made.append(nbytes)
        make_pages(address, nbytes)

    shared._make_pages = counted
    return made


def made_while_training(wire: Wire) -> list[int]:
    """Sizes of the blocks of memory that are made after `distribute`, in the first steps of two quorums in turn."""
    current.enter(wire)
    world = join()
    models = [nn.Linear(NUMEL, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        distribute(optimizer, model, strategy="quorum", wait_for="all", grace=5.0, compare_every=0)
    made = sizes_made()
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


def addresses_of_sums(wire: Wire) -> list[int]:
    """Addresses of the vectors of this worker, each made for its sum."""
    addresses = []
    for number in range(4):
        x = wire.empty(NUMEL * wire.size, torch.float32)
        addresses.append(x.data_ptr())
        total = wire.all_reduce(x.fill_(wire.rank + number)).wait()
        assert torch.equal(total, torch.full_like(total, 1.0 + 2 * number))
        del x, total
    return addresses


def test_the_vectors_of_sums_lie_in_the_same_memory() -> None:
    """The other worker still has the place of the last one."""
    assert all(len(set(addresses)) == 1 for addresses in run_real(2, addresses_of_sums))


def pages_of_exchanges(wire: Wire) -> int:
    """The number of blocks that local steps fill in four means of parameters."""
    current.enter(wire)
    world = join()
    model = nn.Linear(8 * NUMEL, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    distribute(optimizer, model, strategy="local-sgd", sync_every=2, compare_every=0)
    made = sizes_made()
    for step in range(8):
        model(torch.full((2, 8 * NUMEL), 1.0 + world.rank + step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(nbytes >= 32 * NUMEL for nbytes in made)


def test_means_of_parameters_take_the_memory_of_two_vectors() -> None:
    """A vector, and the copy of it that a death would need."""
    assert max(run_real(2, pages_of_exchanges)) <= 2


def other_looks_at_vectors(wire: Wire) -> bool:
    """Whether what the other worker looked at stays as it was while the next vector is made."""
    first = wire.empty(NUMEL * wire.size, torch.float32)
    for _ in range(2):
        wire.all_to_all_single(first).wait()  # by messages, until the order of operations is known
    x = wire.empty(NUMEL * wire.size, torch.float32).fill_(7.0)
    piece = wire.all_to_all_single(x).wait()[1 - wire.rank]
    wire.barrier().wait()
    del x
    wire.empty(NUMEL * wire.size, torch.float32).fill_(9.0)
    wire.barrier().wait()
    return bool((piece == 7.0).all())


def test_a_vector_that_others_look_at_is_not_written_over() -> None:
    assert run_real(2, other_looks_at_vectors) == [True, True]
