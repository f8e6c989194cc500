"""Topologies: who is whose neighbour in a round, and with which weight; pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Edge(NamedTuple):
    """One worker that numbers go to, or come from, and what they count there."""

    peer: int
    weight: float


class Topology(Protocol):
    """A graph among workers, which may change from round to round; rounds count from 0.

    In the mixing matrix W, worker i's row holds what the numbers of each worker count in its own mean: those of j
    count W[i, j] there. Columns add up to 1, so that mixing keeps the sum over all workers; where `is_balanced`, rows
    do so as well, and equal numbers stay equal.
    """

    @property
    def directed(self) -> bool:
        """Whether some edge leads one way only; where not, W is symmetric in every round."""

    @property
    def is_balanced(self) -> bool:
        """Whether rows add up to 1 as well."""

    def check(self, size: int) -> None:
        """Raise `ConfigurationError` where there is no such graph among `size` workers."""

    def cycle(self, size: int) -> int:
        """After so many rounds it begins again, or (drawn ones) has come about everywhere."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        """To whom `rank` gives its numbers, and what they count there; itself first, then by rank."""

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        """From whom it gets numbers, and what they count here; itself first, then by rank."""
