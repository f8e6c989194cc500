"""What one worker takes of another's messages: in order, late ones, those far ahead, and those that never come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from quorate.agreement.incoming import TAG, Incoming
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Message, Wire
from quorate.core.errors import WireTimeout
from quorate.core.neighbours import MassLedger
from quorate.core.vectors import Flat
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
            takes(Incoming(wire, 1, lambda message: Flat(message.tensors, LAYOUT), books), wire)

    VirtualWorld(2, timeout=60.0).run(live)
    return books


def test_what_is_far_ahead_is_taken_at_once_and_not_waited_for_again() -> None:
    def sends(wire: Wire) -> None:
        for round in range(30):
            wire.send(told(round, round * 0.5), 0, TAG)

    def takes(incoming: Incoming, wire: Wire) -> None:
        wire.clock.sleep(1.0)
        assert incoming.given(0) is not None
        assert [given.round for given in incoming.late(0)] == list(range(9, 30))
        assert incoming.late(0) == []
        for round in range(1, 9):
            given = incoming.given(round)
            assert given is not None
            assert given.round == round
        now = wire.clock.now()
        for round in range(9, 30):
            assert incoming.given(round) is None
        assert wire.clock.now() == now

    books = of(sends, takes)
    assert books.got[1] == 15.0
    assert not books.lost


def test_a_gap_is_seen_with_the_next_message_and_its_mass_is_lost() -> None:
    def sends(wire: Wire) -> None:
        wire.send(told(0, 0.0), 0, TAG)
        wire.send(told(2, 0.75), 0, TAG)
        wire.send(Message(header={"away": "rests", "round": 3, "before": 1.5}), 0, TAG)

    def takes(incoming: Incoming, wire: Wire) -> None:
        assert incoming.given(0) is not None
        assert incoming.given(1) is None
        assert incoming.given(2) is not None
        assert incoming.rest_of_it(ended=False) == []

    books = of(sends, takes)
    assert books.lost[1] == 0.25 + 0.25
    assert books.got[1] == 1.0


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
            incoming.given(0, 1.0)

    of(lambda wire: None, takes)
