"""Workers by the hosts that they are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def by_host(host_of: Callable[[int], int], ranks: Iterable[int]) -> list[list[int]]:
    """Those of each host, by rank; hosts in order of their lowest ranks, which `host_of` gives. So are sums added."""
    found: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        found.setdefault(host_of(rank), []).append(rank)
    return [own for _, own in sorted(found.items())]
