"""The workers of a run at one moment, and by the hosts that they are on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """The message about deaths that a worker gets from itself: see `Wire.tolerate_deaths`."""

    ranks: Sequence[int]

    def header(self) -> dict[str, Any]:
        """Return the message's header."""
        return {"gone": list(self.ranks)}

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> DeathNotice:
        """Return the notice of a header with the key `gone`."""
        return cls(header["gone"])


@dataclass(frozen=True)
class Members:
    """The workers of the start, of which there are `size`, those that have `joined` since, and the `dead` that the
    others have outlived. It never changes: the next death makes another one."""

    size: int
    joined: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()

    @cached_property
    def everyone(self) -> frozenset[int]:
        """The living, and the dead that have taken part."""
        return self.joined.union(range(self.size))

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """Ranks of the living, in order."""
        return tuple(sorted(self.everyone - self.dead))

    def __contains__(self, rank: int) -> bool:
        return (rank < self.size or rank in self.joined) and rank not in self.dead

    def after(self, *, joined: Iterable[int] = (), dead: Iterable[int] = ()) -> Members:
        """Return the members once these have joined, and these have died."""
        return replace(self, joined=self.joined.union(joined), dead=self.dead.union(dead))

    def of_units(self, units: Sequence[Collection[int]], size: int) -> Members:
        """Return the members of a group that stand for a unit of these workers each, and of which `size` start.

        A member is dead once any worker of its unit is dead, and has joined once all have joined.
        """
        dead = frozenset(place for place, unit in enumerate(units) if not self.dead.isdisjoint(unit))
        return Members(size, frozenset(n for n in range(size, len(units)) if self.joined.issuperset(units[n])), dead)


def by_host(host_of: Callable[[int], int], ranks: Iterable[int]) -> list[list[int]]:
    """Return the ranks of each host, sorted; hosts in order of their lowest ranks (`host_of`), as sums are added."""
    hosts: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        hosts.setdefault(host_of(rank), []).append(rank)
    return [members for _, members in sorted(hosts.items())]
