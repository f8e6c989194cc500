"""Which gradients the next step of the servers is made of, and who reads the parameters behind it.

Pure: takes what workers have pushed and gives decisions. Every server carries out the same decisions in the same order,
so that parameters in several parts are always those of one version. What the modes mean:

- sync: a step is the mean of the gradients of all workers that are there but `backup`, all of parameters of one version
  (Chen et al. 2016, Algorithms 3 and 4). One that comes later is dropped, or counts in the next step.
- async: a step for every gradient, or with n-softsync for every P // n of them (Zhang et al. 2016, Equation 5).
- bounded: as async, but a worker that has pushed c gradients reads when everyone has pushed c - `max_staleness` (Ho et
  al. 2013): it sees all that is older than that, its own, and what else has come. What has come between two reads is
  one step, so that bound 0 is synchronous training with any optimizer.

Where several servers have each part, an order that does not decide follows that of the one that does, and decides from
there on when that one has died: what has come and is not decided is taken in anew.

Who pushes to servers, and who is about to.

What each gradient counts in a step of the servers, and at how much of the learning rate the step is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from quorate.core.servers import ServerTerms
from quorate.servers.decisions import Decision, Push, Taken


@dataclass
class There:
    """A worker that pushes."""

    clock: int = 0
    """How many gradients of it have been taken in."""
    asked: list[int] = field(default_factory=list)
    """The numbers of the pushes behind which it has asked to read, and has not."""
    answered: int = 0
    """The newest of those behind which it has."""
    leaves: Literal["", "rests", "ended"] = ""
    """How it does when all that it has pushed is taken in."""


@dataclass
class Joining:
    """Those that join, each with the number of its attempt."""

    asked: dict[int, int] = field(default_factory=dict)
    """Who is not there yet."""
    answered: dict[int, int] = field(default_factory=dict)
    """Who has been let in, the newest time."""
    withdrawn: dict[int, int] = field(default_factory=dict)
    """Whose newest attempt is over."""


@dataclass
class Order:
    """That of the workers `there`, as they set out together from `version`; `everyone`, of whom these are usually all,
    counts for shares of a step."""

    terms: ServerTerms
    there: Iterable[int]
    version: int = 0
    ended: frozenset[int] = frozenset()
    """Who is not there any more, and lives."""
    decides: bool = True
    """Whether decisions are made here; where not, they are to be followed."""
    last: Decision | None = None
    """The one with which the stretch before this one ended."""
    everyone: set[int] = field(default_factory=set)
    joining: Joining = field(default_factory=Joining)
    _workers: dict[int, There] = field(init=False)
    _pending: list[Push] = field(default_factory=list)
    _held: dict[tuple[int, int], Push] = field(default_factory=dict)
    """What has come before its turn, or before it was decided, by number and source."""
    _decided: set[tuple[int, int]] = field(default_factory=set)
    """What is to come, by source and number, and has been decided."""
    _again: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Who has asked to read again what it had asked for behind a push, more often than that was decided."""
    _rested: set[int] = field(default_factory=set)
    """Who has left, and is to be there again."""
    _asking: set[int] = field(default_factory=set)
    """Who has left, and is to read what all have come to."""

    def __post_init__(self) -> None:
        self._workers = {rank: There() for rank in self.there}
        self.everyone = self.everyone or set(self._workers)

    def came(self, push: Push) -> list[Decision]:
        """A worker has pushed."""
        key, is_known = (push.source, push.number), push.source in self._workers
        if key in self._decided:
            self._decided.discard(key)
            self._asks(push)
            return self._go_on()
        if self.decides and not (self.terms.in_order and is_known):
            return self._take(push)
        self._held[push.number, push.source] = push
        if not self.decides:
            self._asks(push)
        return self._in_turn()

    def leaves(self, rank: int, how: Literal["rests", "ended"]) -> list[Decision]:
        """A worker pushes no more, until all set out again or for good."""
        worker = self._workers.get(rank)
        if worker is None:
            return []
        if not self.decides or any(source == rank for _, source in self._held):
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
        self.everyone.discard(rank)
        self.joining.asked.pop(rank, None)
        self._workers.pop(rank, None)
        self.ended -= {rank}
        self._rested.discard(rank)
        self._asking.discard(rank)
        self._again = Counter({one: count for one, count in self._again.items() if one[0] != rank})
        return [*self._of_the_dead(), *self._in_turn(), *self._go_on()]

    def asks(self, rank: int) -> list[Decision]:
        """A worker that leaves asks to read what all have come to when all have left."""
        self._asking.add(rank)
        return self._go_on()

    def asks_again(self, rank: int, number: int) -> list[Decision]:
        """A worker lacks some of what it was to read behind its push `number`."""
        self._again[rank, number] += 1
        return self._go_on()

    def comes(self, rank: int, attempt: int) -> list[Decision]:
        """One that joins, for the `attempt`-th time (from 1), is there from now on: its clock is that of the worker
        furthest behind."""
        if self.joining.answered.get(rank, 0) < attempt:
            self.joining.asked[rank] = attempt
        return self._go_on()

    def withdraws(self, rank: int, attempt: int) -> list[Decision]:
        """It is not let in, and was never there."""
        self.joining.withdrawn[rank] = attempt
        if self._workers.pop(rank, None) is None:
            return []
        self.everyone.discard(rank)
        return [*self._in_turn(), *self._go_on()]

    def follow(self, one: Decision) -> None:
        """This was decided elsewhere."""
        self.version = one.version
        for (rank, clock), (_, number) in zip(one.joined, one.readers, strict=False):
            self._is_there(rank, clock, -number)
        for source, number in (*((x.source, x.number) for x in one.taken), *one.dropped):
            if self._held.pop((number, source), None) is None:
                self._decided.add((source, number))
            if source in self._workers:
                self._workers[source].clock = max(self._workers[source].clock, number)
        if one.repeats:
            self._again.subtract(one.readers)
        else:
            self._read(one.readers)

    def decide(self) -> list[Decision]:
        """From now on decisions are made here; those that can be."""
        self.decides = True
        held = [push for _, push in sorted(self._held.items())]
        for push in held:
            if push.source in self._workers:
                worker = self._workers[push.source]
                worker.asked = [number for number in worker.asked if number != push.number]
        found = self._of_the_dead()
        if self.terms.in_order:
            found += self._in_turn()
        else:
            self._held.clear()
            for push in held:
                if push.source in self._workers:
                    found += self._take(push)
        for rank, worker in list(self._workers.items()):
            if worker.leaves:
                found += self.leaves(rank, worker.leaves)
        return [*found, *self._go_on()]

    def next_one(self, last: Decision) -> Order:
        """That of those who set out again after the `last` decision."""
        ended = frozenset(last.ended)
        return Order(self.terms, last.there, last.version, ended, self.decides, last, self.everyone, self.joining)

    # -- inside

    def _is_there(self, rank: int, clock: int, attempt: int) -> None:
        self.joining.answered[rank] = attempt
        if self.joining.asked.get(rank) == attempt:
            del self.joining.asked[rank]
        if self.joining.withdrawn.get(rank, 0) < attempt:
            self._workers[rank] = There(clock)
            self.everyone.add(rank)

    def _asks(self, push: Push) -> None:
        worker = self._workers.get(push.source)
        if worker is not None and push.reads and push.number > worker.answered:
            worker.asked.append(push.number)

    def _of_the_dead(self) -> list[Decision]:
        """Forget what is held of those that are not there."""
        gone = sorted(key for key in self._held if key[1] not in self._workers)
        if not gone or not self.decides:
            return []
        for key in gone:
            del self._held[key]
        return [Decision(self.version, dropped=tuple((source, number) for number, source in gone))]

    def _in_turn(self) -> list[Decision]:
        """Take in what has come, by number and then by source."""
        found: list[Decision] = []
        while self.decides and self._workers:
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
        self._asks(push)
        self._pending.append(push)
        return self._go_on()

    def _too_late(self, push: Push) -> list[Decision]:
        """Its step has been made without it: it goes on at once."""
        dropped: tuple[tuple[int, int], ...] = ()
        if self.terms.late == "carry":
            self._pending.append(push)
        else:
            dropped = ((push.source, push.number),)
        reads = push.reads and push.number > self._workers[push.source].answered
        readers = ((push.source, push.number),) if reads else ()
        return [replace(self._read(readers), dropped=dropped)]

    def _go_on(self) -> list[Decision]:
        found: list[Decision] = []
        if not self.decides:
            return found
        while (one := self._next()) is not None:
            found.append(one)
        for key in sorted(+self._again):
            self._again[key] -= 1
            of = self.last if self.last is not None and not key[1] else Decision(self.version)
            if key[1] < 0 and key[0] in self._workers:
                of = replace(of, joined=((key[0], self._workers[key[0]].clock),))
            found.append(replace(of, readers=(key,), repeats=True))
        for rank, attempt in sorted(self.joining.asked.items()):
            clock = min((worker.clock for worker in self._workers.values()), default=0)
            joined = ((rank, clock),)
            found.append(Decision(self.version, readers=((rank, -attempt),), joined=joined))
            self._is_there(rank, clock, attempt)
        if self._workers:
            return found
        if self._pending:
            found.append(self._step(()))
        if self._asking and self._asking >= (self._rested or self.ended):
            readers, self._asking = tuple(sorted(self._asking)), set()
            there = tuple(rank for rank in readers if rank not in self.ended)
            last = tuple((rank, 0) for rank in readers)
            ended = tuple(sorted(self.ended))
            found.append(Decision(self.version, readers=last, is_last=True, there=there, ended=ended))
        return found

    def _next(self) -> Decision | None:
        """The next decision, if what has come makes one possible."""
        terms, workers = self.terms, self._workers
        if not workers:
            return None
        waiting = {rank: one.asked[0] for rank, one in workers.items() if one.asked}
        if terms.mode == "sync":
            fresh = sum(push.version == self.version for push in self._pending)
            if fresh and fresh >= max(1, len(workers) - terms.backup):
                return self._step(tuple(waiting.items()))
            return None
        if terms.mode == "bounded":
            least = min(one.clock for one in workers.values()) + terms.max_staleness
            ready = tuple((rank, number) for rank, number in waiting.items() if number <= least)
            if not ready:
                return None
            return self._step(ready) if self._pending else self._read(ready)
        group = 1 if terms.softsync is None else max(1, len(workers) // terms.softsync)
        if len(self._pending) >= group:
            return self._step(tuple(waiting.items()))
        return self._read(tuple(waiting.items())) if waiting else None

    def _read(self, readers: tuple[tuple[int, int], ...]) -> Decision:
        for rank, number in readers:
            worker = self._workers.get(rank)
            if worker is not None:
                worker.answered = max(worker.answered, number)
                worker.asked = [one for one in worker.asked if one != number]
        return Decision(self.version, readers=readers)

    def _step(self, readers: tuple[tuple[int, int], ...]) -> Decision:
        come, self._pending = sorted(self._pending, key=lambda one: (one.number, one.source)), []
        pushes = [push for push in come if push.count]
        without = tuple((push.source, push.number) for push in come if not push.count)
        if not pushes:
            return replace(self._read(readers), dropped=without)
        taken, rate = weighed(pushes, self.terms, self.version, len(self.everyone))
        self.version += 1
        self._read(readers)
        newest = max(pushes, key=lambda one: (one.number, -one.source))
        return Decision(self.version, taken, rate, without, readers, (newest.source, newest.number))


def weighed(pushes: Sequence[Push], terms: ServerTerms, version: int, everyone: int) -> tuple[tuple[Taken, ...], float]:
    """The gradients of a step on parameters of `version`, and its rate; `everyone` is how many workers there are."""
    ages = [version - push.version for push in pushes]
    scales = [1 / max(1, age) if terms.staleness_scaling == "inverse" else 1.0 for age in ages]
    counts = [push.count * scale for push, scale in zip(pushes, scales, strict=True)]
    total = sum(counts)
    taken = tuple(
        Taken(push.source, push.number, count / total, age)
        for push, count, age in zip(pushes, counts, ages, strict=True)
    )
    return taken, _rate(total, len(pushes), terms, everyone)


def _rate(total: float, pushes: int, terms: ServerTerms, everyone: int) -> float:
    """A step of fewer gradients than `backup` leaves, as where some have ended, goes less far."""
    if terms.mode == "sync":
        is_whole = terms.step_size == "full" or not terms.backup
        return 1.0 if is_whole else min(1.0, total / max(1, everyone - terms.backup))
    if terms.mode == "bounded" and not terms.max_staleness:
        return 1.0
    return total / (max(1, everyone) if terms.step_size == "share" else pushes)
