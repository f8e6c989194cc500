"""Collectives among those that are left: a worker that dies meanwhile is left out, by all of them or by none.

Every worker sends its tensor to every other, and writes on the board whose tensors it *has* once it has those of all
that live. When all that live have written so, whoever sees it first writes down who *counts*: those whose tensors
everyone has. Nobody returns before that stands, so nobody goes on with a result that another one cannot form.

Cost per worker: P - 1 messages out, as of any collective of messages, and some P reads of the board.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout, ranks_in_words
from quorate.wire.current import Place
from quorate.wire.work import Together

_SLICE = 0.05


class Survivors:
    """Those of `wire`, which is used for nothing else; every worker makes the same calls.

    A worker that joins is alone until it is `among` the others, who take it in where all of them have come.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.members = frozenset([wire.rank]) if wire.is_newcomer else frozenset(range(wire.size))
        self._era = f"{wire.name}/alone {wire.rank}" if wire.is_newcomer else wire.name
        self._calls = 0

    def among(self, members: Iterable[int], number: int | str) -> None:
        """From now on these call; `number` is the same on all, and at no other such place."""
        self.members, self._era, self._calls = frozenset(members), f"{self.wire.name}/from {number}", 0

    def gather(self, message: Message, operation: str = "gather") -> GatherAmongSurvivors:
        """The messages of all that count, by rank, in order. Their tensors are not changed by anyone any more."""
        self._calls += 1
        said = Message(tuple(x.detach() for x in message.tensors), message.header, shared=True)
        return GatherAmongSurvivors(self, f"{self._era}/{self._calls}", self._old(), operation, said)

    def _old(self) -> str | None:
        """What nobody needs any more: everyone is in this call or the one before."""
        return f"{self._era}/{self._calls - 2}/" if self._calls > 2 else None

    def all_gather(self, x: Tensor) -> Work[list[Tensor]]:
        """The tensors of all that count, in order of rank; shapes may differ. The same on every worker."""
        work = self.gather(Message((x.detach().clone(),)), f"all_gather {x.dtype}")
        return Together([work], lambda found: [one.tensors[0] for one in found[0].values()], self.wire.clock)

    def barrier(self) -> Work[dict[int, Message]]:
        """Done when all that live have called it."""
        return self.gather(Message(), "barrier")


class GatherAmongSurvivors:
    """One call under way. It moves on in `wait` only."""

    def __init__(self, survivors: Survivors, key: str, old: str | None, operation: str, message: Message) -> None:
        wire = self._wire = survivors.wire
        self._members, self._key, self._operation = survivors.members, key, operation
        if old is not None:
            wire.board.delete(old)
        header = {"operation": operation, "header": dict(message.header)}
        said = Message(message.tensors, header, shared=True)
        self._there = {wire.rank: said}
        self._receives: dict[int, Work[tuple[int, Message]]] = {}
        for peer in sorted(self._members):
            if peer != wire.rank and peer not in wire.dead:
                wire.send(said, peer, self._key)
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
        board = self._wire.board
        return [rank for rank in self._living() if board.get(f"{self._key}/has/{rank}") is None]

    def _living(self) -> list[int]:
        return sorted(self._members - self._wire.dead)

    def _move_on(self, seconds: float) -> None:
        """One step further, in at most `seconds`; raises `WireTimeout` where it takes longer."""
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
            self._take_what_came()
            wire.board.set(f"{self._key}/has/{wire.rank}", json.dumps(sorted(self._there)).encode())
        counts = f"{self._key}/counts"
        written = wire.board.get(counts)
        if written is None:
            self._decide(counts)
            wire.board.wait([counts], seconds)
            written = wire.board.get(counts)
        if written is not None:
            self._result = {
                rank: Message(self._there[rank].tensors, self._there[rank].header["header"], shared=True)
                for rank in json.loads(written)
            }

    def _take_what_came(self) -> None:
        """Of those that died: what had arrived before may count."""
        for peer, work in list(self._receives.items()):
            with suppress(PeerFailed, WireTimeout):
                self._there[peer] = work.wait(0.0)[1]

    def _decide(self, counts: str) -> None:
        board = self._wire.board
        said = [board.get(f"{self._key}/has/{rank}") for rank in self._living()]
        if all(one is not None for one in said):
            common = set.intersection(*(set(json.loads(one)) for one in said if one is not None))
            board.swap(counts, None, json.dumps(sorted(common)).encode())

    def _compare(self, peer: int, message: Message) -> None:
        theirs = message.header["operation"]
        if theirs != self._operation:
            raise Mismatch.between(self._wire.rank, self._operation, peer, theirs)


def workers_of(replicas: Iterable[int], pieces: int) -> list[int]:
    """The ranks of the workers of replicas in so many pieces each."""
    return [pieces * replica + piece for replica in replicas for piece in range(pieces)]


@dataclass
class DeathTolerance:
    """One of each worker."""

    survivors: Survivors | None = None
    """Those with whom it goes on when others die; None where a death is everyone's end."""
    between: Survivors | None = None
    """Likewise, of replicas in pieces: those that hold the same piece."""
    replica: frozenset[int] = frozenset()
    """Of replicas in pieces: the workers of this one, which ends when one of them does."""

    def go_on_with(self, replicas: Sequence[int], number: int | str, pieces: int = 1) -> None:
        """See `Survivors.among`; each of the `replicas` is in so many pieces, on workers of neighbouring ranks."""
        if self.between is not None:
            self.between.among(replicas, number)
        if self.survivors is not None:
            self.survivors.among(workers_of(replicas, pieces), number)

    is_refused: bool = False
    """Whether some optimizer cannot go on."""
    tell_launcher: Callable[[], None] = lambda: None
    """Lets a launcher whose board is another one know at once whether this worker trains, and what its death is."""


def lost_mates(place: Place) -> list[int]:
    """The workers of this one's replica in pieces that have died, where other replicas go on."""
    own = place.context(DeathTolerance)
    return [] if own.between is None else sorted(own.replica & place.wire.dead)


def survivors(place: Place) -> Survivors | None:
    """Those with whom the worker of `place` goes on; None where a death is everyone's end."""
    return place.context(DeathTolerance).survivors


def surviving_replicas(place: Place) -> Survivors | None:
    """As `survivors`; of replicas in pieces, those that hold the same piece as this worker."""
    own = place.context(DeathTolerance)
    return own.between or own.survivors
