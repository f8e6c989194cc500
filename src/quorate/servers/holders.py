"""Which servers have which part of the parameters, and who speaks for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Holders:
    """Of as many parts as there are `servers`: part i is on the i-th of them and on the next ones, `count` in all.

    The first living holder of a part answers for it, and the first living server decides.
    """

    servers: tuple[int, ...]
    count: int = 1

    def of(self, part: int) -> tuple[int, ...]:
        """The servers that have a part, in line."""
        return tuple(self.servers[(part + further) % len(self.servers)] for further in range(self.count))

    def parts_of(self, server: int) -> tuple[int, ...]:
        """What a server has."""
        return tuple(part for part in range(len(self.servers)) if server in self.of(part))

    def speaks_for(self, server: int, dead: Collection[int]) -> tuple[int, ...]:
        """The parts for which it is the first living holder."""
        return tuple(part for part in self.parts_of(server) if self._first(self.of(part), dead) == server)

    def lost(self, dead: Collection[int]) -> tuple[int, ...]:
        """The parts that nobody has any more."""
        return tuple(part for part in range(len(self.servers)) if self._first(self.of(part), dead) is None)

    def living(self, dead: Collection[int]) -> tuple[int, ...]:
        """The servers that there are."""
        return tuple(server for server in self.servers if server not in dead)

    def first(self, dead: Collection[int]) -> int | None:
        """Who decides."""
        return self._first(self.servers, dead)

    @staticmethod
    def _first(some: Collection[int], dead: Collection[int]) -> int | None:
        return next((one for one in some if one not in dead), None)
