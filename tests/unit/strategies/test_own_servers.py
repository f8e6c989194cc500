"""Servers that are ranks of their own: they train nothing, and workers train as with servers that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, PeerFailed, Stopped
from quorate.launch.worker.world import World
from quorate.servers.own import OwnServers
from quorate.servers.setting_out import WaitingWorkers
from quorate.wire import current
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.joined import joined

T = TypeVar("T")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def outcomes(workers: int, servers: int, task: Callable[[World], T]) -> list[Outcome[T | None]]:
    """Of workers, then of servers, of which one that has served and left gives None."""

    def live(wire: Wire) -> T | None:
        place = current.enter(wire, thread_only=True)
        place.context(OwnServers).ranks = range(workers, workers + servers)
        try:
            told, status = None, None
            try:
                told = task(quorate.join())
            except Stopped as end:
                status = end.code
            assert status == (0 if place.context(OwnServers).has_served else None)
            place.leave()
            return told
        finally:
            current.forget(thread_only=True)

    return VirtualWorld(workers, joiners=servers, timeout=60.0).outcomes(live)


def run(workers: int, servers: int, task: Callable[[World], T]) -> list[T]:
    """What the workers give; all have ended well, and servers at `distribute`."""
    found = outcomes(workers, servers, task)
    for one in found:
        if one.error is not None:
            raise one.error
    assert [one.result for one in found[workers:]] == [None] * servers
    return [one.result for one in found[:workers]]  # type: ignore[misc]


def first_error(workers: int, servers: int, task: Callable[[World], Any], rank: int = 0) -> BaseException:
    error = outcomes(workers, servers, task)[rank].error
    assert error is not None
    return error


def made(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 1))


def distributed(model: nn.Module, kind: str = "momentum", **settings: Any) -> Any:
    plain = OPTIMIZERS[kind](model.parameters())
    return quorate.distribute(plain, model, "parameter-server", with_one_worker="algorithm", **settings)


def step(model: nn.Module, optimizer: Any, rank: int, number: int) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    x = torch.randn(6, 5, generator=generator)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def trained(world: World, kind: str, **settings: Any) -> tuple[Tensor, ...]:
    """The parameters at an evaluation, which changes them, and at the end."""
    model = made(world.rank)
    optimizer = distributed(model, kind, in_order=True, **settings)
    for number in range(5):
        step(model, optimizer, world.rank, number)
    with world.evaluate(), torch.no_grad():
        seen = whole(model)
        for p in model.parameters():
            p.mul_(0.5)
    for number in range(4 + world.rank):
        step(model, optimizer, world.rank, 5 + number)
    optimizer.finish()
    return seen, whole(model)


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_workers_train_to_the_bit_as_with_servers_that_are_workers(
    mode: str, workers: int, servers: int, kind: str
) -> None:
    among = VirtualWorld(workers, timeout=60.0).run(joined(lambda world: trained(world, kind, mode=mode)))
    for one, other in zip(
        run(workers, servers, lambda world: trained(world, kind, mode=mode, servers="own")), among, strict=True
    ):
        for x, y in zip(one, other, strict=True):
            assert torch.equal(x, y)


def test_workers_are_all_that_a_world_has_and_a_server_is_alone_before_it_serves() -> None:
    seen: dict[int, Any] = {}

    def task(world: World) -> list[int]:
        seen[world.rank] = (world.size, world.mean(float(world.rank)), world.gather(world.rank))
        world.barrier()
        model = made(world.rank)
        optimizer = distributed(model, servers="own")
        for number in range(3):
            step(model, optimizer, world.rank, number)
        with world.evaluate():
            there = world.gather(world.rank)
        optimizer.finish()
        return there

    assert run(2, 2, task) == [[0, 1]] * 2
    assert seen[0] == seen[1] == (2, 0.5, [0, 1])
    assert seen[2] == (2, 2.0, [2]) and seen[3] == (2, 3.0, [3])


def test_a_server_leaves_when_the_training_has_ended_whatever_the_script_does_then() -> None:
    def task(world: World) -> None:
        model = made(world.rank)
        optimizer = distributed(model, servers="own")
        step(model, optimizer, world.rank, 0)
        optimizer.finish()
        world.wire.clock.sleep(50.0)

    found = outcomes(2, 1, task)
    assert found[0].error is None and found[2].error is None
    assert found[2].seconds < 10.0 < found[0].seconds


def test_servers_nobody_has_started_are_refused() -> None:
    error = first_error(2, 0, lambda world: distributed(made(0), servers="own"))
    assert isinstance(error, ConfigurationError) and "give quorate run --servers" in str(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "servers is 'all'"),
        ({"servers": 1}, "servers is 1"),
        ({"strategy": "all-reduce"}, "all-reduce has no servers"),
    ],
)
def test_servers_that_nobody_uses_are_refused_everywhere(settings: dict[str, Any], words: str) -> None:
    def task(world: World) -> None:
        model = made(0)
        quorate.distribute(
            OPTIMIZERS["adam"](model.parameters()), model, **({"strategy": "parameter-server"} | settings)
        )

    for rank in (0, 2):
        error = first_error(2, 1, task, rank)
        assert isinstance(error, ConfigurationError) and words in str(error)


def test_a_script_that_distributes_several_optimizers_is_refused() -> None:
    def task(world: World) -> None:
        for _ in range(2):
            distributed(made(0), servers="own")

    error = first_error(2, 1, task)
    assert isinstance(error, ConfigurationError) and "one distributed optimizer" in str(error)


def test_a_server_whose_script_never_trains_says_so() -> None:
    error = first_error(1, 1, lambda world: None, 1)
    assert isinstance(error, ConfigurationError) and "never called quorate.distribute" in str(error)


def test_a_server_with_another_model_says_so() -> None:
    def task(world: World) -> None:
        model = made(0) if world.rank < 2 else nn.Linear(5, 1)
        optimizer = distributed(model, servers="own")
        step(model, optimizer, world.rank, 0)

    found = outcomes(2, 1, task)
    assert isinstance(found[2].error, ConfigurationError)
    assert "this server has built a different model" in str(found[2].error)
    assert isinstance(found[0].error, PeerFailed) and "a different model" in str(found[0].error)


def test_parameters_that_freeze_end_the_training_in_a_sentence() -> None:
    def task(world: World) -> None:
        model = made(0)
        optimizer = distributed(model, servers="own")
        for number in range(6):
            if number == 3:
                model[0].weight.requires_grad_(False)
            step(model, optimizer, world.rank, number)
        optimizer.finish()

    error = outcomes(2, 1, task)[2].error
    assert isinstance(error, ConfigurationError) and 'with servers="all" each has one' in str(error)


@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_the_death_of_a_server_ends_the_training_and_is_told(on_death: str) -> None:
    def task(world: World) -> None:
        if world.rank == 3:
            world.wire.spawn(lambda wire: (wire.clock.sleep(0.2), wire.crash()), "death")  # type: ignore[arg-type]
        model = made(world.rank)
        optimizer = distributed(model, servers="own", on_death=on_death)
        for number in range(1000):
            world.wire.clock.sleep(0.01)
            step(model, optimizer, world.rank, number)

    for one in outcomes(2, 2, task)[:3]:
        assert isinstance(one.error, PeerFailed), one.error
        assert "rank 3 (host virtual) was a server, and crashed" in str(one.error)


def test_workers_that_die_leave_the_others_and_the_servers_going() -> None:
    def task(world: World) -> tuple[Tensor, list[int]]:
        model = made(world.rank)
        optimizer = distributed(model, "adam", servers="own", on_death="continue", mode="async")
        for number in range(20):
            if world.rank == 0 and number == 7:
                world.wire.crash()
            world.wire.clock.sleep(0.01)
            step(model, optimizer, world.rank, number)
        with world.evaluate():
            there = world.gather(world.rank)
            if world.rank == 1:
                world.wire.crash()
        for number in range(5):
            step(model, optimizer, world.rank, number)
        optimizer.finish()
        return whole(model), there

    found = outcomes(4, 2, task)
    assert [one.is_crashed for one in found] == [True, True, False, False, False, False]
    assert [one.error for one in found[2:]] == [None] * 4
    two, three = found[2].result, found[3].result
    assert two is not None and three is not None
    assert two[1] == three[1] == [1, 2, 3] and torch.equal(two[0], three[0])


def test_where_a_death_ends_the_training_servers_end_with_it() -> None:
    def task(world: World) -> None:
        model = made(world.rank)
        optimizer = distributed(model, servers="own", on_death="stop", mode="async")
        for number in range(100):
            if world.rank == 1 and number == 7:
                world.wire.crash()
            world.wire.clock.sleep(0.01)
            step(model, optimizer, world.rank, number)
        optimizer.finish()

    found = outcomes(2, 1, task)
    for one in found[0], found[2]:
        assert isinstance(one.error, PeerFailed), one
        assert one.error.ranks == (1,)


def test_servers_go_on_as_long_as_there_is_a_worker() -> None:
    """The last one takes longer than servers take to look who is left."""

    def task(world: World) -> Tensor:
        model = made(world.rank)
        optimizer = distributed(model, servers="own", on_death="continue", mode="async")
        for number in range(15):
            if (world.rank, number) == (0, 5):
                world.wire.crash()
            world.wire.clock.sleep(0.3)
            step(model, optimizer, world.rank, number)
        optimizer.finish()
        return whole(model)

    found = outcomes(2, 2, task)
    assert [one.is_crashed for one in found] == [True, False, False, False]
    assert [one.error for one in found[1:]] == [None] * 3
    assert all(15 * 0.3 < one.seconds < 15 * 0.3 + 1.0 for one in found[2:])


def test_a_server_whose_own_worker_has_ended_goes_on_from_the_parameters_of_the_others() -> None:
    def task(world: World) -> Tensor:
        model = made(world.rank)
        optimizer = distributed(model)
        for number in range(3):
            step(model, optimizer, world.rank, number)
        if world.rank != 2:
            with world.evaluate(), torch.no_grad():
                for p in model.parameters():
                    p.fill_(3.0)
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            for number in range(3):
                step(model, optimizer, world.rank, number)
        optimizer.finish()
        return whole(model)

    for x in VirtualWorld(3, timeout=60.0).run(joined(task)):
        assert torch.equal(x, torch.full_like(x, 3.0))


def test_one_worker_at_a_time_is_asked_for_a_part_and_the_next_where_it_has_died() -> None:
    told: list[tuple[int, bool]] = []
    waiting = WaitingWorkers(lambda rank, is_wanted: told.append((rank, is_wanted)))
    for rank in (2, 0, 1):
        waiting.announced(rank, is_known=False)
    assert told == [(2, True)]
    waiting.died({0})
    assert told == [(2, True)]
    waiting.announced(3, is_known=False)
    waiting.died({0, 2})
    assert told == [(2, True), (1, True)]
    waiting.received()
    waiting.announced(4, is_known=True)
    assert told[2:] == [(3, False), (4, False)]
    waiting.announced(1, is_known=False)
    assert told[4:] == [(1, True)]
