"""Workers by the hosts that they are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def by_host(host_of: Callable[[int], int], ranks: Iterable[int]) -> list[list[int]]:
    """Return the ranks of each host, sorted; hosts in order of their lowest ranks (`host_of`), as sums are added."""
    hosts: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        hosts.setdefault(host_of(rank), []).append(rank)
    return [members for _, members in sorted(hosts.items())]
