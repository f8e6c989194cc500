"""The remainder of an epoch is exactly what was not consumed, however it was divided, and however often."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import DynamicShare, StaticShare
from quorate.data.position import Begun, Dealt, Position, Spans, deal_again, left_of, numbers_in, union

numbers = st.sets(st.integers(0, 40))


def spans_of(each: Iterable[int]) -> Spans:
    return union((number, number + 1) for number in each)


@given(numbers)
def test_spans_hold_the_numbers_and_no_two_touch(each: set[int]) -> None:
    spans = spans_of(each)
    assert list(numbers_in(spans)) == sorted(each)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))


@given(st.lists(numbers, max_size=4))
def test_a_union_has_what_its_parts_have(parts: list[set[int]]) -> None:
    together = union(span for part in parts for span in spans_of(part))
    assert together == spans_of(set().union(*parts))


def batches_of(share: StaticShare, order: torch.Tensor, batch_size: int) -> dict[int, list[int]]:
    return dict(share.batches(order, batch_size))


def dealt(share: str, size: int, batch_size: int, consumed: Any, drop_last: bool = False) -> Dealt:
    each = tuple(spans_of(numbers) for numbers in consumed)
    return Dealt(share=share, size=size, batch_size=batch_size, drop_last=drop_last, consumed=each)


@given(st.data(), st.integers(1, 50), st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_left_is_what_no_worker_has_consumed(
    data: st.DataObject, examples: int, size: int, batch_size: int, drop_last: bool
) -> None:
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(examples))
    consumed, seen = [], set()
    for rank in range(size):
        own_batches = batches_of(StaticShare(rank=rank, size=size, drop_last=drop_last), order, batch_size)
        consumed.append(data.draw(st.sets(st.sampled_from(sorted(own_batches)))) if own_batches else set())
        seen |= {index for number in consumed[-1] for index in own_batches[number]}
    left = dealt("static", size, batch_size, consumed, drop_last).left(order).tolist()
    assert left == [index for index in order.tolist() if index not in seen]


def test_left_over_two_runs_and_of_a_dynamic_share() -> None:
    order = torch.arange(10)
    first = dealt("static", 2, 2, [{0}, set()])  # 0, 2
    then = dealt("dynamic", 3, 3, [{1}])  # of 1 3 4 5 6 7 8 9: 5 6 7
    last = dealt("dynamic", 3, 4, [{1}])  # of 1 3 4 8 9: 9
    assert left_of(order, [first]).tolist() == [1, 3, 4, 5, 6, 7, 8, 9]
    assert left_of(order, [first, then]).tolist() == [1, 3, 4, 8, 9]
    assert left_of(order, [first, then, last]).tolist() == [1, 3, 4, 8]


def position(
    rank: int, size: int, epoch: int, begun: dict[int, Begun], share: str = "static", trained: bool = True
) -> Position:
    kind: Any = (
        StaticShare(rank=rank, size=size)
        if share == "static"
        else DynamicShare(rank=rank, size=size, claim=lambda iteration: 0)
    )
    return Position.of(kind, 2, 12, epoch, begun, trained)


def test_dealing_again_begins_with_the_epoch_of_the_last_worker() -> None:
    old = [
        position(0, 3, 4, {4: Begun(consumed=((0, 1),))}),
        position(1, 3, 3, {3: Begun(consumed=((0, 1),))}),
        position(2, 3, 4, {}),
    ]
    epoch, left = deal_again(old)
    order = torch.arange(12)
    assert epoch == 3
    assert {each: left_of(order, begun.past).tolist() for each, begun in left.items()} == {
        3: [7, 10],  # rank 1 has 1, 4, 7, 10; the others have all of theirs behind them
        4: [1, 2, 4, 5, 6, 7, 8, 9, 10, 11],  # rank 0 had 0 and 3
    }


def test_a_worker_ahead_knows_what_it_had_of_the_epoch_before() -> None:
    old = [
        position(0, 2, 2, {1: Begun(consumed=((0, 2), (3, 5)))}, "dynamic"),
        position(1, 2, 1, {1: Begun(consumed=((2, 3),))}, "dynamic"),
    ]
    epoch, left = deal_again(old)
    assert epoch == 1
    assert left_of(torch.arange(12), left.pop(1).past).tolist() == [10, 11]
    assert left == {}
    assert deal_again([old[0]]) == (2, {})


def test_nothing_is_left_between_epochs_and_a_missing_worker_has_consumed_nothing() -> None:
    assert deal_again([position(rank, 3, 5, {}) for rank in range(3)]) == (5, {})
    epoch, left = deal_again([position(rank, 3, 0, {0: Begun(consumed=((0, 2),))}) for rank in (0, 2)])
    assert left_of(torch.arange(12), left[epoch].past).tolist() == [1, 4, 7, 10]


def test_of_what_was_only_evaluated_on_nothing_is_left() -> None:
    assert deal_again([position(0, 2, 5, {}, trained=False), position(1, 2, 0, {}, trained=False)]) == (5, {})


def test_workers_too_far_apart() -> None:
    with pytest.raises(ConfigurationError, match="in epochs 3 to 2000; at most 1000 apart"):
        deal_again([position(0, 2, 3, {}), position(1, 2, 2000, {})])


def test_it_is_told_as_json_and_read_again() -> None:
    past = (dealt("dynamic", 3, 4, [{0, 1, 5}]), dealt("static", 2, 4, [{0}, set()], drop_last=True))
    own_position = position(1, 3, 7, {7: Begun(past=past, consumed=((2, 5),)), 9: Begun()})
    assert Position.read(json.loads(json.dumps(own_position.as_json()))) == own_position


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 10**12},
        {"begun": {"0": {"past": [], "consumed": [[0, 13]]}}},
        {"begun": {"0": {"past": [{**vars(dealt("static", 1, 1, [])), "consumed": [[[2, 13]]]}], "consumed": []}}},
        {"rank": -1},
        {"rank": True},
        {"share": "statick"},
        {"shuffle": 1},
        {"epoch": "1"},
        {"begun": []},
        {"begun": {"0": {"past": [], "consumed": [[3, 1]]}}},
        {"begun": {"0": {"past": [{"share": "static"}], "consumed": []}}},
        {"begun": {"0": {"consumed": []}}},
    ],
)
def test_anything_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"this is not the state of a loader"):
        Position.read({**position(0, 1, 0, {}).as_json(), **wrong})


def test_what_is_no_position_at_all() -> None:
    for state in ({}, {"state": 1}, [], None):
        with pytest.raises(ConfigurationError, match="not the state of a loader"):
            Position.read(state)  # type: ignore[arg-type]


def changed(rank: int, consumed: Spans, changes: dict[int, tuple[int, ...]], epoch: int = 1) -> Position:
    begun = {epoch: Begun(consumed=consumed)} if consumed else {}
    return Position.of(StaticShare(rank=rank, size=3), 2, 12, epoch, begun, True, changes)


def test_an_epoch_that_the_living_have_divided_is_divided_again() -> None:
    """Rank 1 has died; the others had the even places of the order, and the odd ones."""
    changes = {1: (0, 2)}
    old = [changed(0, ((0, 1),), changes), changed(2, ((0, 2),), changes)]
    assert [Position.read(json.loads(json.dumps(each.as_json()))) for each in old] == old
    epoch, left = deal_again(old)
    assert epoch == 1
    assert left_of(torch.arange(12), left[1].past).tolist() == [4, 6, 8, 9, 10, 11]  # without 0, 2 and 1, 3, 5, 7
    assert not old[0].is_shared_as(StaticShare(rank=0, size=3), 2)


def test_a_worker_in_the_next_epoch_has_consumed_its_part_among_the_living() -> None:
    old = [changed(0, (), {1: (0, 2)}, epoch=2), changed(2, ((0, 1),), {1: (0, 2)})]
    epoch, left = deal_again(old)
    assert epoch == 1
    assert left_of(torch.arange(12), left[1].past).tolist() == [5, 7, 9, 11]


@pytest.mark.parametrize("changes", [[[1, []]], [[1, [0, 0]]], [[-1, [0]]], [[1, [0.5]]], 3, [1]])
def test_damaged_members_of_epochs_are_refused(changes: Any) -> None:
    state = changed(0, (), {}).as_json() | {"changes": changes}
    with pytest.raises(ConfigurationError, match="this is not the state of a loader"):
        Position.read(state)
