"""Which gradients the next step of the servers is made of, and who reads the parameters behind it.

Pure: takes what workers have pushed and gives decisions. Every server carries out the same decisions in the same order,
so that parameters in several parts are always those of one version. What the modes mean:

- sync: a step is the mean of the gradients of all workers that are there but `backup`, all of parameters of one version
  (Chen et al. 2016, Algorithms 3 and 4). One that comes later is dropped, or counts in the next step.
- async: a step for every gradient, or with n-softsync for every P // n of them (Zhang et al. 2016, Equation 5).
- bounded: as async, but a worker that has pushed c gradients reads when everyone has pushed c - `max_staleness` (Ho et
  al. 2013): it sees all that is older than that, its own, and what else has come. What has come between two reads is
  one step, so that bound 0 is synchronous training with any optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from quorate.core.servers import ServerTerms


@dataclass(frozen=True)
class Push:
    """What a worker has pushed: its gradient number `number` (from 1), the mean of `count` steps on parameters of
    `version`; with 0 there is none, and nobody waits for it."""

    source: int
    number: int
    version: int
    count: int = 1
    reads: bool = True


@dataclass(frozen=True)
class Taken:
    """A gradient in a step: what it counts there (all of a step count 1), and how stale it is, in steps."""

    source: int
    number: int
    factor: float
    staleness: int


@dataclass(frozen=True)
class Decision:
    """Make a step of `taken`, if there are any, with the learning rate times `rate`; forget the `dropped`, then let the
    `readers` read version `version`."""

    version: int
    taken: tuple[Taken, ...] = ()
    rate: float = 1.0
    dropped: tuple[tuple[int, int], ...] = ()
    """Source and number."""
    readers: tuple[int, ...] = ()
    options_of: tuple[int, int] = (-1, 0)
    """Whose learning rate and the rest the step is made with: source and number."""
    is_last: bool = False
    """Whether nobody pushes any more until all set out again: the readers rest."""
    there: tuple[int, ...] = ()
    """Who sets out then: the readers that have not ended."""


@dataclass
class _There:
    """A worker that pushes."""

    clock: int = 0
    """How many gradients of it have been taken in."""
    asked: list[int] = field(default_factory=list)
    """How many had been when it asked to read, for each time that it has and has not."""
    leaves: Literal["", "rests", "ended"] = ""
    """How it does when all that it has pushed is taken in."""


@dataclass
class Order:
    """That of the workers `there`, as they set out together from `version`; `everyone` counts for shares of a step."""

    terms: ServerTerms
    there: Iterable[int]
    everyone: int
    version: int = 0
    ended: frozenset[int] = frozenset()
    """Who is not there any more, and lives."""
    _workers: dict[int, _There] = field(init=False)
    _pending: list[Push] = field(default_factory=list)
    _held: dict[tuple[int, int], Push] = field(default_factory=dict)
    """What has come before its turn, by number and source."""
    _rested: set[int] = field(default_factory=set)
    """Who has left, and is to be there again."""
    _asking: set[int] = field(default_factory=set)
    """Who has left, and is to read what all have come to."""

    def __post_init__(self) -> None:
        self._workers = {rank: _There() for rank in self.there}

    def came(self, push: Push) -> list[Decision]:
        """A worker has pushed."""
        if not self.terms.in_order:
            return self._take(push)
        self._held[push.number, push.source] = push
        return self._in_turn()

    def leaves(self, rank: int, how: Literal["rests", "ended"]) -> list[Decision]:
        """A worker pushes no more, until all set out again or for good."""
        worker = self._workers.get(rank)
        if worker is None:
            return []
        if any(source == rank for _, source in self._held):
            worker.leaves = how
            return []
        del self._workers[rank]
        if how == "rests":
            self._rested.add(rank)
        else:
            self.ended |= {rank}
        return [*self._in_turn(), *self._go_on()]

    def died(self, rank: int) -> list[Decision]:
        """A worker has died: nobody waits for it, and what has not come of it never does."""
        self.everyone = max(1, self.everyone - 1)
        self._workers.pop(rank, None)
        self.ended -= {rank}
        self._rested.discard(rank)
        self._asking.discard(rank)
        held = sorted(key for key in self._held if key[1] == rank)
        never = tuple((source, number) for number, source in held)
        for key in held:
            del self._held[key]
        dropped = [Decision(self.version, dropped=never)] if never else []
        return [*dropped, *self._in_turn(), *self._go_on()]

    def asks(self, rank: int) -> list[Decision]:
        """A worker that leaves asks to read what all have come to when all have left."""
        self._asking.add(rank)
        return self._go_on()

    # -- inside

    def _in_turn(self) -> list[Decision]:
        """Take in what has come, by number and then by source."""
        found: list[Decision] = []
        while self._workers:
            number, source = min((one.clock + 1, rank) for rank, one in self._workers.items())
            push = self._held.pop((number, source), None)
            if push is None:
                break
            found += self._take(push)
            if how := self._workers[source].leaves:
                found += self.leaves(source, how)
        return found

    def _take(self, push: Push) -> list[Decision]:
        worker = self._workers.get(push.source)
        if worker is None:  # it has been taken for dead
            return [Decision(self.version, dropped=((push.source, push.number),))]
        worker.clock = push.number
        if self.terms.mode == "sync" and push.version < self.version:
            return self._too_late(push)
        if push.reads:
            worker.asked.append(push.number)
        self._pending.append(push)
        return self._go_on()

    def _too_late(self, push: Push) -> list[Decision]:
        """Its step has been made without it: it goes on at once."""
        dropped: tuple[tuple[int, int], ...] = ()
        if self.terms.late == "carry":
            self._pending.append(push)
        else:
            dropped = ((push.source, push.number),)
        return [Decision(self.version, dropped=dropped, readers=(push.source,) if push.reads else ())]

    def _go_on(self) -> list[Decision]:
        found: list[Decision] = []
        while (one := self._next()) is not None:
            found.append(one)
        if self._workers:
            return found
        if self._pending:
            found.append(self._step(()))
        if self._asking and self._asking >= (self._rested or self.ended):
            readers, self._asking = tuple(sorted(self._asking)), set()
            there = tuple(rank for rank in readers if rank not in self.ended)
            found.append(Decision(self.version, readers=readers, is_last=True, there=there))
        return found

    def _next(self) -> Decision | None:
        """The next decision, if what has come makes one possible."""
        terms, workers = self.terms, self._workers
        if not workers:
            return None
        waiting = [rank for rank, one in workers.items() if one.asked]
        if terms.mode == "sync":
            fresh = sum(push.version == self.version for push in self._pending)
            if fresh and fresh >= max(1, len(workers) - terms.backup):
                return self._step(tuple(waiting))
            return None
        if terms.mode == "bounded":
            least = min(one.clock for one in workers.values()) + terms.max_staleness
            ready = tuple(rank for rank in waiting if workers[rank].asked[0] <= least)
            if not ready:
                return None
            return self._step(ready) if self._pending else self._read(ready)
        group = 1 if terms.softsync is None else max(1, len(workers) // terms.softsync)
        if len(self._pending) >= group:
            return self._step(tuple(waiting))
        return self._read(tuple(waiting)) if waiting else None

    def _read(self, readers: tuple[int, ...]) -> Decision:
        for rank in readers:
            if rank in self._workers:
                self._workers[rank].asked.pop(0)
        return Decision(self.version, readers=readers)

    def _step(self, readers: tuple[int, ...]) -> Decision:
        terms = self.terms
        come, self._pending = sorted(self._pending, key=lambda one: (one.number, one.source)), []
        pushes = [push for push in come if push.count]
        without = tuple((push.source, push.number) for push in come if not push.count)
        if not pushes:
            return replace(self._read(readers), dropped=without)
        ages = [self.version - push.version for push in pushes]
        scales = [1 / max(1, age) if terms.staleness_scaling == "inverse" else 1.0 for age in ages]
        counts = [push.count * scale for push, scale in zip(pushes, scales, strict=True)]
        total = sum(counts)
        taken = tuple(
            Taken(push.source, push.number, count / total, age)
            for push, count, age in zip(pushes, counts, ages, strict=True)
        )
        among = self.everyone if terms.step_size == "share" else len(pushes)
        is_whole = terms.mode == "sync" or (terms.mode == "bounded" and not terms.max_staleness)
        rate = 1.0 if is_whole else total / among
        self.version += 1
        self._read(readers)
        newest = max(pushes, key=lambda one: (one.number, -one.source))
        return Decision(self.version, taken, rate, without, readers, (newest.source, newest.number))
