"""How sums among the workers of several hosts are shared out: which worker of each host does what. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorate.core.hosts import by_host
from quorate.wire.cut import WHOLE_BYTES, piece


@dataclass(frozen=True)
class Layout:
    """`hosts` has the ranks on each host, in order; hosts are in order of their lowest ranks, in which they are added.

    A tensor is cut into one slice for each worker of the largest host. Slice s is exchanged by worker s of each host,
    counted round and round where a host has fewer; so a host's workers share out what goes through its cable.
    """

    hosts: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Slices of a tensor."""
        return max(map(len, self.hosts))

    def heads(self, index: int) -> list[int]:
        """Who exchanges slice `index`: a rank of each host."""
        return [ranks[index % len(ranks)] for ranks in self.hosts]

    def place_of(self, rank: int) -> int:
        """Of its host, in order."""
        return next(place for place, ranks in enumerate(self.hosts) if rank in ranks)

    def slices(self, number: int, numel: int, itemsize: int) -> list[tuple[int, slice]]:
        """Of sum `number`: the slices that are not empty, each with its index."""
        if numel * itemsize <= WHOLE_BYTES:
            return [(number % self.width, slice(0, numel))]
        cut = [(index, piece(numel, index, self.width)) for index in range(self.width)]
        return [(index, here) for index, here in cut if here.stop > here.start]


def layout_of(size: int, host_of: Callable[[int], int]) -> Layout:
    """Of workers 0 to `size` - 1, where `host_of` gives the lowest rank on the host of each."""
    return Layout(tuple(map(tuple, by_host(host_of, range(size)))))
