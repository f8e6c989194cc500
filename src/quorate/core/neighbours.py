"""The other workers one by one, as a strategy sees them: exchanges along edges, questions and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from quorate.core.contracts import Work
from quorate.core.topology import Edge
from quorate.core.vectors import Flat


@dataclass(frozen=True)
class Given:
    """What one worker has given in an exchange. `x` may be the memory of its sender: it is not written to."""

    x: Flat
    weight: float
    """What it counts here, as its sender has it."""
    scalars: tuple[float, ...]
    round: int


@dataclass(frozen=True)
class Request:
    """A question of another worker, to be answered by `reply`, once, now or later; from any thread."""

    source: int
    name: str
    sequence: int
    """Grows from one question of this source to its next."""
    x: Flat | None
    """May be the memory of its sender: it is not written to."""
    header: Mapping[str, Any]
    reply: Callable[..., None]
    """`reply(x=None, **header)`; `x` is not written to any more."""


class UnderWay(Work[dict[int, Given]], Protocol):
    """An exchange under way; its result is what was given here, by rank, this worker's own among it."""

    @property
    def own(self) -> Given | None:
        """What this worker has kept of its own `x`, known at once; None where it gave to others only."""
        ...


Answer = tuple[Flat | None, Mapping[str, Any]]


class Neighbours(Protocol):
    """The other workers, one by one. Vectors that are given are not written to any more: `blank` makes new ones."""

    rank: int
    size: int
    round: int
    """The number of the newest exchange that was begun, from 0; -1 before the first. Equal on all workers that step
    together, and made equal (the greatest) whenever all have rested."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards vectors that are kept, between the training thread and handlers; not held across a wait."""
        ...

    def blank(self) -> Flat:
        """A vector to be filled, and then given without being copied."""
        ...

    def exchange(
        self, x: Flat | Mapping[int, Flat], to: Sequence[Edge], source: Sequence[Edge], *, scalars: Sequence[float] = ()
    ) -> UnderWay:
        """Round `round` + 1: give `x` (or to each its own) along `to`, get what comes along `source`.

        The result holds, by rank, what has come, and under this worker's own rank what it keeps: of its own `x`, its
        own edge and the edges to those that it knows to be away. Who has ended, or rests, takes no part and is not
        waited for: its entry is missing. Edges are those of one topology for round `round` + 1. Several exchanges may
        be under way; they are waited for in order.
        """
        ...

    def ask(self, peer: int, name: str, x: Flat | None = None, **header: Any) -> Work[Answer]:
        """Ask `peer` what it serves under `name`; it answers while it computes. The header is plain JSON."""
        ...

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """Let a task beside this worker answer questions under `name`.

        A handler is short and never waits; it touches vectors that are kept, under `lock`, and never the model.
        """
        ...


def mixed(found: Mapping[int, Given], rank: int) -> Flat:
    """The mean of what was found by a symmetric W; who was away counts as this worker itself."""
    others = [given for peer, given in sorted(found.items()) if peer != rank]
    total = found[rank].x * (1.0 - sum(given.weight for given in others))
    for given in others:
        total.add_(given.x, given.weight)
    return total


def added_up(found: Iterable[Given], total: Flat) -> tuple[Flat, float]:
    """Push-sum: the shares of numerators that were found, added up in `total`, and those of weights."""
    weight = 0.0
    for place, given in enumerate(found):
        if place:
            total.add_(given.x, given.weight)
        else:
            given.x.times(given.weight, total)
        weight += given.weight * given.scalars[0]
    return total, weight
