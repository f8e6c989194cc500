"""What simulated workers did: every step of every worker in columns, and the rounds they made."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorate.simulation.busy import Busy
from quorate.simulation.codes import Codes
from quorate.simulation.links import Links

Watch = Callable[[float], None]
"""Told now and then which share of the work is done, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is simulated, whatever the strategy."""

    workers: int
    steps: int
    """Of the fastest worker; all are at work until it has taken them."""
    parameters: int
    """Numbers that are agreed on, four bytes each."""
    busy: Busy
    links: Links
    seed: int = 0
    examples: int | None = None
    """Of each step of a worker; None where nothing counts them."""
    watch: Watch = lambda share: None
    codes: Codes | None = None
    """What travels in place of a vector; None: the vector."""

    @property
    def nbytes(self) -> int:
        """Of a vector as it travels: its numbers, and a header with a place for every worker. What messages say besides
        is not counted, as it is not in records."""
        return 4 * (self.parameters + 33 + self.workers)


@dataclass
class Played:
    """Columns with an entry for each step: in the order of time for each rank, ranks in any order. Seconds."""

    rank: array[int] = field(default_factory=lambda: array("l"))
    begin: array[float] = field(default_factory=lambda: array("d"))
    arrive: array[float] = field(default_factory=lambda: array("d"))
    """When it came to the meeting point."""
    last: array[float] = field(default_factory=lambda: array("d"))
    """When the last one came for whom it waited there (or before `arrive`, where it waited for nobody)."""
    done: array[float] = field(default_factory=lambda: array("d"))
    """When its exchange was over."""
    end: array[float] = field(default_factory=lambda: array("d"))
    rounds: list[Formed] = field(default_factory=list)
    """Means that were formed; none under gossip."""
    bytes_out: float = 0.0
    """Sent by all workers in all."""
    coding: float = 0.0
    """Seconds that all workers have encoded and decoded."""
    contributors: float | None = None
    """Whose numbers are in an update, where there are no rounds."""

    def step(self, rank: int, begin: float, arrive: float, last: float, done: float, end: float) -> None:
        """One more step; its place is what `len(self.rank) - 1` is then."""
        self.rank.append(rank)
        self.begin.append(begin)
        self.arrive.append(arrive)
        self.last.append(last)
        self.done.append(done)
        self.end.append(end)


@dataclass(slots=True)
class Formed:
    """One mean."""

    time: float
    """When it was formed."""
    contributors: int
    """Workers with something in it."""
    stalenesses: Mapping[int, int]
    """Contributions by how many rounds older than the newest parameters those were that they were computed on."""
