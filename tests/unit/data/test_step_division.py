"""Steps divided among the workers that live: every worker has the same division, and each batch comes in one sum."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import KeptShare, StaticShare, epoch_order
from quorate.data.indexed import DividedIteration
from quorate.data.orders import SeededOrder
from quorate.data.position import Begun, Position, deal_again, left_of
from quorate.data.step_division import StepDivision, divided

EXAMPLES, BATCH = 26, 3


@given(st.lists(st.integers(0, 99), unique=True), st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
def test_each_worker_has_a_quota_or_one_more(numbers: list[int], members: list[int]) -> None:
    held = divided(numbers, members)
    assert [number for own in held.values() for number in own] == numbers
    assert not numbers or {len(own) for own in held.values()} <= {
        len(numbers) // len(members) + more for more in (0, 1)
    }


@given(st.data(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 7))
def test_each_batch_is_in_one_step_whoever_dies(data: st.DataObject, workers: int, each: int, batches: int) -> None:
    """Some of the workers die in some of the sums, and all others agree on the division after each of them."""
    everyone = [StepDivision(rank, workers, each) for rank in range(workers)]
    for division in everyone:
        division.set_out(batches, 0)
    steps, alive = [], list(range(workers))
    while (of_step := everyone[alive[0]]).held:
        numbers = sorted(number for own in of_step.held.values() for number in own)
        counted = data.draw(st.lists(st.sampled_from(alive), min_size=1, unique=True))
        for rank in alive:
            while everyone[rank].next is not None:
                assert next(everyone[rank].ahead()) == everyone[rank].next
                everyone[rank].take()
        computed = sum(len(of_step.held[rank]) for rank in counted)
        assert {everyone[rank].summed(counted) for rank in counted} == {computed == len(numbers)}
        assert len({str((everyone[rank].held, everyone[rank].members, everyone[rank].begin)) for rank in counted}) == 1
        alive = sorted(counted)
        if computed == len(numbers):
            steps.append(numbers)
        else:
            assert sorted(number for own in everyone[alive[0]].held.values() for number in own) == numbers
    expected = [range(begin * workers, min(begin + each, batches) * workers) for begin in range(0, batches, each)]
    assert steps == [sorted(numbers) for numbers in expected]


@given(st.data(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 7))
def test_sums_of_parts_have_each_batch_once(data: st.DataObject, workers: int, each: int, batches: int) -> None:
    """Sums that are formed in turn; workers miss some, are left out, and come back."""
    everyone = [StepDivision(rank, workers, each) for rank in range(workers)]
    for division in everyone:
        division.set_out(batches, 0)
    newcomer = StepDivision(workers, workers, each)
    newcomer.adopt(everyone[0].captured())
    newcomer.set_out(batches, 0)
    counted = list[int]()
    for _ in range(200):
        held, total = everyone[0].held, everyone[0].total
        if not held:
            break
        ranks = data.draw(st.lists(st.integers(0, workers - 1), unique=True))
        members = data.draw(st.lists(st.integers(0, workers - 1), min_size=1, unique=True))
        counted += [number for rank in ranks for number in held.get(rank, ())]
        ends = {division.added(ranks, members) for division in (*everyone, newcomer)}
        assert len(ends) == 1 and len({str(division.captured()) for division in (*everyone, newcomer)}) == 1
        if ends == {True}:
            assert len(counted) == len(set(counted)) and len(counted[-total:]) == total
            assert everyone[0].taken == 0 and not everyone[0].is_partial
    if not everyone[0].held:
        assert sorted(counted) == list(range(batches * workers))


def test_only_missing_batches_are_divided_again_first_to_those_with_fewest() -> None:
    division = StepDivision(0, 4, 3)
    division.set_out(9, 0)
    assert division.held == {0: [0, 4, 8], 1: [1, 5, 9], 2: [2, 6, 10], 3: [3, 7, 11]}
    assert not division.summed([0, 2, 3])
    assert division.held == {0: [0, 4, 8, 1], 2: [2, 6, 10, 5], 3: [3, 7, 11, 9]}
    assert division.summed([0, 2, 3]) and division.begin == 3
    division.join([4])
    assert division.members == [0, 2, 3, 4] and list(islice(division.ahead(), 4)) == [12, 16, 20, 24]


def share(rank: int, size: int = 2, each: int = 1) -> KeptShare:
    return KeptShare(rank=rank, size=size, seed=1, division=StepDivision(rank, size, each))


@pytest.mark.parametrize("examples", [1, 24, 26])
def test_batches_are_those_of_the_equal_split(examples: int) -> None:
    order = epoch_order(examples, seed=1, epoch=2)
    for rank in range(3):
        for number, indices in StaticShare(rank=rank, size=3).batches(order, BATCH):
            assert share(0, 3).batch(order, BATCH, number * 3 + rank) == indices


def test_a_position_is_that_of_all_parts_and_is_enough_for_other_workers() -> None:
    own = share(1)
    iteration = DividedIteration(own, SeededOrder(EXAMPLES, own), BATCH, 0, 0, Begun())
    given_examples = []
    for indices in islice(iteration.fetch(), 2):
        iteration.give(None)
        given_examples += indices
        own.division.summed([0, 1])
    position = Position.of(own, BATCH, EXAMPLES, 0, {0: iteration.begun}, trained=True)
    assert Position.read(position.as_json()) == position
    order = epoch_order(EXAMPLES, seed=1, epoch=0)
    both = [list(islice(StaticShare(rank=rank, size=2, seed=1).batches(order, BATCH), 2)) for rank in (0, 1)]
    consumed = [index for batches in both for _, indices in batches for index in indices]
    assert set(given_examples) < set(consumed)
    _, remainders = deal_again([position])  # the other worker has died
    assert left_of(order, remainders[0].past).tolist() == [index for index in order.tolist() if index not in consumed]


def test_what_would_fall_out_of_step_is_refused() -> None:
    division = StepDivision(0, 1, 2)
    division.set_out(4, 0)
    division.take()
    for call, words in {
        "set_out": "train on one quorate.loader",
        "check_meeting": "only if optimizer.has_updated",
    }.items():
        with pytest.raises(ConfigurationError, match=words):
            getattr(division, call)(*((4, 0) if call == "set_out" else ()))
    division.take()
    with pytest.raises(ConfigurationError, match="needs one backward pass"):
        division.check_next()
    division.enter([1, 2])
    with pytest.raises(ConfigurationError, match="at most 1 workers"):
        division.check_next()
