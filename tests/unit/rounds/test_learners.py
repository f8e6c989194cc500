"""Learners of several workers in rounds: who has to call, and what is given once only."""

from __future__ import annotations

import threading
from typing import Any

import torch

from quorate.core.vectors import Flat, Layout, Part, Segment
from quorate.rounds.buffer import Contribution
from quorate.rounds.calls import Calls, Learners, Workers
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.log import Log, Round
from quorate.rounds.pending import Giving
from quorate.rounds.terms import Agreed

OF = (0, 0, 1, 1, 2)
LAYOUT = Layout((Segment("w", (2,), torch.float32, 0, 0),), (Part(2, torch.float32, torch.device("cpu")),), header=0)


def calls(**settings: Any) -> Calls:
    return Calls(Agreed(size=5, learners=OF, max_staleness=100, **settings))


def test_a_learner_has_called_when_one_of_its_workers_has() -> None:
    found = calls(wait_for=2)
    found.called(0, since=0)
    found.called(1, since=0)
    assert found.quorum == 2 and not found.may_start()
    assert found.held_by() == [2, 3, 4]
    found.called(2, since=0)
    assert found.may_start()


def test_a_learner_of_which_one_is_silent_is_not_waited_for() -> None:
    found = calls(wait_for="all")
    found.called(0, since=0)
    found.called(4, since=0)
    assert not found.may_start()
    found.is_there(3, is_so=False)
    assert found.may_start()


def test_learners_that_have_died_are_no_part_of_a_quorum() -> None:
    found = calls(wait_for="majority")
    found.died(0)
    assert found.quorum == 2
    found.died(1)
    found.died(4)
    assert found.quorum == 1
    assert found.missing_at(0.0, is_pause=True) == [0, 1, 4]


def test_one_drawn_learner_has_to_call() -> None:
    found = calls(wait_for="designated", seed=3)
    starts = []
    for rank in (0, 2, 4):
        found.called(rank, since=0)
        starts.append(found.may_start())
        found.callers.clear()
    assert sum(starts) == 1


def given(vector: bool) -> Contribution:
    sent = Flat([torch.ones(2)], LAYOUT) if vector else None
    return Contribution(1, 1.0, 1.0, 0.0, None, [(0, 1)], ["told"], 0, None, sent)


def test_a_round_takes_one_of_each_learner() -> None:
    found = Learners(OF).one_of_each({4: given(True), 1: given(True), 0: given(True), 2: given(True), 3: given(False)})
    assert [rank for rank, one in found.items() if one.vector is not None] == [1, 2, 4]
    assert list(found) == [0, 1, 2, 3, 4] and (found[0].weight, found[0].measures) == (0.0, [])
    assert list(Workers().one_of_each({1: given(True), 0: given(True)})) == [0, 1]


def handed_in(agreed: Agreed, version: int) -> PendingFragments:
    found = PendingFragments(agreed, Fragments((LAYOUT, LAYOUT)))
    found.hand_in([Flat([torch.ones(2)], LAYOUT)] * 2, 1.0, version, 0.0, None)
    return found


def a_round(number: int, contributor: int) -> Round:
    return Round(number, 0, Flat([torch.ones(2)], LAYOUT), 1.0, 5, None, 0.0, {contributor: [(0, 1)]})


def test_what_another_worker_of_the_learner_has_given_is_not_given_again() -> None:
    """Rank 1 has handed in before round 1, which has what rank 0 handed in; rounds are of two fragments in turn."""
    agreed = Agreed(size=5, learners=OF, max_staleness=100, fragments=2)
    pending, log = handed_in(agreed, 0), Log(64, 1 << 20)
    giving = Giving(pending, log, 1, threading.Lock())
    log.add(a_round(1, contributor=0))
    giving.put_back(1, 1)
    assert giving.give(3).vector is None
    assert not pending.hand_in([Flat([torch.ones(2)], LAYOUT)] * 2, 1.0, 0, 0.0, None, is_last=True)
    assert giving.give(2).vector is not None
    assert pending.hand_in([Flat([torch.ones(2)], LAYOUT)] * 2, 1.0, 3, 0.0, None, is_last=True)
    assert giving.give(5).vector is not None


def test_what_others_have_given_is_nobodys_concern() -> None:
    agreed = Agreed(size=5, learners=OF, max_staleness=100, fragments=2)
    pending, log = handed_in(agreed, 0), Log(64, 1 << 20)
    giving = Giving(pending, log, 1, threading.Lock())
    log.add(a_round(1, contributor=2))
    giving.put_back(1, 1)
    assert giving.give(3).vector is not None


def test_what_is_withdrawn_is_given_when_it_is_handed_in_again() -> None:
    pending = handed_in(Agreed(size=5, learners=OF, max_staleness=100, fragments=2), 0)
    pending.withdraw()
    assert pending.take(1).vector is None and pending.holds == 0
    pending.hand_in([Flat([torch.ones(2)], LAYOUT)] * 2, 1.0, 0, 0.0, None)
    assert pending.take(1).vector is not None and pending.holds == 1
