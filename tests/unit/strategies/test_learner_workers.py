"""Who hands in what a learner has left, and for which rounds it waits before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from quorate.core.groups import Said
from quorate.strategies.parts.learner_workers import LearnerWorkers, StandFields, equal_ones
from quorate.strategies.parts.local_steps import Period


@dataclass
class Standing:
    """Of worker 1: rounds come one by one, and from round `knows_at` on rank 0 is known to have died."""

    version: int = 3
    newest: int = 3
    holds: int = 0
    knows_at: int = 0
    called: int = 0
    withdrawn: int = 0

    @property
    def missing(self) -> frozenset[int]:
        return frozenset({0} if self.version >= self.knows_at else ())

    def until(self, number: int) -> None:
        self.newest = number

    def call(self) -> None:
        self.called += 1
        self.newest = self.version + 1

    def withdraw(self) -> None:
        self.withdrawn += 1

    def take(self) -> None:
        self.version = self.newest


@dataclass
class Group:
    said: dict[int, Said]
    ranks: tuple[int, ...] = (0, 1, 2)
    others: frozenset[int] = frozenset({2})
    dead: frozenset[int] = frozenset()

    def exchange(self, header: Mapping[str, Any], *, weight: float | None = None, leaves: str = "") -> dict[int, Said]:
        return {**self.said, 1: Said(header, leaves="pauses")}


@dataclass
class Rounds:
    standing: Standing


@dataclass
class Worker:
    rounds: Rounds
    rank: int = 1
    step: int = 9
    has_ended: bool = False


@dataclass
class Learner:
    times: int = 4


def said(leaves: Any = "pauses", **header: Any) -> Said:
    return Said({"applied": 3, "newest": 3, "holds": 0, "times": 4, "step": 9, **header}, leaves=leaves)


@dataclass
class Case:
    others: dict[int, Said]
    dead: frozenset[int] = frozenset()
    standing: Standing = field(default_factory=Standing)
    has_handed_in: int = 0

    def leaves(self) -> bool:
        workers = LearnerWorkers(Group(self.others, dead=self.dead), (0, 0, 0), Period(4, "steps"), lambda one: None)  # type: ignore[arg-type]
        workers._have_handed_in.add(self.has_handed_in)
        worker: Any = Worker(Rounds(self.standing))
        learner: Any = Learner()
        return workers.leaves(worker, learner, self.standing.take)


def test_the_lowest_of_those_that_leave_last_hands_in() -> None:
    assert Case({2: said()}).leaves()
    assert not Case({0: said(), 2: said()}).leaves()
    assert not Case({2: said(leaves="")}).leaves()


def test_what_was_handed_in_before_is_withdrawn() -> None:
    case = Case({2: said()})
    assert case.leaves() and case.standing.withdrawn == 1


def test_rounds_that_may_hold_something_of_another_are_applied_first() -> None:
    case = Case({2: said(holds=7)})
    assert case.leaves() and case.standing.version == 7


@pytest.mark.parametrize(("knows_at", "called"), [(3, 0), (4, 1), (6, 3)])
def test_after_a_death_a_round_is_waited_for_that_knows_of_it(knows_at: int, called: int) -> None:
    case = Case({2: said()}, frozenset({0}), Standing(knows_at=knows_at))
    assert case.leaves() and case.standing.called == called
    case = Case({2: said()}, frozenset({0}), Standing(knows_at=knows_at), has_handed_in=2)
    assert case.leaves() and case.standing.called == 0  # the dead one has handed in nothing


def test_who_does_not_doubt_is_equal_and_else_who_is_ahead() -> None:
    def equal(*workers: tuple[int, str | None]) -> list[int]:
        """`workers` have the step and the digest of each."""
        messages = {rank: Said({}, digest=digest) for rank, (_, digest) in enumerate(workers)}
        return equal_ones(messages, {rank: StandFields(0, 0, 0, 0, step) for rank, (step, _) in enumerate(workers)})

    assert equal((9, "a"), (5, None), (5, None)) == [1, 2]
    assert equal((5, "a"), (9, "b"), (9, "b")) == [1, 2]
    assert equal((9, "a"), (9, "b")) == [0]
