"""Each part of the parameters on two servers: one of them dies, at any moment, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, PeerFailed, Stopped
from quorate.core.servers import OwnServers
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Link, Network
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.sampled import Few
from tests.support.scene import Scene, Trainer

T = TypeVar("T")
SEEDS = range(4)
STEP, BEGIN = 0.01, 1.0
"""Virtual seconds."""
CODED = {"compress": "blocks", "bits": 4, "dense_below": 0}


def outcomes(
    workers: int, servers: int, task: Callable[[World], T], dies: Mapping[int, float], seed: int
) -> list[Outcome[T | None]]:
    """Of workers, then of servers of their own; `dies` says when a rank does, in virtual seconds."""

    def live(wire: Wire) -> T | None:
        place = current.enter(wire, thread_only=True)
        place.context(OwnServers).ranks = range(workers, workers + servers)
        try:
            world, told = quorate.join(), None
            if wire.rank in dies:
                world.wire.spawn(lambda wire: (wire.clock.sleep(BEGIN + dies[wire.rank]), wire.crash()), "death")  # type: ignore[arg-type]
            try:
                told = task(world)
            except Stopped:
                pass
            place.leave()
            return told
        finally:
            current.forget(thread_only=True)

    draw, every = random.Random(seed), range(workers + servers)
    links = {
        (a, b): Link(latency=STEP * (3 if draw.random() < 0.15 else draw.random() / 2))
        for a in every
        for b in every
        if a != b
    }
    return VirtualWorld(
        workers, joiners=servers, seed=seed, timeout=60.0, compute=Constant(0.0), network=Network(links=links)
    ).outcomes(live)


def ends(workers: int, servers: int, task: Callable[[World], T], dies: Mapping[int, float], seed: int = 0) -> list[T]:
    """What the workers that have not died give."""
    found = outcomes(workers, servers, task, dies, seed)
    for one in found:
        assert one.is_crashed == (one.rank in dies), f"seed {seed}, {dies}: {one}"
        if one.error is not None and not one.is_crashed:
            raise one.error
    return [one.result for one in found[:workers] if one.result is not None]


def gradient_of(rank: int, number: int) -> Tensor:
    return torch.randn(40, generator=torch.Generator().manual_seed(1000 * rank + number), dtype=torch.float64)


def numbers() -> nn.Module:
    return nn.ParameterList([torch.zeros(10, dtype=torch.float64) for _ in range(4)])


def wait_for_begin(trainer: Trainer) -> None:
    trainer.clock.sleep(BEGIN - trainer.clock.now())


def summed(world: World, steps: int, name: str = "parameter-server", **settings: Any) -> Tensor:
    """Where plain steps of gradients that are the same wherever the parameters are end."""
    draw = random.Random(world.rank)

    def loss(trainer: Trainer) -> Any:
        x = gradient_of(trainer.rank, trainer.step).split(10)
        return sum((p * part).sum() for p, part in zip(trainer.model, x, strict=True))

    def after(trainer: Trainer) -> None:
        if trainer.step % 3 == 0:
            with world.evaluate():
                assert len(set(world.gather(float(trainer.parameters.sum())))) == 1
                trainer.clock.sleep(STEP * (trainer.rank == 1))

    fields: Any = {"model": numbers, "rate": 1.0, "loss": loss, "after": after, "begin": wait_for_begin}
    scene = Scene(name, pause=lambda *_: STEP * draw.random(), on_death="continue", **fields, **settings)
    return scene.trainer(world).train(steps).finish().parameters


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "bounded": {"mode": "bounded", "max_staleness": 2},
    "overlap": {"mode": "bounded", "overlap": True},
    "async": {"mode": "async"},
    "softsync": {"mode": "async", "softsync": 2},
    "in order": {"mode": "async", "in_order": True},
    "downpour": {"mode": "async", "push_every": 2, "pull_every": 3},
}


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES)
def test_all_gradients_count_once_though_a_server_dies(mode: str, workers: int, few: Few) -> None:
    steps, servers = 12, 3
    wanted = -sum(gradient_of(rank, n) for rank in range(workers) for n in range(steps)) / workers
    for seed in few(SEEDS):
        draw = random.Random(100 * workers + seed)
        dies = {workers + draw.randrange(servers): draw.random() * steps * STEP * 1.5}
        settings = {"servers": "own", "replication": 2, **MODES[mode]}
        for x in ends(workers, servers, lambda world, s=settings: summed(world, steps, **s), dies, seed):
            assert torch.allclose(x, wanted, rtol=0, atol=1e-12), f"seed {seed}: {dies}"


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_as_many_may_die_as_leave_one_with_each_part(mode: str, few: Few) -> None:
    steps, workers = 12, 2
    wanted = -sum(gradient_of(rank, n) for rank in range(workers) for n in range(steps)) / workers
    for seed in few(SEEDS):
        draw = random.Random(seed)
        dies = {rank: draw.random() * steps * STEP * 1.5 for rank in draw.sample(range(2, 5), 2)}
        settings = {"servers": "own", "replication": 3, **MODES[mode]}
        for x in ends(workers, 3, lambda world, s=settings: summed(world, steps, **s), dies, seed):
            assert torch.allclose(x, wanted, rtol=0, atol=1e-12), f"seed {seed}: {dies}"


@pytest.mark.parametrize("mode", ["sync", "bounded", "async", "in order"])
def test_of_a_worker_that_dies_with_its_server_some_first_gradients_count(mode: str, few: Few) -> None:
    steps, workers = 12, 4
    for seed in few(SEEDS):
        draw = random.Random(seed)
        dead = draw.randrange(workers)
        settings = {"replication": 2, **MODES[mode], "step_size": "full"}
        task = lambda world, s=settings: summed(world, steps, **s)  # noqa: E731
        found = ends(workers, 0, task, {dead: draw.random() * steps * STEP * 1.5}, seed)
        assert len(found) == workers - 1
        for x in found:
            assert torch.equal(x, found[0])
        if mode == "async":  # a step is of one gradient
            own = -sum(gradient_of(rank, n) for rank in range(workers) if rank != dead for n in range(steps))
            firsts = [-sum((gradient_of(dead, n) for n in range(count)), torch.zeros(40)) for count in range(steps + 1)]
            off = min(float((found[0] - own - some).abs().max()) for some in firsts)
            assert off < 1e-12, f"seed {seed}"


def trained(world: World, kind: str, **settings: Any) -> tuple[Tensor, ...]:
    """The parameters at an evaluation, which changes them, and at the end."""
    make: Any = partial(torch.optim.Adam, lr=0.01)
    if kind == "momentum":
        make = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    chosen: Any = {"servers": "own", "replication": 2, "on_death": "continue", **settings}
    fields: Any = {"make": make, "seed": "rank", "pause": lambda rank, step: STEP * (1 + (rank + step) % 3)}
    scene = Scene("parameter-server", model=(5, 4, 3, 1), begin=wait_for_begin, settings=chosen, **fields)
    trainer = scene.trainer(world).train(6)
    with world.evaluate(), torch.no_grad():
        seen = trainer.parameters
        for p in trainer.model.parameters():
            p.mul_(0.5)
    return seen, trainer.train(12 + world.rank).finish().parameters


SYNCHRONOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("momentum", {}),
    "adam": ("adam", {"mode": "bounded", "max_staleness": 0}),
    "momentum of workers": ("momentum", {"momentum": "worker"}),
    "by gap": ("momentum", {"staleness_scaling": "gap"}),
    "compensated": ("adam", {"delay_compensation": "adaptive"}),
    "coded": ("momentum", CODED),
    "coded, also what is read": ("momentum", {**CODED, "pulls": "coded"}),
}


@pytest.mark.parametrize("case", SYNCHRONOUS)
def test_synchronous_runs_are_the_same_to_the_bit_though_a_server_dies(case: str, few: Few) -> None:
    kind, settings = SYNCHRONOUS[case]
    workers, servers = 3, 3
    whole = ends(workers, servers, lambda world: trained(world, kind, **{**settings, "replication": 1}), {})
    for seed in few(SEEDS):
        draw = random.Random(seed)
        dies = {workers + draw.randrange(servers): draw.random() * 0.4}
        found = ends(workers, servers, lambda world: trained(world, kind, **settings), dies, seed)
        for one, other in zip(found, whole, strict=True):
            for x, y in zip(one, other, strict=True):
                if "also" in case:  # who has read anew has read whole parameters
                    assert torch.allclose(x, y, atol=0.1), f"seed {seed}: {dies}"
                else:
                    assert torch.equal(x, y), f"seed {seed}: {dies}"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_centre_outlives_a_server(overlap: bool, few: Few) -> None:
    """The sum of all workers and the centre is what their own steps make of it, but for those of the dead."""

    def task(world: World) -> Tensor:
        return summed(world, 12, "easgd", replication=2, sync_every=2, overlap=overlap, alpha=0.3)

    for seed in few(SEEDS):
        draw = random.Random(seed)
        found = ends(4, 0, task, {draw.randrange(4): draw.random() * 0.15}, seed)
        assert len(found) == 3
        for x in found:
            assert torch.equal(x, found[0]) and x.abs().max() > 0.1  # the centre, at the end


def test_with_both_holders_of_a_part_dead_all_stop_in_a_sentence() -> None:
    def task(world: World) -> Tensor:
        return summed(world, 30, servers="own", replication=2)

    found = outcomes(2, 3, task, {3: 0.05, 4: 0.1}, 0)
    for one in found[:2]:
        assert isinstance(one.error, PeerFailed), one
        assert "rank 4" in str(one.error) and "it was a server, and a part of the parameters was on it alone" in str(
            one.error
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replication": 0}, "replication is 0; it must be a whole number"),
        ({"replication": 2}, 'give on_death="continue"'),
        ({"replication": 2, "on_death": "continue", "consistent": False}, "replication=2 needs consistent=True"),
        ({"replication": 2, "on_death": "continue", "servers": 1}, "needs as many servers, and there is 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ends(2, 0, Scene("parameter-server", model=numbers, settings=settings).trainer, {})
