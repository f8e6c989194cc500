"""Collectives of a virtual world, which are formed when the last worker calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from quorate.core.errors import Mismatch
from quorate.wire.virtual.formation import Inputs, form, nbytes
from quorate.wire.virtual.network import demand_of
from quorate.wire.virtual.waits import Scene, VirtualWork, in_words

Key = tuple[str, int]
"""Channel, and number in the order of its collectives."""


@dataclass(frozen=True)
class Call:
    """The parts of a call that must be equal on all workers; None where they may differ."""

    operation: str
    root: int | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        of = "" if self.dtypes is None else f" of {' and '.join(str(t).removeprefix('torch.') for t in self.dtypes)}"
        shape = "" if self.shape is None else f" {self.shape}"
        root = "" if self.root is None else f" with root {self.root}"
        return f"{self.operation}{of}{shape}{root}"


class Arrival(VirtualWork[Any]):
    """One worker's call of a collective."""

    __slots__ = ("_meeting",)

    def __init__(self, scene: Scene, rank: int, operation: str, timeout: float, meeting: Meeting) -> None:
        super().__init__(scene, rank, operation, timeout)
        self._meeting: Meeting | None = meeting

    def missing(self) -> Sequence[int]:
        """Return the workers that have not called; and those that have called and died since, as others may know."""
        absent = [] if self._meeting is None else self._meeting.absent()
        if absent and self._scene.members.dead:
            return sorted({*absent, *self._scene.members.dead})
        return absent

    def _end(self) -> None:
        self._meeting = None
        super()._end()


class Meeting:
    """One collective under way."""

    __slots__ = ("arrivals", "calls", "count", "first_call", "inputs", "is_at_odds", "latest")

    def __init__(self, size: int) -> None:
        self.arrivals: list[Arrival | None] = [None] * size
        self.calls: list[Call | None] = [None] * size
        self.inputs: list[Inputs] = [()] * size
        self.first_call: Call | None = None
        self.count = 0
        self.is_at_odds = False
        self.latest = 0.0
        """Time of the last call, by the worker's own clock."""

    def absent(self) -> list[int]:
        """Return the workers that have not called."""
        return [rank for rank, arrival in enumerate(self.arrivals) if arrival is None]


class Rendezvous:
    """All collectives of a virtual world that are under way."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._meetings: dict[Key, Meeting] = {}

    def launch(self, rank: int, key: Key, call: Call, inputs: Inputs, timeout: float) -> Arrival:
        """Add the call of worker `rank` to collective `key`, without waiting."""
        scene = self._scene
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(scene.size)
        arrival = Arrival(scene, rank, call.operation, timeout, meeting)
        meeting.is_at_odds |= call != (meeting.first_call or call)
        meeting.first_call = meeting.first_call or call
        meeting.arrivals[rank], meeting.calls[rank], meeting.inputs[rank] = arrival, call, inputs
        meeting.latest = max(meeting.latest, scene.scheduler.own_now())
        meeting.count += 1
        if scene.is_traced:
            scene.note(rank, f"{call} on {key[0]} #{key[1]}")
        if meeting.count == scene.size:
            del self._meetings[key]
            self._hold(meeting, key, call)
        return arrival

    def _hold(self, meeting: Meeting, key: Key, call: Call) -> None:
        scheduler = self._scene.scheduler
        arrivals = [arrival for arrival in meeting.arrivals if arrival is not None]
        if meeting.is_at_odds:
            sentence = _disagreement(meeting, key)
            for arrival in arrivals:
                arrival.fail(Mismatch(sentence))
            return
        root = call.root or 0
        sizes = tuple(map(nbytes, meeting.inputs))
        hosts = [self._scene.network.host_of(rank) for rank in range(self._scene.size)]
        results = form(call.operation, meeting.inputs, root, hosts)
        demand = demand_of(self._scene.network, call.operation, sizes, root)
        done = self._scene.queues.collective(demand, meeting.latest)
        scheduler.at(done, partial(_finish, arrivals, results))


def _finish(arrivals: Sequence[Arrival], results: Sequence[Any]) -> None:
    for arrival, result in zip(arrivals, results, strict=True):
        arrival.finish(result)


def _disagreement(meeting: Meeting, key: Key) -> str:
    ranks_of: dict[Call, list[int]] = {}
    for rank, call in enumerate(meeting.calls):
        assert call is not None
        ranks_of.setdefault(call, []).append(rank)
    sides = ", ".join(f"{in_words(ranks)} called {call}" for call, ranks in ranks_of.items())
    return f"the workers called different things as collective {key[1]} of {key[0]}: {sides}"
