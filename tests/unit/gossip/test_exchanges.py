"""What comes from one neighbour in exchanges, and among whom their graph lies after deaths: the same on all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.core.vectors import Flat
from quorate.gossip.exchanges import TAG, GraphMembers, Incoming, MassLedger
from quorate.wire.failure import allow_going_on
from quorate.wire.virtual.world import VirtualWorld

LAYOUT = layout_of([("x", torch.zeros(2))])


def told(round: int, before: float, mass: float = 0.5) -> Message:
    says = {"round": round, "scalars": [1.0], "weight": mass, "before": before}
    return Message((torch.full((2,), float(round)),), says)


def of(sends: Callable[[Wire], None], takes: Callable[[Incoming, Wire], None]) -> MassLedger:
    """What rank 0's books say after it has taken from rank 1, which has sent."""
    books = MassLedger()

    def live(wire: Wire) -> Any:
        if wire.rank == 1:
            sends(wire)
            wire.clock.sleep(100.0)
        else:
            takes(Incoming(wire, 1, lambda source, fields, tensors: Flat(tensors, LAYOUT), books), wire)

    VirtualWorld(2, timeout=60.0).run(live)
    return books


def test_what_is_far_ahead_is_taken_at_once_and_not_waited_for_again() -> None:
    def sends(wire: Wire) -> None:
        for round in range(30):
            wire.send(told(round, round * 0.5), 0, TAG)

    def takes(incoming: Incoming, wire: Wire) -> None:
        wire.clock.sleep(1.0)
        assert incoming.receive(0) is not None
        assert [given.round for given in incoming.late(0)] == list(range(9, 30))
        assert incoming.late(0) == []
        for round in range(1, 9):
            given = incoming.receive(round)
            assert given is not None
            assert given.round == round
        now = wire.clock.now()
        for round in range(9, 30):
            assert incoming.receive(round) is None
        assert wire.clock.now() == now

    books = of(sends, takes)
    assert books.received[1] == 15.0
    assert not books.lost


def test_a_gap_is_seen_with_the_next_message_and_its_mass_is_lost() -> None:
    def sends(wire: Wire) -> None:
        wire.send(told(0, 0.0), 0, TAG)
        wire.send(told(2, 0.75), 0, TAG)
        wire.send(Message(header={"away": "pauses", "round": 3, "before": 1.5}), 0, TAG)

    def takes(incoming: Incoming, wire: Wire) -> None:
        assert incoming.receive(0) is not None
        assert incoming.receive(1) is None
        assert incoming.receive(2) is not None
        assert incoming.drain(ended=False) == []

    books = of(sends, takes)
    assert books.lost[1] == 0.25 + 0.25
    assert books.received[1] == 1.0


def test_who_was_silent_is_not_waited_for_until_it_speaks() -> None:
    def sends(wire: Wire) -> None:
        wire.clock.sleep(10.0)
        wire.send(told(0, 0.0), 0, TAG)
        wire.clock.sleep(1.5)
        wire.send(told(1, 0.5), 0, TAG)

    def takes(incoming: Incoming, wire: Wire) -> None:
        begin = wire.clock.now()
        assert incoming.within(0, 2.0) is None
        assert wire.clock.now() == pytest.approx(begin + 2.0)
        assert incoming.within(1, 2.0) is None, "nor a second time"
        assert wire.clock.now() == pytest.approx(begin + 2.0)
        assert incoming.late(1) == []
        wire.clock.sleep(9.0)
        assert [given.round for given in incoming.late(1)] == [0]
        assert incoming.within(2, 0.1) is None, "it has spoken: it is waited for"
        assert wire.clock.now() == pytest.approx(begin + 11.1)
        wire.clock.sleep(1.0)
        assert [given.round for given in incoming.late(2)] == [1]

    assert not of(sends, takes).lost


def test_without_patience_it_is_waited_for_until_time_is_out() -> None:
    def takes(incoming: Incoming, wire: Wire) -> None:
        with pytest.raises(WireTimeout, match="rank 1"):
            incoming.receive(0, 1.0)

    of(lambda wire: None, takes)


def asked(size: int, deaths: dict[int, float], pauses: list[float], seed: int = 0) -> list[list[tuple[int, ...]]]:
    """What every survivor is told for 40 exchanges, which are so many seconds apart; the dead die at these times."""

    def live(wire: Wire) -> list[tuple[int, ...]]:
        wire.tolerate_deaths("gone")
        allow_going_on(wire.board, wire.size, name="x")
        members, found = GraphMembers(wire), []
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
        members, found = GraphMembers(wire), []
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
