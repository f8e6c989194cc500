"""Loaders that begin again where they should go on, as a script makes them in each epoch: lines that say so."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.data.consumption import Consumed
from quorate.data.loader import Loader, Loaders
from quorate.wire import current
from quorate.wire.current import Place


@pytest.fixture(autouse=True)
def nowhere() -> Iterator[None]:
    yield
    current.forget(thread_only=True)


def alone() -> Place:
    wire = SimpleNamespace(rank=0, size=1, clock=SimpleNamespace(now=lambda: 0.0), is_newcomer=True)
    return current.enter(cast(Wire, wire), thread_only=True)


def first_loader() -> Loader:
    alone().context(Consumed).follow_steps()
    return quorate.loader(TensorDataset(torch.arange(12)), 4)


IS_AGAIN, LACKS = (
    "was called again for the same data",
    "has no position of this script's loader 1, but one of its loader 3",
)


def in_each_epoch(data: TensorDataset, *, sets_epoch: bool = False) -> list[int]:
    """How many batches each of three loaders has, which are made one after the other."""
    sizes = []
    for epoch in range(3):
        loader = quorate.loader(data, 4)
        if sets_epoch:
            loader.set_epoch(epoch)
        sizes.append(len(list(loader)))
    return sizes


def test_a_loader_that_is_made_in_each_epoch_says_once_that_the_order_is_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = TensorDataset(torch.arange(12))
    place = alone()
    place.context(Consumed).follow_steps()
    in_each_epoch(data, sets_epoch=True)
    place.context(Consumed).follow_steps()  # another training of the same data
    list(quorate.loader(data, 4))
    together = [quorate.loader(data, 4, seed=5) for _ in range(2)]
    assert [len(list(loader)) for loader in together] == [3, 3]
    with torch.no_grad():
        list(quorate.loader(data, 4))
    assert IS_AGAIN not in capsys.readouterr().err
    in_each_epoch(data)
    assert capsys.readouterr().err.count(IS_AGAIN) == 1


def test_a_loader_without_a_position_says_so_and_later_ones_get_none(capsys: pytest.CaptureFixture[str]) -> None:
    data = TensorDataset(torch.arange(12))
    old = first_loader()
    next(iter(old))
    current.here().context(Consumed).stepped()
    place = alone()
    place.context(Consumed).follow_steps()
    place.context(Loaders).go_on([{"3": old.state_dict()}])
    with torch.no_grad():
        list(quorate.loader(data, 4))
    assert LACKS not in capsys.readouterr().err
    place = alone()
    place.context(Consumed).follow_steps()
    place.context(Loaders).go_on([{"3": old.state_dict()}])
    assert in_each_epoch(data, sets_epoch=True) == [3, 3, 3]
    assert capsys.readouterr().err.count(LACKS) == 1
