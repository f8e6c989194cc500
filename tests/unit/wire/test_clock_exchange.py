"""How far a clock is off, found from round trips: never further from the truth than is said."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from quorate.records.rows import ClockOffset
from quorate.wire.real.clock_exchange import BETWEEN, PATIENCE, TRIPS, ClockExchange


class FalseClock:
    """Off by so many seconds, and fast by `drift`."""

    def __init__(self, network: Network, off: float, drift: float) -> None:
        self._network, self._off, self._drift = network, off, drift

    def now(self) -> float:
        return self._network.now * (1.0 + self._drift) + self._off

    def sleep(self, seconds: float) -> None: ...

    def pause(self) -> None: ...

    def compute(self, share: float) -> None: ...


class Network:
    """Two workers and messages between them that take their time; true time is `now`."""

    def __init__(self, seed: int, off: float = 0.0, drift: float = 0.0, loses: float = 0.0) -> None:
        self.draw, self.now, self._loses = random.Random(seed), 0.0, loses
        self.clocks = [FalseClock(self, 0.0, 0.0), FalseClock(self, off, drift)]
        self.living = [0, 1]
        self.ends = [ClockExchange(r, clock, "ab"[r], r.__eq__) for r, clock in enumerate(self.clocks)]
        self._coming: list[tuple[float, int, int, dict[str, Any]]] = []
        self.sent = [0, 0]

    def _send(self, source: int, to: int, message: dict[str, Any]) -> None:
        self.sent[source] += 1
        if self.draw.random() >= self._loses:
            way = 1e-4 + self.draw.expovariate(500.0) * (5.0 if to == 0 else 1.0)  # one way is slower
            heapq.heappush(self._coming, (self.now + way, self.draw.getrandbits(60), to, message))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            tick = self.now + 0.1
            while self._coming and self._coming[0][0] <= tick:
                self.now, _, to, message = heapq.heappop(self._coming)
                source = 1 - to
                self.ends[to].received(source, message, lambda peer, answer, to=to: self._send(to, peer, answer))
            self.now = tick
            for rank in self.living:
                self.ends[rank].step(self.living, lambda peer, message, rank=rank: self._send(rank, peer, message))

    def is_wrong_by(self, row: ClockOffset) -> float:
        """How far that is from the truth."""
        clock = self.clocks[1]
        true = (row.time - clock._off) / (1.0 + clock._drift)
        return abs(row.time + row.offset - true)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("off", "drift"), [(3.0, 1e-4), (-5e5, -1e-4), (0.0, 0.0)])
def test_the_truth_is_within_the_uncertainty(seed: int, off: float, drift: float) -> None:
    network = Network(seed, off, drift)
    network.run(60.0)
    offsets = network.ends[1].news()
    assert len(offsets) >= 60.0 / BETWEEN - 2
    for row in offsets:
        assert row.reference == 0 and network.is_wrong_by(row) <= row.uncertainty + 1e-6
        assert row.uncertainty < 0.02
    assert network.sent[1] <= (60.0 / BETWEEN + 1) * TRIPS


def test_the_shortest_round_trip_counts() -> None:
    """One way of most trips takes long: their mean would be wrong by far more."""
    network = Network(1, off=3.0)
    network.run(30.0)
    assert max(row.uncertainty for row in network.ends[1].news()) < 0.012 / 2


def test_a_trip_as_short_as_earlier_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all trips are alike one is; the first time, and where trips become longer, all are made."""
    network = Network(1, off=3.0)
    monkeypatch.setattr(network.draw, "expovariate", lambda _: 0.001)
    network.run(BETWEEN * 10.5)
    assert network.sent[1] == TRIPS + 10 and len(network.ends[1].news()) == 11
    monkeypatch.setattr(network.draw, "expovariate", lambda _: 0.002)
    network.run(BETWEEN * 4)
    assert network.sent[1] == TRIPS + 10 + 4 * TRIPS
    network.run(BETWEEN * 60)
    assert network.sent[1] < 5 * TRIPS + 10 + 15 * TRIPS  # longer ones have become usual
    assert all(network.is_wrong_by(row) <= row.uncertainty + 1e-6 for row in network.ends[1].news())


def test_answers_that_are_lost_are_not_waited_for() -> None:
    network = Network(2, off=3.0, loses=0.3)
    network.run(20 * (BETWEEN + TRIPS * PATIENCE))
    offsets = network.ends[1].news()
    assert len(offsets) > 10 and all(network.is_wrong_by(row) <= row.uncertainty + 1e-6 for row in offsets)


def test_the_reference_asks_nobody_and_says_so_once() -> None:
    network = Network(3)
    network.run(20.0)
    assert [(row.offset, row.uncertainty, row.reference) for row in network.ends[0].news()] == [(0.0, 0.0, 0)]
    network.living = [1]  # rank 0 is gone
    network.ends[1].news()
    network.run(20.0)
    assert [(row.offset, row.uncertainty, row.reference) for row in network.ends[1].news()] == [(0.0, 0.0, 1)]


def test_on_one_machine_nobody_asks() -> None:
    network = Network(4)
    network.ends = [ClockExchange(r, clock, "a", lambda peer: True) for r, clock in enumerate(network.clocks)]
    network.run(20.0)
    assert network.sent == [0, 0]
    rows = [row for end in network.ends for row in end.news()]
    assert [(row.reference, row.offset, row.uncertainty) for row in rows] == [(0, 0.0, 0.0)] * 2
    assert rows[0].machine == rows[1].machine
