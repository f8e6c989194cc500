"""The other workers one by one, as a strategy sees them: exchanges along edges, questions and answers."""

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
class Given:
    """The vector of one worker in an exchange. `x` may be the memory of its sender: it is not written to."""

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
    """May be the memory of its sender: it is not written to."""
    header: Mapping[str, Any]
    reply: Callable[..., None]
    """`reply(x=None, **header)`; `x` is not written to any more."""


@dataclass(frozen=True)
class Written:
    """A vector that a codec has written small; `Neighbours.written` makes it."""

    x: Flat
    """The vector that its receivers read, to the bit."""


Gift = Flat | Written
"""A vector for a neighbour: as it is, or written small."""


class EdgeCodec(Protocol):
    """How vectors are written small for neighbours, as `compress` says. It remembers nothing."""

    @property
    def is_biased(self) -> bool:
        """Whether what is read differs in the mean from what was written."""

    @property
    def left_out(self) -> float:
        """The squared error of what is read, as a share of the squared norm: of small, normally distributed numbers."""


class UnderWay(Work[dict[int, Given]], Protocol):
    """An exchange under way; its result is what was given here, by rank, this worker's own among it."""

    @property
    def own(self) -> Given | None:
        """The part of its own `x` that this worker keeps, known at once; None if it sent to others only."""

    def within(self, seconds: float | None) -> dict[int, Given]:
        """Wait as `wait`, without workers that have not sent after so many seconds, or are silent since; None: `wait`.

        What they give after all comes to `Neighbours.late`.
        """


Answer = tuple[Flat | None, Mapping[str, Any]]
"""None and an empty header where the one that was asked has died."""


class Neighbours(Protocol):
    """The other workers, one by one. Vectors that are given are not written to any more: `blank` makes new ones."""

    round: int
    """The number of the newest exchange that was begun, from 0; -1 before the first. Equal on all workers that step
    together, and made equal (the greatest) whenever all have rested."""
    has_moments: bool
    """Whether vectors hold what the optimizer keeps as well, as `OwnReplica.read` does; set in `start` by all."""

    @property
    def codec(self) -> EdgeCodec | None:
        """How `written` writes vectors small; None: not at all."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards vectors that are kept, between the training thread and handlers; not held across a wait."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All workers that there have been, in order: those of the start, and those that have joined since.

        The dead are among them. From one mean of all workers to the next the same on all.
        """

    @property
    def dead(self) -> frozenset[int]:
        """The ranks that have died, as far as this worker knows; others may know of more, or fewer."""

    def members(self) -> tuple[int, ...]:
        """Among whom the graph of exchange `round` + 1 lies, by rank: the same on every worker that begins it.

        All, less those that have died. Until all survivors know of a death, the dead rank stays in the graph and is
        skipped. Asked before every exchange along a graph.
        """

    def open(self) -> None:
        """From now on a worker that rests or ends tells all others, so that exchanges go on without it.

        Called in `start`, on every worker, by a strategy that also forms means of all workers; under gossip it holds
        from the beginning.
        """

    def blank(self) -> Flat:
        """A vector to be filled, and then given without being copied."""

    def written(self, x: Flat) -> Written:
        """`x`, written small for the next exchange, whose number randomness is drawn for; as it is without a codec."""

    def hosts(self) -> tuple[str, ...]:
        """The name of the machine of every worker, by rank, those that may yet join among them. All ask, in `start`."""

    def exchange(
        self, x: Gift | Mapping[int, Gift], to: Sequence[Edge], source: Sequence[Edge], *, scalars: Sequence[float] = ()
    ) -> UnderWay:
        """Round `round` + 1: give `x` (or to each its own) along `to`, get what comes along `source`.

        The result holds, by rank, what has come, and under this worker's own rank what it keeps: of its own `x`, its
        own edge and the edges to those that it knows to be away. Who has ended, died, or rests, takes no part and is
        not waited for: its entry is missing. Edges are those of one topology for round `round` + 1. Several exchanges
        may be under way; they are waited for in order.
        """

    def late(self) -> list[Given]:
        """Return the vectors of workers that were not waited for, or are many rounds ahead; each once."""

    def ask(self, peer: int, name: str, x: Flat | None = None, **header: Any) -> Work[Answer]:
        """Ask `peer` what it serves under `name`; it answers while it computes. The header is plain JSON."""

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """Let a task beside this worker answer questions under `name`.

        A handler is short and never waits; it touches vectors that are kept, under `lock`, and never the model.
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


def mixed(received: Mapping[int, Given], rank: int) -> Flat:
    """Return the mean of what was `received` by a symmetric W; an absent worker counts as this worker itself."""
    others = [message for peer, message in sorted(received.items()) if peer != rank]
    total = received[rank].x * (1.0 - sum(message.weight for message in others))
    for message in others:
        total.add_(message.x, message.weight)
    return total


def added_up(received: Iterable[Given], total: Flat) -> tuple[Flat, float]:
    """Return the sum of the `received` numerators of a push-sum, in `total`, and the sum of their weights."""
    weight = 0.0
    for place, message in enumerate(received):
        if place:
            total.add_(message.x, message.weight)
        else:
            scale_into(message.x, message.weight, total)
        weight += message.weight * message.scalars[0]
    return total, weight
