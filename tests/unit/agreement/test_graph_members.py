"""Among whom a graph lies after deaths: the same for one exchange on all, however far apart they are."""

from __future__ import annotations

import random

import pytest

from quorate.agreement.graph_members import Members
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.failure import allow_going_on
from quorate.wire.virtual.world import VirtualWorld


def asked(size: int, deaths: dict[int, float], pauses: list[float], seed: int = 0) -> list[list[tuple[int, ...]]]:
    """What every survivor is told for 40 exchanges, which are so many seconds apart; the dead die at these times."""

    def live(wire: Wire) -> list[tuple[int, ...]]:
        wire.tolerate_deaths("gone")
        allow_going_on(wire.board, wire.size, name="x")
        members, found = Members(wire), []
        for number in range(40):
            if wire.clock.now() >= deaths.get(wire.rank, 1e9):
                wire.crash()
            found.append(members.of(number))
            wire.clock.sleep(pauses[wire.rank])
        return found

    return [one.result for one in VirtualWorld(size, seed=seed, timeout=60.0).outcomes(live) if one.result is not None]


@pytest.mark.seeds(4, 12)
def test_they_are_the_same_for_one_exchange_on_all(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    victims = draw.sample(range(size), draw.randint(1, size - 1))
    deaths = {rank: draw.uniform(0.0, 0.3) for rank in victims}
    found = asked(size, deaths, [draw.choice([0.01, 0.013, 0.03]) for _ in range(size)], seed)
    assert len(found) == size - len(victims)
    assert all(one == found[0] for one in found)
    assert found[0][0] == tuple(range(size))
    assert found[0][-1] == tuple(sorted(set(range(size)) - set(victims)))
    assert all(set(late) <= set(early) for early, late in zip(found[0], found[0][1:], strict=False))


def test_nobody_waits_for_one_that_sleeps_and_the_change_is_put_off_until_it_wakes() -> None:
    """Rank 1 sleeps from the beginning on: the others begin all exchanges with the dead in the graph."""
    found = asked(4, {3: 0.02}, [0.01, 5.0, 0.01, 0.01])
    assert found[0] == found[2] == [(0, 1, 2, 3)] * 40
    assert found[1] == [(0, 1, 2, 3)] * 40


def test_all_change_over_one_exchange_after_the_newest_that_anyone_has_begun() -> None:
    """Rank 2 dies at 0.0485 s, which is known 0.05 s later: rank 0 is at exchange 10 then, rank 1 at its fifth."""
    found = asked(3, {2: 0.045}, [0.01, 0.021, 0.0097])
    assert found[0] == found[1]
    assert found[0].index((0, 1)) == 11


def test_one_that_came_later_and_ended_does_not_count() -> None:
    """It was refused; rank 2 dies later, while rank 0 sleeps, which is far ahead of the others."""

    def live(wire: Wire) -> list[tuple[int, ...]]:
        if wire.is_newcomer:
            wire.clock.sleep(0.01)
            raise ConfigurationError("another model")
        wire.tolerate_deaths("gone")
        allow_going_on(wire.board, wire.size, name="x")
        members, found = Members(wire), []
        for number in range(100):
            if wire.rank == 2 and wire.clock.now() >= 0.1:
                wire.crash()
            found.append(members.of(number))
            wire.clock.sleep((1.0 if number == 30 else 0.002) if wire.rank == 0 else 0.03)
        return found

    outcomes = VirtualWorld(4, joiners=1, timeout=60.0).outcomes(live)
    found = [one.result for one in outcomes if one.result is not None]
    assert len(found) == 3 and all(one == found[0] for one in found)
    assert found[0][30] == (0, 1, 2, 3) and found[0][-1] == (0, 1, 3)
