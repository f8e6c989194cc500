"""Servers that are ranks of their own: they train nothing, and workers train as with servers that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, PeerFailed, Stopped
from quorate.core.servers import OwnServers
from quorate.launch.worker.world import World
from quorate.servers.setting_out import WaitingWorkers
from quorate.wire import current
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.scene import Scene, Trainer, net, virtual

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


def begun(world: World, kind: str = "momentum", **settings: Any) -> Trainer:
    """The worker or server, before its first step; the models begin differently."""
    model = lambda: net(5, 4, 3, 1, seed=world.rank)  # noqa: E731
    chosen = {"strategy": "parameter-server", "servers": "own", "model": model, **settings}
    return Scene(make=OPTIMIZERS[kind], **{k: v for k, v in chosen.items() if v is not None}).trainer(world)


def trained(world: World, kind: str, **settings: Any) -> tuple[Tensor, ...]:
    """The parameters at an evaluation, which changes them, and at the end."""
    trainer = begun(world, kind, in_order=True, **settings).train(5)
    with world.evaluate(), torch.no_grad():
        seen = trainer.parameters
        for p in trainer.model.parameters():
            p.mul_(0.5)
    return seen, trainer.train(9 + world.rank).finish().parameters


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_workers_train_to_the_bit_as_with_servers_that_are_workers(
    mode: str, workers: int, servers: int, kind: str
) -> None:
    among = virtual(workers, lambda world: trained(world, kind, mode=mode, servers="all"))
    beside = run(workers, servers, lambda world: trained(world, kind, mode=mode))
    for one, other in zip(beside, among, strict=True):
        assert all(map(torch.equal, one, other))


def test_workers_are_all_that_a_world_has_and_a_server_is_alone_before_it_serves() -> None:
    seen: dict[int, Any] = {}

    def task(world: World) -> list[int]:
        seen[world.rank] = (world.size, world.mean(float(world.rank)), world.gather(world.rank))
        world.barrier()
        trainer = begun(world).train(3)
        with world.evaluate():
            there = world.gather(world.rank)
        trainer.finish()
        return there

    assert run(2, 2, task) == [[0, 1]] * 2
    assert seen[0] == seen[1] == (2, 0.5, [0, 1])
    assert seen[2] == (2, 2.0, [2]) and seen[3] == (2, 3.0, [3])


def test_a_server_leaves_when_the_training_has_ended_whatever_the_script_does_then() -> None:
    def task(world: World) -> None:
        begun(world).train(1).finish()
        world.wire.clock.sleep(50.0)

    found = outcomes(2, 1, task)
    assert found[0].error is None and found[2].error is None
    assert found[2].seconds < 10.0 < found[0].seconds


def test_servers_nobody_has_started_are_refused() -> None:
    error = first_error(2, 0, begun)
    assert isinstance(error, ConfigurationError) and "give quorate run --servers" in str(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"servers": "all"}, "servers is 'all'"),
        ({"servers": 1}, "servers is 1"),
        ({"strategy": "all-reduce", "servers": None}, "all-reduce has no servers"),
    ],
)
def test_servers_that_nobody_uses_are_refused_everywhere(settings: dict[str, Any], words: str) -> None:
    for rank in (0, 2):
        error = first_error(2, 1, lambda world: begun(world, "adam", **settings), rank)
        assert isinstance(error, ConfigurationError) and words in str(error)


def test_a_script_that_distributes_several_optimizers_is_refused() -> None:
    error = first_error(2, 1, lambda world: [begun(world) for _ in range(2)])
    assert isinstance(error, ConfigurationError) and "one distributed optimizer" in str(error)


def test_a_server_whose_script_never_trains_says_so() -> None:
    error = first_error(1, 1, lambda world: None, 1)
    assert isinstance(error, ConfigurationError) and "never called quorate.distribute" in str(error)


def test_a_server_with_another_model_says_so() -> None:
    model = lambda world: net(5, 4, 1) if world.rank < 2 else net(5, 1)  # noqa: E731
    found = outcomes(2, 1, lambda world: begun(world, model=lambda: model(world)).train(1))
    assert isinstance(found[2].error, ConfigurationError)
    assert "this server has built a different model" in str(found[2].error)
    assert isinstance(found[0].error, PeerFailed) and "a different model" in str(found[0].error)


def test_parameters_that_freeze_end_the_training_in_a_sentence() -> None:
    def task(world: World) -> None:
        trainer = begun(world).train(3)
        trainer.model[0].weight.requires_grad_(False)
        trainer.train(6).finish()

    error = outcomes(2, 1, task)[2].error
    assert isinstance(error, ConfigurationError) and 'with servers="all" each has one' in str(error)


@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_the_death_of_a_server_ends_the_training_and_is_told(on_death: str) -> None:
    def task(world: World) -> None:
        if world.rank == 3:
            world.wire.spawn(lambda wire: (wire.clock.sleep(0.2), wire.crash()), "death")  # type: ignore[arg-type]
        begun(world, pause=0.01, on_death=on_death).train(1000)

    for one in outcomes(2, 2, task)[:3]:
        assert isinstance(one.error, PeerFailed), one.error
        assert "rank 3 (host virtual) was a server, and crashed" in str(one.error)


def test_workers_that_die_leave_the_others_and_the_servers_going() -> None:
    def task(world: World) -> tuple[Tensor, list[int]]:
        trainer = begun(world, "adam", dies={0: 7}, pause=0.01, on_death="continue", mode="async").train(20)
        with world.evaluate():
            there = world.gather(world.rank)
            if world.rank == 1:
                world.wire.crash()
        return trainer.train(25).finish().parameters, there

    found = outcomes(4, 2, task)
    assert [one.is_crashed for one in found] == [True, True, False, False, False, False]
    assert [one.error for one in found[2:]] == [None] * 4
    two, three = found[2].result, found[3].result
    assert two is not None and three is not None
    assert two[1] == three[1] == [1, 2, 3] and torch.equal(two[0], three[0])


def test_where_a_death_ends_the_training_servers_end_with_it() -> None:
    fields: dict[str, Any] = {"dies": {1: 7}, "pause": 0.01, "on_death": "stop", "mode": "async"}
    found = outcomes(2, 1, lambda world: begun(world, **fields).train(100).finish())
    for one in found[0], found[2]:
        assert isinstance(one.error, PeerFailed), one
        assert one.error.ranks == (1,)


def test_servers_go_on_as_long_as_there_is_a_worker() -> None:
    """The last one takes longer than servers take to look who is left."""

    fields: dict[str, Any] = {"dies": {0: 5}, "pause": 0.3, "on_death": "continue", "mode": "async"}
    found = outcomes(2, 2, lambda world: begun(world, **fields).train(15).finish())
    assert [one.is_crashed for one in found] == [True, False, False, False]
    assert [one.error for one in found[1:]] == [None] * 3
    assert all(15 * 0.3 < one.seconds < 15 * 0.3 + 1.0 for one in found[2:])


def test_a_server_whose_own_worker_has_ended_goes_on_from_the_parameters_of_the_others() -> None:
    def task(world: World) -> Tensor:
        trainer = begun(world, servers="all").train(3)
        if world.rank != 2:
            with world.evaluate(), torch.no_grad():
                for p in trainer.model.parameters():
                    p.fill_(3.0)
            for group in trainer.optimizer.param_groups:
                group["lr"] = 0.0
            trainer.train(6)
        return trainer.finish().parameters

    for x in virtual(3, task):
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
