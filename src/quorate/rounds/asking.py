"""Whether those that a round waits for are there: they are asked now and then."""

from __future__ import annotations

import math


class Asking:
    """Those that are waited for; `grace` is how long one that was heard of counts as there, in seconds."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._until: dict[int, float] = {}
        """Until when each is to say that it is there, then when it is asked again."""
        self._is_there: set[int] = set()

    def heard(self, rank: int, now: float) -> None:
        """Something came from `rank`."""
        if rank in self._until and rank not in self._is_there:
            self._is_there.add(rank)
            self._until[rank] = now + self._grace

    def forget(self, rank: int) -> None:
        """`rank` is waited for no more."""
        self._until.pop(rank, None)

    def due(self, held: set[int], now: float) -> tuple[list[int], list[int]]:
        """Of those that are waited for now: who has not answered, and who is to be asked (again)."""
        for rank in self._until.keys() - held:
            del self._until[rank]
        for rank in held - self._until.keys():
            self._is_there.add(rank)
            self._until[rank] = now + self._grace
        due = [rank for rank in sorted(held) if self._until[rank] <= now]
        return [rank for rank in due if rank not in self._is_there], [rank for rank in due if rank in self._is_there]

    def asked(self, rank: int, until: float) -> None:
        """`rank` was asked, and is to answer until then."""
        self._is_there.discard(rank)
        self._until[rank] = until

    @property
    def looks_at(self) -> float:
        """When the next of them is due."""
        return min(self._until.values(), default=math.inf)
