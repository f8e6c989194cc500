"""What a virtual worker draws does not depend on who ran before it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch

from quorate.core.contracts import Wire
from quorate.wire.virtual import Sampled, VirtualWorld
from quorate.wire.virtual.generators import Generators

Drawn = list[tuple[float, ...]]


def draw(wire: Wire) -> Drawn:
    """One legacy normal at a time: numpy makes them in pairs and keeps the second."""
    drawn = []
    for turn in range(7):
        drawn.append((torch.rand(1).item(), np.random.normal(), np.random.rand(), random.gauss(0, 1), random.random()))
        if turn % 3 == wire.rank % 3:
            wire.clock.compute(1.0)
    for _ in range(3):
        wire.clock.compute(1.0)
        drawn.append((np.random.normal(),))
    return drawn


def seeded(wire: Wire) -> Drawn:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    return draw(wire)


def schedules(task: Callable[[Wire], Drawn]) -> list[list[Drawn]]:
    worlds = [
        VirtualWorld(4, generators=True, compute=compute) for compute in (None, Sampled("uniform", 0.0, 1.0, seed=1))
    ]
    return [world.run(task) for world in worlds]


def test_draws_do_not_depend_on_the_schedule() -> None:
    first, second = schedules(draw)
    assert first == second
    assert len({str(drawn) for drawn in first}) == 1, "all ranks draw alike until an optimizer is distributed"


def test_draws_follow_the_seeds_of_the_script() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    alone: Drawn = [
        (torch.rand(1).item(), np.random.normal(), np.random.rand(), random.gauss(0, 1), random.random())
        for _ in range(7)
    ] + [(np.random.normal(),) for _ in range(3)]
    for results in schedules(seeded):
        assert results == [alone] * 4


def test_the_world_puts_the_process_generators_back() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]
    VirtualWorld(3, generators=True).run(draw)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]
    assert before[2] == random.getstate()


def test_another_kind_of_numpy_generator_is_kept_too() -> None:
    generators, saved = Generators(1), Generators(2)
    saved.save()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))  # type: ignore[attr-defined]
        expected = np.random.RandomState(np.random.PCG64(3)).normal(size=3).tolist()
        drawn = [np.random.normal()]
        generators.save()
        saved.load()
        generators.load()
        drawn += [np.random.normal() for _ in range(2)]
        assert drawn == expected
    finally:
        saved.load()
