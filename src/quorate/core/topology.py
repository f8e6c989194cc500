"""The interface of topologies: the neighbours of each worker in a round, and their weights; pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Edge(NamedTuple):
    """A neighbour that receives or sends numbers, and their weight in the receiver's mean."""

    peer: int
    weight: float


class Topology(Protocol):
    """A graph among workers, which may change from round to round; rounds count from 0.

    In the mixing matrix W, row i holds the weights of all workers' numbers in the mean of worker i: those of j have
    the weight W[i, j]. Columns add up to 1, so that mixing keeps the sum over all workers; where `is_balanced`, rows
    do so as well, and equal numbers stay equal.
    """

    @property
    def directed(self) -> bool:
        """Whether some edge leads in one direction only; if not, W is symmetric in every round."""

    @property
    def is_balanced(self) -> bool:
        """Whether rows add up to 1 as well."""

    def check(self, size: int) -> None:
        """Raise `ConfigurationError` where there is no such graph among `size` workers."""

    def cycle(self, size: int) -> int:
        """Return the number of rounds after which the graph repeats or, if random, has spread numbers everywhere."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        """Return the workers that `rank` sends numbers to, with their weight there; itself first, then by rank."""

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        """Return the workers that `rank` receives numbers from, with their weight here; itself first, then by rank."""
