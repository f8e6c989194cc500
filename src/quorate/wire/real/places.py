"""On which machine each worker is, as workers have written it on the board."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.wire.real.trust import is_signed, machine, signed

_FAREWELL = 30.0


class Places:
    """Of all workers: of those that are `known`, and of who joins, as soon as that is on the board."""

    def __init__(self, board: Callable[[], Board], prefix: str, key: bytes, known: dict[int, str]) -> None:
        self._board, self._prefix, self._key, self.known = board, prefix, key, known
        """`known`: the machine of each, by rank."""
        self._hosts: dict[int, int] = {}
        """By rank, as far as nothing that comes to be known changes it."""

    def host_of(self, rank: int) -> int:
        """The lowest rank on its host; its own where its place is not known."""
        if rank in self._hosts:
            return self._hosts[rank]
        place = self._place_of(rank)
        if place is None:
            return rank
        found = next(other for other in range(rank + 1) if self._place_of(other) == place)
        if all(other in self.known for other in range(found)):
            self._hosts[rank] = found
        return found

    def _place_of(self, rank: int) -> str | None:
        if rank not in self.known:
            written = self._board().get(f"{self._prefix}/place/{rank}") or b""
            if not is_signed(self._key, "place", rank, written):
                return None
            self.known[rank] = signed(written)
        return self.known[rank]


def are_here(places: Mapping[int, str], *, joins: bool) -> bool:
    """Whether all who began are on this machine. Raises `ConfigurationError` for one that `joins` those of another."""
    machines = set(places.values())
    if joins and len(machines) == 1 and machines != {machine()}:
        raise ConfigurationError("a run on one host is joined by workers on that host only")
    return machines == {machine()}


def part_from(board: Board, prefix: str, rank: int, everyone: Collection[int]) -> None:
    """All are refused; the board may go with one of them, so none goes before the others have seen why."""
    with suppress(QuorateError):
        board.set(f"{prefix}/refused/{rank}", b"1")
        board.wait([f"{prefix}/refused/{peer}" for peer in everyone], _FAREWELL)
