"""The servers that hold each part of the parameters, and the one that answers for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Holders:
    """The holders of as many parts as there are `servers`: part i lies on server i and the next ones, `count` in all.

    The first living holder of a part answers for it, and the first living server decides.
    """

    servers: tuple[int, ...]
    count: int = 1

    def of(self, part: int) -> tuple[int, ...]:
        """Return the servers that hold a part, the first in line first."""
        return tuple(self.servers[(part + further) % len(self.servers)] for further in range(self.count))

    def parts_of(self, server: int) -> tuple[int, ...]:
        """Return the parts that a server holds."""
        return tuple(part for part in range(len(self.servers)) if server in self.of(part))

    def speaks_for(self, server: int, dead: Collection[int]) -> tuple[int, ...]:
        """Return the parts of which `server` is the first living holder."""
        return tuple(part for part in self.parts_of(server) if self._first(self.of(part), dead) == server)

    def lost(self, dead: Collection[int]) -> tuple[int, ...]:
        """Return the parts of which all holders are dead."""
        return tuple(part for part in range(len(self.servers)) if self._first(self.of(part), dead) is None)

    def living(self, dead: Collection[int]) -> tuple[int, ...]:
        """Return the servers that are not dead."""
        return tuple(server for server in self.servers if server not in dead)

    def first(self, dead: Collection[int]) -> int | None:
        """Return the server that decides: the first living one."""
        return self._first(self.servers, dead)

    @staticmethod
    def _first(servers: Collection[int], dead: Collection[int]) -> int | None:
        return next((server for server in servers if server not in dead), None)
