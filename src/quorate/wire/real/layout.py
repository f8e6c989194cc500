"""The slices of sums among several hosts, and the worker of each host that exchanges a slice; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorate.core.hosts import by_host
from quorate.wire.cut import WHOLE_BYTES, piece


@dataclass(frozen=True)
class Layout:
    """`hosts` has the ranks on each host, in order; hosts are in order of their lowest ranks, in which they are added.

    A tensor is cut into one slice for each worker of the largest host. Slice s is exchanged by worker s of each host,
    modulo their number where a host has fewer; so a host's workers share the traffic of its cable.
    """

    hosts: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Number of slices of a tensor."""
        return max(map(len, self.hosts))

    def heads(self, index: int) -> list[int]:
        """Return the ranks, one of each host, that exchange slice `index`."""
        return [ranks[index % len(ranks)] for ranks in self.hosts]

    def place_of(self, rank: int) -> int:
        """Return the number of the host of `rank`."""
        return next(place for place, ranks in enumerate(self.hosts) if rank in ranks)

    def slices(self, number: int, numel: int, itemsize: int) -> list[tuple[int, slice]]:
        """Return the slices of sum `number` that are not empty, each with its index."""
        if numel * itemsize <= WHOLE_BYTES:
            return [(number % self.width, slice(0, numel))]
        cut = [(index, piece(numel, index, self.width)) for index in range(self.width)]
        return [(index, here) for index, here in cut if here.stop > here.start]


def layout_of(size: int, host_of: Callable[[int], int]) -> Layout:
    """Return the layout of workers 0 to `size` - 1; `host_of` returns the lowest rank on the host of each."""
    return Layout(tuple(map(tuple, by_host(host_of, range(size)))))
