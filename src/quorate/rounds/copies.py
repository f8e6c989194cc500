"""Copies of replicas, as the leader assigns them: for members that miss more than the log has, and for newcomers.

A newcomer asks for a copy of a replica, which comes from a worker that steps. The copy is of one *era*, the rounds
between two pauses, since collective calls of workers are counted from there. Then it asks to be let in. The next round
names it among those that have joined, on every worker, if it has all rounds before that one and its copy is of the same
era. Otherwise it copies again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quorate.core.fields import Fields, Header
from quorate.rounds.forming import on_one_host
from quorate.rounds.log import Jump, Log
from quorate.rounds.messages import Note

AGAIN_SECONDS = 2.0  # seconds after which a copy that did not come is asked for again


@dataclass(frozen=True)
class Copy:
    """The message of a copy of a replica to another worker's member."""

    jump: Jump
    leads: int
    logged: int
    replica: dict[str, Any]  # open: made and read by the replica; see `entering.Replica.capture`
    is_whole: bool  # whether it is for a newcomer, with the optimizer, the strategy's state and the place in the data
    tensors: Sequence[Tensor] = ()
    place: int = 0  # in a replica in pieces, its number among the copies that came: added on arrival

    def header(self) -> dict[str, Any]:
        about = {"kind": "copy", "term": self.jump.term, **self.jump.state.header(), "leads": self.leads}
        return {**about, "logged": self.logged, "replica": self.replica, "is_whole": self.is_whole}

    @classmethod
    def read(cls, header: Header, tensors: Sequence[Tensor] = ()) -> Copy:
        leads, logged, place = header["leads"], header["logged"], header.get("place", 0)
        return cls(Jump.read(header), leads, logged, header["replica"], header["is_whole"], tensors, place)


@dataclass(frozen=True, slots=True)
class CopyFor(Fields):
    """The message of the leader to a worker that has to copy its replica to worker `rank`."""

    kind: str = field(init=False, default="copy for")
    rank: int
    is_new: bool


class Copies:
    """The copies under way, as leader `rank` knows them."""

    def __init__(self, rank: int, host_of: Callable[[int], int] = on_one_host) -> None:
        self._rank, self._host_of = rank, host_of
        self._until: dict[int, float] = {}
        self._sources: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._needs: dict[int, int] = {}

    def needs(self, now: float) -> int | None:
        """Return the oldest round that workers may miss after the copies under way; None where there are none."""
        return min([self._needs[to] for to, until in self._until.items() if until > now], default=None)

    def ended(self, to: int) -> None:
        self._until.pop(to, None)

    def source_for(self, to: int, fit: Sequence[int], now: float, oldest: int) -> int | None:
        """Return the worker whose replica `to` copies: the leader, or another of `fit` when it asks again. Where there
        are several hosts, first those on the host of `to`, then the others from the next rank on, so that not every
        copy comes from the leader's host. None while a copy is on its way. The rounds from `oldest` on, which is what
        the log has now, are kept until the copy has arrived (see `needs`)."""
        if self._until.get(to, now) > now:
            return None
        self._until[to], self._needs[to] = now + AGAIN_SECONDS, oldest
        others = [self._rank, *(rank for rank in fit if rank not in (self._rank, to))]
        if len({self._host_of(rank) for rank in (*others, to)}) > 1:
            host, most = self._host_of(to), max(others) + 1
            others.sort(key=lambda rank: (self._host_of(rank) != host, (rank - to) % most))
        asked = self._asked[to] = self._asked.get(to, -1) + 1
        self._sources[to] = others[asked % len(others)]
        return self._sources[to]

    def have_died(self, ranks: Iterable[int]) -> list[int]:
        """Note that `ranks` have died; return the workers that wait for a copy of one of them."""
        dead = set(ranks)
        left = [to for to, source in self._sources.items() if source in dead and to in self._until]
        for to in [*left, *dead]:
            self._until.pop(to, None)
            self._sources.pop(to, None)
        return [to for to in left if to not in dead]


class Entrance:
    """The newcomers outside, some of which are ready."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ready: set[int] = set()
        self._hastening: set[int] = set()

    def knocked(self, rank: int, note: Note, logged: int) -> int | None:
        """Return the newest round that counts (-1: none) of a newcomer that knocks; None for other notes."""
        if note.note == "enter" and note.era == self._log.era:
            self._ready.add(rank)
            if note.hastens:
                self._hastening.add(rank)
            return logged  # also where it misses nothing: a new leader does not know that
        if note.note in ("enter", "copy"):
            self._ready.discard(rank)
            self._hastening.discard(rank)
            return -1
        return None

    def calls(self, has: Mapping[int, int]) -> bool:
        """Return whether a round has to start so that a newcomer steps; `has` is the newest round of each worker."""
        return bool(self._hastening) and any(has[rank] == self._log.newest for rank in self._hastening)

    def let_in(self, number: int, has: Mapping[int, int], *, is_pause: bool) -> tuple[int, ...]:
        """Return the newcomers that step from round `number` on; `has` is the newest round of each worker."""
        if is_pause:
            self._ready.clear()
            self._hastening.clear()
        entering = tuple(rank for rank in sorted(self._ready) if has[rank] == number - 1)
        self._ready.difference_update(entering)
        self._hastening.difference_update(entering)
        return entering

    def have_died(self, ranks: set[int]) -> None:
        """Forget workers that have died."""
        self._ready -= ranks
        self._hastening -= ranks
