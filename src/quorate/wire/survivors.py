"""Collectives among survivors: a worker that dies meanwhile is left out, by all of them or by none.

Every worker sends its tensor to every other. Once it has the tensors of all living workers, it writes on the board
which ranks it *has*. When all living workers have written so, the first that sees it writes which ranks *count*: those
whose tensors all have. No worker returns before that is written, so none uses a result that another cannot form.

Cost per worker: P - 1 messages out, as of any collective of messages, and some five requests to the board.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout, ranks_in_words
from quorate.core.fields import Fields
from quorate.wire.exchange import sum_in_order
from quorate.wire.work import Together

_SLICE = 0.05


class Survivors:
    """The survivors on `wire`, which is used for nothing else; every worker makes the same calls.

    `members` are those of one era of calls, the dead among them. All change them at the same call, while `Wire.members`
    has a newcomer, or a death, at another moment on each worker. A newcomer is alone until it is `among` the others,
    who admit it once all of them have joined.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.members = frozenset([wire.rank]) if wire.is_newcomer else frozenset(range(wire.size))
        self._era = f"{wire.name}/alone {wire.rank}" if wire.is_newcomer else wire.name
        self._calls = 0

    def among(self, members: Iterable[int], number: int | str) -> None:
        """Set the members from now on; all pass the same `number`, which is used for no other change."""
        self.members, self._era, self._calls = frozenset(members), f"{self.wire.name}/from {number}", 0

    def gather(self, message: Message, operation: str = "gather") -> GatherAmongSurvivors:
        """Return the messages of all workers that count, by rank, in order. Their tensors are read-only."""
        self._calls += 1
        return GatherAmongSurvivors(self, f"{self._era}/{self._calls}", self._old(), operation, message)

    def _old(self) -> str | None:
        """Return the prefix of keys no longer needed: all workers are in this call or the one before."""
        return f"{self._era}/{self._calls - 2}/" if self._calls > 2 else None

    def all_gather(self, x: Tensor) -> Work[list[Tensor]]:
        """Return the tensors of all workers that count, in order of rank; shapes may differ. Equal on all workers."""
        work = self.gather(Message((x.detach().clone(),)), f"all_gather {x.dtype}")
        return Together([work], lambda results: [x.tensors[0] for x in results[0].values()], self.wire.clock)

    def barrier(self) -> Work[dict[int, Message]]:
        """Return once all living workers have called it."""
        return self.gather(Message(), "barrier")


@dataclass(frozen=True, slots=True)
class Envelope(Fields):
    """The header of every message of a gather."""

    operation: str
    caller: dict[str, Any]  # open: the header of the caller's message


class GatherAmongSurvivors:
    """One call under way. It progresses in `wait` only."""

    def __init__(self, survivors: Survivors, key: str, old: str | None, operation: str, message: Message) -> None:
        wire = self._wire = survivors.wire
        self._members, self._key, self._operation = survivors.members, key, operation
        dead = wire.dead
        if old is not None and wire.rank == min(self._members - dead):
            wire.board.delete(old)
        envelope = Envelope(operation, dict(message.header))
        sent = Message(tuple(x.detach() for x in message.tensors), envelope.header(), shared=True)
        self._there = {wire.rank: sent}
        self._receives: dict[int, Work[tuple[int, Message]]] = {}
        for peer in sorted(self._members):
            if peer != wire.rank and peer not in dead:
                wire.send(sent, peer, self._key)
                self._receives[peer] = wire.receive(peer, self._key)
        self._has_said = False
        self._result: dict[int, Message] | None = None

    def done(self) -> bool:
        return self._result is not None

    def wait(self, timeout: float | None = None) -> dict[int, Message]:
        wire = self._wire
        limit = wire.timeout if timeout is None else timeout
        deadline = wire.clock.now() + limit
        while self._result is None:
            left = deadline - wire.clock.now()
            try:
                self._move_on(max(0.0, min(_SLICE, left)))
            except WireTimeout:
                if left <= _SLICE:
                    late = self._late()
                    raise WireTimeout(
                        f"rank {wire.rank} waited {limit:g} s for {ranks_in_words(late)} in {self._operation}", late
                    ) from None
        return self._result

    def _late(self) -> list[int]:
        missing = [peer for peer, work in self._receives.items() if peer not in self._wire.dead and not work.done()]
        if missing:
            return missing
        living = self._living()
        lists = self._wire.board.get_all([f"{self._key}/has/{rank}" for rank in living])
        return [rank for rank, written in zip(living, lists, strict=True) if written is None]

    def _living(self) -> list[int]:
        return sorted(self._members - self._wire.dead)

    def _move_on(self, seconds: float) -> None:
        """Take the next step, in at most `seconds`; raises `WireTimeout` where it takes longer."""
        wire = self._wire
        missing = next((peer for peer in self._receives if peer not in wire.dead), None)
        if missing is not None:
            try:
                _, message = self._receives[missing].wait(seconds)
            except PeerFailed:
                if missing not in wire.dead:
                    raise
                return
            self._compare(missing, message)
            self._there[missing] = message
            del self._receives[missing]
            return
        if not self._has_said:
            self._has_said = True
            self._take_arrived()
            wire.board.set(f"{self._key}/has/{wire.rank}", json.dumps(sorted(self._there)).encode())
        counts = f"{self._key}/counts"
        written, *lists = wire.board.get_all([counts, *(f"{self._key}/has/{rank}" for rank in self._living())])
        if written is None:
            if all(ranks is not None for ranks in lists):
                common = set.intersection(*(set(json.loads(ranks)) for ranks in lists if ranks is not None))
                wire.board.swap(counts, None, json.dumps(sorted(common)).encode())
            wire.board.wait([counts], seconds)
            written = wire.board.get(counts)
        if written is not None:
            self._result = {
                rank: Message(self._there[rank].tensors, Envelope.read(self._there[rank].header).caller, shared=True)
                for rank in json.loads(written)
            }

    def _take_arrived(self) -> None:
        """Take messages of dead workers that had arrived before: they may count."""
        for peer, work in list(self._receives.items()):
            with suppress(PeerFailed, WireTimeout):
                self._there[peer] = work.wait(0.0)[1]

    def _compare(self, peer: int, message: Message) -> None:
        theirs = Envelope.read(message.header).operation
        if theirs != self._operation:
            raise Mismatch.between(self._wire.rank, self._operation, peer, theirs)


def workers_of(replicas: Iterable[int], pieces: int) -> list[int]:
    """Return the ranks of the workers of `replicas` in `pieces` pieces each."""
    return [pieces * replica + piece for replica in replicas for piece in range(pieces)]


@dataclass
class DeathTolerance:
    """The workers with which one worker goes on after deaths."""

    tell_launcher: Callable[[], None] = lambda: None
    """Tells a launcher with another board at once whether this worker trains, and what its death means."""
    survivors: Survivors | None = None
    """All workers that go on when others die; None where a death ends the run."""
    between: Survivors | None = None
    """The survivors among workers that hold the same piece, for replicas in pieces."""
    replica: frozenset[int] = frozenset()
    """The workers of this replica, for replicas in pieces: it ends when one of them does."""

    def go_on_with(self, replicas: Sequence[int], number: int | str, pieces: int = 1) -> None:
        """Set the members from now on, see `Survivors.among`; each replica is in `pieces` on neighbouring ranks."""
        if self.between is not None:
            self.between.among(replicas, number)
        if self.survivors is not None:
            self.survivors.among(workers_of(replicas, pieces), number)

    is_refused: bool = False
    """Whether some optimizer cannot go on after a death."""

    @property
    def surviving_replicas(self) -> Survivors | None:
        """The `survivors`; for replicas in pieces, those that hold the same piece as this worker."""
        return self.between or self.survivors

    def dead_of_replica(self, dead: frozenset[int]) -> list[int]:
        """Return which of the `dead` workers are of this worker's replica in pieces, where other replicas go on."""
        return [] if self.between is None else sorted(self.replica & dead)


def mean_of_number(value: Tensor, wire: Wire, survivors: Survivors | None) -> Tensor:
    """Return the mean of the `value` of every worker, or of the `survivors` of deaths."""
    if survivors is None:
        return wire.all_reduce(value / wire.size).wait()
    values = survivors.all_gather(value).wait()
    return sum_in_order(values) / len(values)


def gather_numbers(numbers: Sequence[float], wire: Wire, survivors: Survivors | None) -> list[list[float]]:
    """Return the `numbers` of each worker that takes part, in the order of their ranks."""
    rows = torch.zeros(wire.max_size, len(numbers) + 1, dtype=torch.float64)
    rows[wire.rank] = torch.tensor([1.0, *numbers])
    means = mean_of_number(rows, wire, survivors)
    return [(row[1:] / row[0]).tolist() for row in means if row[0] > 0]
