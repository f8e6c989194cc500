"""The other workers, one by one, as a strategy sees them: exchanges along edges, questions and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from quorate.core.contracts import Work
from quorate.core.resize import kept
from quorate.core.topology import Edge
from quorate.core.vectors import Flat, scale_into


@dataclass(frozen=True)
class NeighbourShare:
    """The vector of one worker in an exchange. `x` may be the memory of its sender: do not write to it."""

    x: Flat
    weight: float
    """Its weight here, as its sender has it."""
    scalars: tuple[float, ...]
    round: int
    is_written: bool = False
    """Whether a codec has written it small."""


@dataclass(frozen=True)
class Request:
    """A question of another worker, to be answered by `reply`, once, now or later; from any thread."""

    x: Flat | None
    """The vector of the question. It may be the memory of its sender: do not write to it."""
    header: Mapping[str, Any]
    reply: Callable[..., None]
    """`reply(x=None, **header)`; do not write to `x` any more."""


@dataclass(frozen=True)
class Written:
    """A vector that a codec has written small; `Neighbours.written` makes it."""

    x: Flat
    """The vector that its receivers read, to the bit."""


SentVector = Flat | Written
"""A vector for a neighbour: as it is, or written small."""


class EdgeCodec(Protocol):
    """The codec of `compress`, for vectors to neighbours. It has no memory."""

    @property
    def is_biased(self) -> bool:
        """Whether decoded vectors differ in the mean from the encoded ones."""

    @property
    def left_out(self) -> float:
        """The squared error of a decoded vector of small, normally distributed numbers, over its squared norm."""


class UnderWay(Work[dict[int, NeighbourShare]], Protocol):
    """An exchange in flight; its result are the vectors received, by rank, and this worker's own."""

    @property
    def own(self) -> NeighbourShare | None:
        """The part of its own `x` that this worker keeps, known at once; None if it sent to others only."""

    def within(self, seconds: float | None) -> dict[int, NeighbourShare]:
        """Wait as `wait`, without workers that have not sent after so many seconds, or are silent since; None: `wait`.

        `Neighbours.late` returns the vectors that they send later.
        """


Answer = tuple[Flat | None, Mapping[str, Any]]
"""A vector and a header; None and an empty header if the worker that was asked has died."""


class Neighbours(Protocol):
    """The other workers, one by one. Do not write to a vector that was sent: `blank` makes a new one."""

    round: int
    """The number of the newest exchange that was begun, from 0; -1 before the first. It is equal on all workers that
    step together; at a pause of all it becomes the greatest."""
    has_moments: bool
    """Whether vectors also hold the moments of the optimizer, as by `OwnReplica.read`; set in `start`, by all."""

    @property
    def codec(self) -> EdgeCodec | None:
        """The codec with which `written` encodes; None: it does not."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock for vectors that the training thread and handlers share; not held across a wait."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks so far, in order: those of the start, and those that have joined since.

        The dead are among them. They are equal on all workers from one mean of all to the next.
        """

    @property
    def dead(self) -> frozenset[int]:
        """The ranks that have died, as far as this worker knows; others may know of more, or fewer."""

    def members(self) -> tuple[int, ...]:
        """Return the ranks in the graph of exchange `round` + 1: the same on every worker that begins it.

        They are all ranks but the dead. Until all survivors know of a death, the dead rank stays in the graph and is
        skipped. Call it before every exchange along a graph.
        """

    def open(self) -> None:
        """Let workers tell all others when they pause or end, so that exchanges go on without them.

        Called in `start`, on every worker, by a strategy that also forms means of all workers; under gossip it is not
        needed.
        """

    def blank(self) -> Flat:
        """Return a vector without a header, of arbitrary numbers, which can be sent without being copied."""

    def written(self, x: Flat) -> Written:
        """Return `x` encoded for the next exchange, by whose number randomness is drawn; as it is without a codec."""

    def hosts(self) -> tuple[str, ...]:
        """Return the host name of every worker, by rank, also of those that may join. All call it in `start`."""

    def exchange(
        self,
        x: SentVector | Mapping[int, SentVector],
        to: Sequence[Edge],
        source: Sequence[Edge],
        *,
        scalars: Sequence[float] = (),
    ) -> UnderWay:
        """Begin exchange `round` + 1: send `x` (or a vector for each rank) along `to`, and receive along `source`.

        The edges are those of one topology for that round. The result has the vectors received, by rank. Under this
        worker's rank it has the worker's own vector, with the weight of its own edge and of the edges to workers
        known to be away. Workers that have paused, ended or died take no part and are not waited for: they are missing
        in the result. Several exchanges may be in flight; wait for them in order.
        """

    def late(self) -> list[NeighbourShare]:
        """Return the vectors of workers that were not waited for, or are many rounds ahead; each once."""

    def ask(self, peer: int, name: str, x: Flat | None = None, **header: Any) -> Work[Answer]:
        """Ask `peer` a question that it serves under `name`; it answers while it computes. The header is plain JSON."""

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """Let `handler` answer questions under `name`, in a task beside this worker.

        A handler is short and never waits. It uses shared vectors under `lock`, and never the model.
        """


@dataclass(kw_only=True)
class NumberedExchanges:
    """A base of the state of a strategy whose exchanges go on from the number at which a checkpoint was taken."""

    round: int = kept("same", default=-1)
    """The number of the newest exchange at the newest pause of all workers; `keep_round` writes it."""


def keep_round(state: Any, neighbours: Neighbours) -> None:
    """Keep the number of the newest exchange in the `state` of a strategy, at a pause of all workers."""
    if isinstance(state, NumberedExchanges):
        state.round = neighbours.round


def restore_round(state: Any, neighbours: Neighbours) -> None:
    """Go on from the number of the newest exchange in the `state` of a strategy, after a checkpoint was loaded."""
    if isinstance(state, NumberedExchanges):
        neighbours.round = state.round


def mixed(received: Mapping[int, NeighbourShare], rank: int) -> Flat:
    """Return the mean of what was `received` by a symmetric W; an absent worker counts as this worker itself."""
    others = [message for peer, message in sorted(received.items()) if peer != rank]
    total = received[rank].x * (1.0 - sum(message.weight for message in others))
    for message in others:
        total.add_(message.x, message.weight)
    return total


def added_up(received: Iterable[NeighbourShare], total: Flat) -> tuple[Flat, float]:
    """Return the sum of the `received` numerators of a push-sum, in `total`, and the sum of their weights."""
    weight = 0.0
    for place, message in enumerate(received):
        if place:
            total.add_(message.x, message.weight)
        else:
            scale_into(message.x, message.weight, total)
        weight += message.weight * message.scalars[0]
    return total, weight
