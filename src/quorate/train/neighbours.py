"""One optimizer's exchanges along the edges of a graph, and its questions to single workers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import Answer, Given, Neighbours, Request
from quorate.core.topology import Edge
from quorate.core.vectors import Flat, Layout
from quorate.train.answers import Answers
from quorate.train.incoming import TAG, Incoming
from quorate.train.step_times import StepTimer, Timed

if TYPE_CHECKING:
    from quorate.train.agreement import Agreement
    from quorate.train.worker import OptimizerWorker


class NeighboursOf:
    """Implements `core.neighbours.Neighbours` for one worker, over channels of its wire.

    Cost of an exchange: one message of all parameters along each edge; on one host they lie in shared memory, and are
    not copied for each receiver. Going away costs a small message to every other worker, and coming together one from
    each, so that nothing is in flight then.
    """

    def __init__(self, worker: OptimizerWorker) -> None:
        self.rank, self.size = worker.rank, worker.size
        self.round = -1
        self.lock = threading.Lock()
        self._worker, self._timer = worker, worker.timer
        self._incoming: dict[int, Incoming] = {}
        self._answers: Answers | None = None
        self._has_ended = self._is_away = self._is_used = False
        self._rests = 0

    @cached_property
    def _wire(self) -> Wire:
        self._is_used = True
        return self._worker.wire.channel("neighbours")

    def _layout(self) -> Layout:
        return self._worker.peers.layout

    # -- core.neighbours.Neighbours

    def blank(self) -> Flat:
        """See `core.neighbours.Neighbours`."""
        return Flat.empty(self._layout(), self._wire.empty)

    def exchange(
        self, x: Flat | Mapping[int, Flat], to: Sequence[Edge], source: Sequence[Edge], *, scalars: Sequence[float] = ()
    ) -> Exchange:
        """See `core.neighbours.Neighbours`."""
        if self._is_away:
            raise ConfigurationError("this worker has called finish() on an optimizer, which ends the exchanges of all")
        self._timer.arrived()
        self.round += 1
        kept, says = 0.0, {"round": self.round, "scalars": list(scalars)}
        for peer, weight in to:
            if peer == self.rank or self._from(peer).look():
                kept += weight
            else:
                parts = (x if isinstance(x, Flat) else x[peer]).parts
                self._wire.send(Message(parts, {**says, "weight": weight}, shared=True), peer, TAG)
        mine = x if isinstance(x, Flat) else x.get(self.rank)
        own = None if mine is None else Given(mine, kept, tuple(scalars), self.round)
        others = {peer: self._from(peer) for peer, _ in source if peer != self.rank}
        return Exchange(self.rank, own, others, self.round, self._timer)

    def ask(self, peer: int, name: str, x: Flat | None = None, **header: Any) -> Work[Answer]:
        """See `core.neighbours.Neighbours`."""
        self._timer.arrived()
        self.goes_on()
        return Timed(self._task().ask(peer, name, x, header, self._rests), self._timer)

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """See `core.neighbours.Neighbours`."""
        self._task().serve(name, handler)

    # -- for the worker

    def until_all(self, wait: Callable[[Sequence[Agreement]], None], *, ended: bool) -> None:
        """Be away, `wait` with all optimizers of this worker until all others are, and take in what is late."""
        everyone = self._worker.everyone()
        for one in everyone:
            one.neighbours._go_away(ended)
        wait([one.peers for one in everyone])
        if self._is_used:
            self._worker.strategy.absorb(self._worker, self._come_together())

    def goes_on(self) -> None:
        """This worker computes (again), or has ended: it answers everyone."""
        if self._answers is not None:
            self._answers.go_on(math.inf if self._has_ended else self._rests)

    def close(self) -> None:
        """End the task that answers; nobody asks any more."""
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    # -- inside

    def _go_away(self, ended: bool) -> None:
        """Tell all others that this worker begins no exchange until all have rested, or never again; once."""
        if not self._is_used or self._is_away:
            return
        self._worker.strategy.drain(self._worker)
        self._is_away, self._has_ended = True, ended
        self.goes_on()
        says = {"away": "ended" if ended else "rests", "round": self.round}
        for peer in range(self.size):
            if peer != self.rank:
                self._wire.send(Message(header=says), peer, TAG)

    def _come_together(self) -> list[Given]:
        """All are away: what was given to this worker in rounds that it took no part in. It may exchange again."""
        late: list[Given] = []
        for other in [self._from(peer) for peer in range(self.size) if peer != self.rank]:
            late += other.rest_of_it(ended=self._has_ended)
            self.round = max(self.round, other.reached)
            other.comes_back()
        self._is_away = self._has_ended
        self._rests += 1
        return late

    def _from(self, peer: int) -> Incoming:
        if peer not in self._incoming:
            self._incoming[peer] = Incoming(self._wire, peer, self._layout)
        return self._incoming[peer]

    def _task(self) -> Answers:
        if self._answers is None:
            self._answers = Answers(self._wire, self._layout)
        return self._answers


class Exchange:
    """One exchange under way."""

    def __init__(
        self, rank: int, own: Given | None, others: Mapping[int, Incoming], round: int, timer: StepTimer
    ) -> None:
        self._waiting, self._round, self._timer, self.own = dict(others), round, timer, own
        self._found: dict[int, Given] = {} if own is None else {rank: own}

    def done(self) -> bool:
        return all(other.has(self._round) for other in self._waiting.values())

    def wait(self, timeout: float | None = None) -> dict[int, Given]:
        clock = self._timer.clock
        until = None if timeout is None else clock.now() + timeout
        with self._timer.spending("wait"):
            for peer in list(self._waiting):
                left = None if until is None else max(0.0, until - clock.now())
                given = self._waiting[peer].given(self._round, left)
                del self._waiting[peer]
                if given is not None:
                    self._found[peer] = given
        self._timer.contributors = max(1, len(self._found))
        return self._found


_: type[Neighbours] = NeighboursOf
