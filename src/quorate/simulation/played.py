"""The actions of simulated workers: every step of every worker in columns, and the rounds they formed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from quorate.simulation.busy import Busy, Drawn
from quorate.simulation.codes import Codes
from quorate.simulation.links import Links

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

Watch = Callable[[float], None]
"""Called now and then with the completed share of the work, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case to simulate, whatever the strategy."""

    workers: int
    steps: int
    """Steps of the fastest worker; all are active until it has taken them."""
    parameters: int
    """Numbers that are agreed on, four bytes each."""
    busy: Busy
    links: Links
    seed: int = 0
    examples: int | None = None
    """Examples of each step of a worker; None where they are not counted."""
    watch: Watch = lambda share: None
    codes: Codes | None = None
    """The messages in place of a vector; None: the vector."""

    @cached_property
    def drawn(self) -> Drawn:
        """`busy`, with every step drawn once."""
        return self.busy if isinstance(self.busy, Drawn) else Drawn(self.busy, self.workers)

    @property
    def nbytes(self) -> int:
        """Bytes of a vector in a message: its numbers, and a header with a place for every worker. Other contents of
        messages are not counted, as in records."""
        return 4 * (self.parameters + 38 + self.workers)


@dataclass
class Played:
    """Columns with an entry for each step: in the order of time for each rank, ranks in any order. Seconds."""

    rank: array[int] = field(default_factory=lambda: array("l"))
    begin: array[float] = field(default_factory=lambda: array("d"))
    arrive: array[float] = field(default_factory=lambda: array("d"))
    """When it reached the meeting point."""
    last: array[float] = field(default_factory=lambda: array("d"))
    """When the last worker arrived for which it waited (or before `arrive`, without waiting)."""
    done: array[float] = field(default_factory=lambda: array("d"))
    """When its exchange was over."""
    end: array[float] = field(default_factory=lambda: array("d"))
    rounds: list[Formed] = field(default_factory=list)
    """Means that were formed; none under gossip."""
    bytes_out: float = 0.0
    """Bytes sent by all workers."""
    coding: float = 0.0
    """Seconds of encoding and decoding of all workers."""
    contributors: float | None = None
    """Workers whose numbers are in an update, where there are no rounds."""

    def step(self, rank: int, begin: float, arrive: float, last: float, done: float, end: float) -> None:
        """Add a step; its index is `len(self.rank) - 1` afterwards."""
        self.rank.append(rank)
        self.begin.append(begin)
        self.arrive.append(arrive)
        self.last.append(last)
        self.done.append(done)
        self.end.append(end)

    def steps(self, begin: Column, arrive: Column, last: Column, done: Column, end: Column) -> None:
        """Add a step of each worker, by rank."""
        self.rank.extend(range(len(begin)))
        for column, seconds in (
            (self.begin, begin), (self.arrive, arrive), (self.last, last), (self.done, done), (self.end, end),
        ):  # fmt: skip
            column.frombytes(seconds.tobytes())


@dataclass(slots=True)
class Formed:
    """One mean."""

    time: float
    """When it was formed."""
    contributors: int
    """Workers that contributed."""
    stalenesses: Mapping[int, int]
    """Numbers of contributions by staleness."""
