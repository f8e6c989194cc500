"""Decisions about the gradients of each step of the servers, their weights, and the workers that read afterwards.

Pure: pushes go in, decisions come out. Every server carries out the same decisions in the same order, so all parts of
the parameters have one version. The modes:

- sync: a step is the mean of the gradients of all workers except `backup`, all of parameters of one version (Chen et
  al. 2016, Algorithms 3 and 4). A later gradient is dropped, or counts in the next step.
- async: a step is made for every gradient, or with n-softsync for every P // n of them (Zhang et al. 2016, Equation 5).
- bounded: as async, but a worker that has pushed c gradients reads when all workers have pushed c - `max_staleness` (Ho
  et al. 2013). It sees all older gradients, its own, and others that have arrived. The gradients that arrive between
  two reads make one step, so bound 0 is synchronous training with any optimizer.

Where each part lies on several servers, one server decides, and the orders of the others follow its decisions. When it
has died, the next one decides: it takes in again the pushes that have arrived and are not decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from quorate.core.servers import ServerTerms


@dataclass
class Pusher:
    """A worker that takes part in the era."""

    clock: int = 0
    """Number of its gradients that have been taken in."""
    asked: list[int] = field(default_factory=list)
    """The numbers of the pushes after which it has asked to read and was not answered."""
    answered: int = 0
    """The number of the newest push after which it was answered."""
    leaves: Literal["", "pauses", "ended"] = ""
    """How it leaves when all its pushes are taken in; empty: it does not."""


@dataclass
class Joining:
    """Newcomers, each with the number of its attempt to join."""

    asked: dict[int, int] = field(default_factory=dict)
    """Newcomers that do not take part yet."""
    answered: dict[int, int] = field(default_factory=dict)
    """Newcomers that were let in: the newest such attempt."""
    withdrawn: dict[int, int] = field(default_factory=dict)
    """Newcomers that have withdrawn: the newest such attempt."""


@dataclass
class Order:
    """The order of one era, which begins at `version` with the workers `there`.

    Workers come and go by decisions, in one place among the pushes on every server: so a death, or a newcomer, may
    count here later than in `Wire.members`.
    """

    terms: ServerTerms
    there: Iterable[int]
    version: int = 0
    ended: frozenset[int] = frozenset()
    """Workers that have ended and are alive."""
    decides: bool = True
    """Whether decisions are made here; otherwise this order follows those of another server."""
    last: Decision | None = None
    """The decision that ended the era before this one."""
    joining: Joining = field(default_factory=Joining)
    _workers: dict[int, Pusher] = field(init=False)
    _pending: list[Push] = field(default_factory=list)
    _held: dict[tuple[int, int], Push] = field(default_factory=dict)
    """Pushes that have arrived before their turn, or are not decided yet, by number and source."""
    _decided: set[tuple[int, int]] = field(default_factory=set)
    """Pushes that are decided and have not arrived yet, by source and number."""
    _again: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Questions (rank and number of the push) that were asked again, minus the decisions about them."""
    _paused: set[int] = field(default_factory=set)
    _asking: set[int] = field(default_factory=set)
    """Workers that have left and wait for the final parameters of the era."""

    def __post_init__(self) -> None:
        self._workers = {rank: Pusher() for rank in self.there}

    @property
    def everyone(self) -> set[int]:
        """The workers that push, have paused or have ended; their number determines the share of each in a step."""
        return {*self._workers, *self._paused, *self.ended}

    def pushed(self, push: Push) -> list[Decision]:
        """Take in a push that has arrived."""
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

    def leaves(self, rank: int, how: Literal["pauses", "ended"]) -> list[Decision]:
        """Note that a worker pushes no more: until the next era (`"pauses"`), or never again (`"ended"`)."""
        worker = self._workers.get(rank)
        if worker is None:
            return []
        if not self.decides or any(source == rank for _, source in self._held):
            worker.leaves = how
            return []
        del self._workers[rank]
        if how == "pauses":
            self._paused.add(rank)
        else:
            self.ended |= {rank}
        return [*self._in_turn(), *self._go_on()]

    def died(self, rank: int) -> list[Decision]:
        """Note that a worker has died: nobody waits for it, and no more pushes of it arrive."""
        self.joining.asked.pop(rank, None)
        self._workers.pop(rank, None)
        self.ended -= {rank}
        self._paused.discard(rank)
        self._asking.discard(rank)
        self._again = Counter({key: count for key, count in self._again.items() if key[0] != rank})
        return [*self._drop_pushes_of_dead(), *self._in_turn(), *self._go_on()]

    def asks(self, rank: int) -> list[Decision]:
        """Note that a worker that leaves asks for the parameters that remain when all have left."""
        self._asking.add(rank)
        return self._go_on()

    def asks_again(self, rank: int, number: int) -> list[Decision]:
        """Note that a worker lacks a part of its answer to the question after push `number`."""
        self._again[rank, number] += 1
        return self._go_on()

    def comes(self, rank: int, attempt: int) -> list[Decision]:
        """Let a newcomer take part from now on, at the clock of the worker furthest behind; attempts count from 1."""
        if self.joining.answered.get(rank, 0) < attempt:
            self.joining.asked[rank] = attempt
        return self._go_on()

    def withdraws(self, rank: int, attempt: int) -> list[Decision]:
        """Undo an attempt to join: the newcomer is not let in."""
        self.joining.withdrawn[rank] = attempt
        if self._workers.pop(rank, None) is None:
            return []
        return [*self._in_turn(), *self._go_on()]

    def follow(self, decision: Decision) -> None:
        """Carry out a decision of another server."""
        self.version = decision.version
        for (rank, clock), (_, number) in zip(decision.joined, decision.readers, strict=False):
            self._let_in(rank, clock, -number)
        for source, number in (*((x.source, x.number) for x in decision.taken), *decision.dropped):
            if self._held.pop((number, source), None) is None:
                self._decided.add((source, number))
            if source in self._workers:
                self._workers[source].clock = max(self._workers[source].clock, number)
        if decision.repeats:
            self._again.subtract(decision.readers)
        else:
            self._read(decision.readers)

    def decide(self) -> list[Decision]:
        """Decide from now on; return the decisions that can be made at once."""
        self.decides = True
        held = [push for _, push in sorted(self._held.items())]
        for push in held:
            if push.source in self._workers:
                worker = self._workers[push.source]
                worker.asked = [number for number in worker.asked if number != push.number]
        decisions = self._drop_pushes_of_dead()
        if self.terms.in_order:
            decisions += self._in_turn()
        else:
            self._held.clear()
            for push in held:
                if push.source in self._workers:
                    decisions += self._take(push)
        for rank, worker in list(self._workers.items()):
            if worker.leaves:
                decisions += self.leaves(rank, worker.leaves)
        return [*decisions, *self._go_on()]

    def next_era(self, last: Decision) -> Order:
        """Return the order of the next era, after the `last` decision of this one, whose server may not have known yet
        of a death."""
        there, ended = self.everyone.intersection(last.there), self.everyone.intersection(last.ended)
        return Order(self.terms, sorted(there), last.version, frozenset(ended), self.decides, last, self.joining)

    # -- inside

    def _let_in(self, rank: int, clock: int, attempt: int) -> None:
        self.joining.answered[rank] = attempt
        if self.joining.asked.get(rank) == attempt:
            del self.joining.asked[rank]
        if self.joining.withdrawn.get(rank, 0) < attempt:
            self._workers[rank] = Pusher(clock)

    def _asks(self, push: Push) -> None:
        worker = self._workers.get(push.source)
        if worker is not None and push.reads and push.number > worker.answered:
            worker.asked.append(push.number)

    def _drop_pushes_of_dead(self) -> list[Decision]:
        held_keys = sorted(key for key in self._held if key[1] not in self._workers)
        if not held_keys or not self.decides:
            return []
        for key in held_keys:
            del self._held[key]
        return [Decision(self.version, dropped=tuple((source, number) for number, source in held_keys))]

    def _in_turn(self) -> list[Decision]:
        """Take in the pushes that are held, by number and then by source."""
        decisions: list[Decision] = []
        while self.decides and self._workers:
            number, source = min((worker.clock + 1, rank) for rank, worker in self._workers.items())
            push = self._held.pop((number, source), None)
            if push is None:
                break
            decisions += self._take(push)
            if how := self._workers[source].leaves:
                decisions += self.leaves(source, how)
        return decisions

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
        """Drop or carry a gradient whose step was made without it; its worker reads at once."""
        dropped: tuple[tuple[int, int], ...] = ()
        if self.terms.late == "carry":
            self._pending.append(push)
        else:
            dropped = ((push.source, push.number),)
        reads = push.reads and push.number > self._workers[push.source].answered
        readers = ((push.source, push.number),) if reads else ()
        return [replace(self._read(readers), dropped=dropped)]

    def _go_on(self) -> list[Decision]:
        decisions: list[Decision] = []
        if not self.decides:
            return decisions
        while (decision := self._next()) is not None:
            decisions.append(decision)
        for key in sorted(+self._again):
            self._again[key] -= 1
            decision = self.last if self.last is not None and not key[1] else Decision(self.version)
            if key[1] < 0 and key[0] in self._workers:
                decision = replace(decision, joined=((key[0], self._workers[key[0]].clock),))
            decisions.append(replace(decision, readers=(key,), repeats=True))
        for rank, attempt in sorted(self.joining.asked.items()):
            clock = min((worker.clock for worker in self._workers.values()), default=0)
            joined = ((rank, clock),)
            decisions.append(Decision(self.version, readers=((rank, -attempt),), joined=joined))
            self._let_in(rank, clock, attempt)
        if self._workers:
            return decisions
        if self._pending:
            decisions.append(self._step(()))
        if self._asking and self._asking >= (self._paused or self.ended):
            readers, self._asking = tuple(sorted(self._asking)), set()
            there = tuple(rank for rank in readers if rank not in self.ended)
            questions = tuple((rank, 0) for rank in readers)
            ended = tuple(sorted(self.ended))
            decisions.append(Decision(self.version, readers=questions, is_last=True, there=there, ended=ended))
        return decisions

    def _next(self) -> Decision | None:
        terms, workers = self.terms, self._workers
        if not workers:
            return None
        waiting = {rank: worker.asked[0] for rank, worker in workers.items() if worker.asked}
        if terms.mode == "sync":
            fresh = sum(push.version == self.version for push in self._pending)
            if fresh and fresh >= max(1, len(workers) - terms.backup):
                return self._step(tuple(waiting.items()))
            return None
        if terms.mode == "bounded":
            least = min(worker.clock for worker in workers.values()) + terms.max_staleness
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
                worker.asked = [asked for asked in worker.asked if asked != number]
        return Decision(self.version, readers=readers)

    def _step(self, readers: tuple[tuple[int, int], ...]) -> Decision:
        pending, self._pending = sorted(self._pending, key=lambda push: (push.number, push.source)), []
        pushes = [push for push in pending if push.count]
        without = tuple((push.source, push.number) for push in pending if not push.count)
        if not pushes:
            return replace(self._read(readers), dropped=without)
        taken, rate = weighed(pushes, self.terms, self.version, len(self.everyone))
        self.version += 1
        self._read(readers)
        newest = max(pushes, key=lambda push: (push.number, -push.source))
        return Decision(self.version, taken, rate, without, readers, (newest.source, newest.number))


def weighed(pushes: Sequence[Push], terms: ServerTerms, version: int, everyone: int) -> tuple[tuple[Taken, ...], float]:
    """Return the weighted gradients of a step, and its learning rate factor; `everyone` is the number of workers."""
    ages = [version - push.version for push in pushes]
    scales = [1 / max(1, age) if terms.staleness_scaling == "inverse" else 1.0 for age in ages]
    counts = [push.count * push.weight * scale for push, scale in zip(pushes, scales, strict=True)]
    total = sum(counts)
    taken = tuple(
        Taken(push.source, push.number, count / total, age)
        for push, count, age in zip(pushes, counts, ages, strict=True)
    )
    return taken, _rate(total, len(pushes), terms, everyone)


def _rate(total: float, pushes: int, terms: ServerTerms, everyone: int) -> float:
    """Return the factor of the learning rate, below 1 for steps of fewer gradients than usual."""
    if terms.mode == "sync":
        is_whole = terms.step_size == "full" or not terms.backup
        return 1.0 if is_whole else min(1.0, total / max(1, everyone - terms.backup))
    if terms.mode == "bounded" and not terms.max_staleness:
        return 1.0
    return total / (max(1, everyone) if terms.step_size == "share" else pushes)


@dataclass(frozen=True)
class Push:
    """A push of worker `source`: gradient `number` (from 1), the mean of `count` steps, of parameters of `version`.
    With a count of 0 it has no gradient, and nobody waits for it."""

    source: int
    number: int
    version: int
    count: int = 1
    reads: bool = True
    weight: float = 1.0
    """The mean weight of these steps."""


@dataclass(frozen=True)
class Taken:
    """A gradient in a step: its weight `factor` (those of a step sum to 1), and its staleness in steps."""

    source: int
    number: int
    factor: float
    staleness: int


@dataclass(frozen=True)
class Decision:
    """A decision: make a step of the gradients `taken`, if any, with the learning rate times `rate`, discard the
    `dropped`, then let the `readers` read version `version`."""

    version: int
    taken: tuple[Taken, ...] = ()
    rate: float = 1.0
    dropped: tuple[tuple[int, int], ...] = ()
    """Source and number of each gradient."""
    readers: tuple[tuple[int, int], ...] = ()
    """Pairs of rank and question: the number of the push before it, 0 at a pause, below 0 for a newcomer."""
    options_of: tuple[int, int] = (-1, 0)
    """Source and number of the push whose options (learning rate and others) the step uses."""
    is_last: bool = False
    """Whether this decision ends the era: nobody pushes until the next one begins."""
    there: tuple[int, ...] = ()
    """The workers of the next era: the readers that have not ended."""
    ended: tuple[int, ...] = ()
    repeats: bool = False
    """Whether the readers read once more what they had asked for, as a part of it was on a server that has died."""
    joined: tuple[tuple[int, int], ...] = ()
    """Newcomers that take part from now on, each with the clock at which it begins."""

    @property
    def is_whole(self) -> bool:
        """Whether its readers are sent full parameters, not the differences from the parameters that they have."""
        return self.is_last or self.repeats or bool(self.joined)
