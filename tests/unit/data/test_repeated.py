"""Shares under which several workers compute the same batches: what comes, and where a worker goes on."""

from __future__ import annotations

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import ByRoundShare, RepeatedShare, StaticShare, epoch_order
from quorate.data.position import Begun, Position, deal_again

EXAMPLES, BATCH = 26, 3


@pytest.mark.parametrize(("size", "times"), [(1, 1), (3, 1), (3, 3), (4, 2), (5, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_batch_comes_so_many_times_in_the_same_place(size: int, times: int, drop_last: bool) -> None:
    order = epoch_order(EXAMPLES, seed=1, epoch=2)
    about = {"size": size, "seed": 1, "drop_last": drop_last}
    plain = [list(StaticShare(rank=rank, **about).batches(order, BATCH)) for rank in range(size)]
    for rank in range(size):
        share = RepeatedShare(rank=rank, times=times, **about)
        numbered = list(share.batches(order, BATCH))
        assert [number for number, _ in numbered] == list(range(share.number_of_batches(EXAMPLES, BATCH)))
        assert len(numbered) == times * len(plain[rank])
        for number, indices in numbered:
            assert indices == plain[(rank + number % times) % size][number // times][1]
            assert share.is_first(number) == (number % times == 0)


def test_whoever_is_late_goes_on_with_the_batch_of_the_round() -> None:
    now = 7
    share = ByRoundShare(rank=0, size=2, times=2, round_now=lambda: now)
    coming = share.batches(torch.arange(24), 2)
    numbers = [next(coming)[0], next(coming)[0]]
    now = 10  # three rounds have gone by
    numbers += [next(coming)[0], next(coming)[0]]
    assert numbers == [0, 1, 6, 7]
    with pytest.raises(ConfigurationError, match=r"call optimizer\.step\(\) once for each batch"):
        next(coming)
    now = 13
    assert list(ByRoundShare(rank=0, size=2, times=1, round_now=lambda: now - 6).batches(torch.arange(0), 2)) == []


def position(kind: type[RepeatedShare], **more: object) -> Position:
    share = kind(rank=1, size=4, times=3, **more)  # type: ignore[arg-type]
    return Position.of(share, BATCH, EXAMPLES, 0, {0: Begun(consumed=((0, 20),))}, True)


def test_a_position_is_of_the_same_number_of_workers() -> None:
    own_position = position(RepeatedShare)
    again = Position.read(own_position.as_json())
    assert again == own_position and again.is_shared_as(RepeatedShare(rank=1, size=4, times=3), BATCH)
    with pytest.raises(ConfigurationError, match="no other number of workers can continue in the middle of an epoch"):
        deal_again([own_position])


def test_where_batches_follow_from_rounds_the_middle_of_an_epoch_is_not_gone_on_with() -> None:
    own_position = position(ByRoundShare, round_now=int)
    with pytest.raises(ConfigurationError, match="go on from a checkpoint at the end of an epoch"):
        own_position.check(ByRoundShare(rank=1, size=4, times=3, round_now=int), EXAMPLES)
