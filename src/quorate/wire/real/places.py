"""The machine of each worker, as workers write it on the board."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.wire.real.trust import is_signed, machine, signed

_FAREWELL = 30.0


class Places:
    """The machines of all workers: those `known`, and of newcomers once they are on the board."""

    def __init__(self, board: Callable[[], Board], prefix: str, key: bytes, known: dict[int, str]) -> None:
        self._board, self._prefix, self._key, self.known = board, prefix, key, known
        """`known`: the machines by rank."""
        self._hosts: dict[int, int] = {}
        """Hosts by rank, as far as later machines cannot change them."""

    def host_of(self, rank: int) -> int:
        """Return the lowest rank on the host of `rank`; `rank` itself where its place is unknown."""
        if rank in self._hosts:
            return self._hosts[rank]
        place = self._place_of(rank)
        if place is None:
            return rank
        lowest = next(other for other in range(rank + 1) if self._place_of(other) == place)
        if all(other in self.known for other in range(lowest)):
            self._hosts[rank] = lowest
        return lowest

    def _place_of(self, rank: int) -> str | None:
        if rank not in self.known:
            written = self._board().get(f"{self._prefix}/place/{rank}") or b""
            if not is_signed(self._key, "place", rank, written):
                return None
            self.known[rank] = signed(written)
        return self.known[rank]


def are_here(places: Mapping[int, str], *, joins: bool) -> bool:
    """Whether all workers are on this machine. Raises `ConfigurationError` for one that `joins` those of another."""
    machines = set(places.values())
    if joins and len(machines) == 1 and machines != {machine()}:
        raise ConfigurationError("a run on one host is joined by workers on that host only")
    return machines == {machine()}


def part_from(board: Board, prefix: str, rank: int, everyone: Collection[int]) -> None:
    """Wait until all workers, which are refused, know the reason: the board may end with one of them."""
    with suppress(QuorateError):
        board.set(f"{prefix}/refused/{rank}", b"1")
        board.wait([f"{prefix}/refused/{peer}" for peer in everyone], _FAREWELL)
