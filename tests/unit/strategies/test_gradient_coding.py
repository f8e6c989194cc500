"""Gradient coding: the exact mean of all batches, without those that are late or have died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError
from quorate.data.consumption import consumed
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

EXAMPLES, BATCH, EPOCHS = 48, 4, 2


def train(world: World, before: Callable[[], object] = bool, **settings: Any) -> tuple[list[Tensor], float]:
    """The parameters at the end, and when that was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = quorate.distribute(optimizer, model, **settings)
    x = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1))
    loader = quorate.shard(TensorDataset(x, x.sum(1, keepdim=True)), BATCH, seed=0)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            before()
            optimizer.step()
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()], current.here().wire.clock.now()


def ends(size: int, compute: Callable[[int, int], float] | None = None, **settings: Any) -> list[Any]:
    world = VirtualWorld(size, compute=compute, timeout=60.0)
    return world.run(joined(lambda w: train(w, **settings)))


def check_near(found: list[Any], wanted: list[Tensor]) -> None:
    for one, _ in found:
        assert all(torch.equal(x, y) for x, y in zip(one, found[0][0], strict=True))
        for x, y in zip(one, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


LATE: dict[str, Callable[[int, int], float]] = {
    "nobody": lambda rank, step: 0.01,
    "always the same": lambda rank, step: 0.2 if rank == 1 else 0.01,
    "in turn": lambda rank, step: 0.07 if (rank + step) % 3 == 0 else 0.01,
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize(
    ("code", "size", "s", "alike"),
    [("repetition", 4, 1, 2), ("cyclic", 4, 1, 4), ("cyclic", 5, 2, 5), ("repetition", 5, 1, 2)],
)
def test_the_mean_is_that_of_all_batches_whoever_is_late(code: str, size: int, s: int, alike: int, late: str) -> None:
    """As all-reduce among as many workers as there are batches in a step, at the same step sizes."""
    wanted = ends(alike, strategy="all-reduce")[0][0]
    check_near(ends(size, LATE[late], strategy="gradient-coding", code=code, s=s), wanted)


def test_nobody_waits_for_a_late_worker() -> None:
    def slow(rank: int, step: int) -> float:
        return 0.5 if rank == 1 else 0.01

    coded, waited = (ends(4, slow, strategy=name)[0][1] for name in ("gradient-coding", "all-reduce"))
    assert coded < waited / 2, "its 12 steps of 0.01 s, and a late one at the end of each epoch"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_finish_leaves_equal_replicas_at_every_size(size: int) -> None:
    found = ends(size, strategy="gradient-coding", with_one_worker="algorithm")
    check_near(found, found[0][0])


def test_more_late_ones_than_s_are_waited_for() -> None:
    def slow(rank: int, step: int) -> float:
        return 0.2 if rank in (1, 2) else 0.01

    check_near(ends(4, slow, strategy="gradient-coding", code="cyclic", s=1), ends(4, strategy="all-reduce")[0][0])


def test_examples_are_counted_once() -> None:
    def task(world: World) -> int:
        train(world, strategy="gradient-coding", code="cyclic", s=1)
        return consumed(current.here()).all_examples

    assert sum(VirtualWorld(4).run(joined(task))) == EXAMPLES * EPOCHS


def test_a_batch_is_for_one_step() -> None:
    def task(world: World) -> None:
        model = nn.Linear(1, 1)
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "gradient-coding")
        for _ in quorate.shard(TensorDataset(torch.arange(24.0)), 4):
            pass

    with pytest.raises(ConfigurationError, match=r"call optimizer\.step\(\) once for each batch"):
        VirtualWorld(2).run(joined(task))


def test_nothing_is_fetched_ahead() -> None:
    def task(world: World) -> None:
        model = nn.Linear(1, 1)
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "gradient-coding")
        quorate.shard(TensorDataset(torch.arange(24.0)), 4, num_workers=1)

    with pytest.raises(ConfigurationError, match="none is fetched ahead; leave out num_workers"):
        VirtualWorld(2).run(joined(task))


def with_deaths(size: int, dies: dict[int, int], **settings: Any) -> list[Any]:
    """As `ends`, where ranks die before so many steps; what is left of the others, or their errors."""

    def task(world: World) -> tuple[list[Tensor], float]:
        step = 0

        def count() -> None:
            nonlocal step
            step += 1
            if dies.get(world.rank) == step:
                world.wire.crash()

        return train(world, before=count, **settings)

    return VirtualWorld(size, timeout=30.0).outcomes(joined(task))


@pytest.mark.parametrize(
    ("name", "code", "size"), [("gradient-coding", "cyclic", 4), ("draco", "cyclic", 4), ("draco", "repetition", 5)]
)
def test_the_mean_is_exact_after_a_death(name: str, code: str, size: int) -> None:
    wanted = ends(size if code == "cyclic" else 1, strategy="all-reduce", with_one_worker="algorithm")[0][0]
    found = with_deaths(size, {2: 4}, strategy=name, code=code, s=1, on_death="continue")
    check_near([one.result for rank, one in enumerate(found) if rank != 2], wanted)


def test_after_more_deaths_than_it_bears_it_stops_with_an_error() -> None:
    found = with_deaths(4, {1: 3, 2: 5}, strategy="gradient-coding", code="cyclic", s=1)
    assert all("had too few workers to decode a mean" in str(found[rank].error) for rank in (0, 3)), found
