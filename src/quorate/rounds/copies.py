"""Who is to copy whose replica: for members that miss more than the log still has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

AGAIN_SECONDS = 2.0
"""After which a copy that did not come is asked for again."""


class Copies:
    """Those under way, as their leader (`rank`) knows them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._until: dict[int, float] = {}
        self._sources: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    def ended(self, to: int) -> None:
        """`to` has spoken since."""
        self._until.pop(to, None)

    def source_for(self, to: int, fit: Sequence[int], now: float) -> int | None:
        """Whose replica `to` copies, of those that miss nothing: the leader's, and when asked again another one's.

        None while a copy is on its way.
        """
        if self._until.get(to, now) > now:
            return None
        self._until[to] = now + AGAIN_SECONDS
        others = [self._rank, *(rank for rank in fit if rank not in (self._rank, to))]
        asked = self._asked[to] = self._asked.get(to, -1) + 1
        self._sources[to] = others[asked % len(others)]
        return self._sources[to]

    def have_died(self, ranks: Iterable[int]) -> list[int]:
        """These have died; who waits for a copy of one of them."""
        dead = set(ranks)
        left = [to for to, source in self._sources.items() if source in dead and to in self._until]
        for to in [*left, *dead]:
            self._until.pop(to, None)
            self._sources.pop(to, None)
        return [to for to in left if to not in dead]
