"""The loader gives a worker its batches, counts epochs, and refuses what cannot be shared."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.loader import Loader
from quorate.wire import current


class Bag(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(autouse=True)
def nowhere() -> Iterator[None]:
    yield
    current.forget(thread_only=True)


def numbers(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


def be(rank: int, size: int) -> None:
    clock = SimpleNamespace(now=lambda: 0.0)
    current.enter(cast(Wire, SimpleNamespace(rank=rank, size=size, clock=clock, is_newcomer=True)), thread_only=True)


def loader_of(rank: int, size: int, n: int = 20, batch_size: int = 4, **options: Any) -> Loader:
    be(rank, size)
    return quorate.loader(numbers(n), batch_size, **options)


def batches(loader: Loader) -> list[list[int]]:
    return [cast(Tensor, values).tolist() for (values,) in loader]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_equal_those_of_a_ddp_script(size: int, drop_last: bool) -> None:
    for rank in range(size):
        ours = loader_of(rank, size, n=38, batch_size=4, seed=3, drop_last=drop_last)
        data = numbers(38)
        sampler = DistributedSampler(data, size, rank, seed=3, drop_last=drop_last)
        torchs: DataLoader[Any] = DataLoader(data, 4, sampler=sampler, drop_last=drop_last)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert batches(ours) == [values.tolist() for (values,) in torchs]
            assert len(ours) == len(torchs)


def test_iterating_counts_the_epochs() -> None:
    loader = loader_of(0, 2)
    assert loader.epoch == 0
    first = batches(loader)
    assert loader.epoch == 0
    second = batches(loader)
    assert loader.epoch == 1
    assert first != second
    next(iter(loader))
    assert loader.epoch == 2
    loader.set_epoch(1)
    assert loader.epoch == 1
    assert batches(loader) == second
    assert loader.epoch == 1


def test_asking_whether_there_is_an_iterator_begins_no_epoch() -> None:
    loader = loader_of(0, 2)
    iter(loader)
    unused, used = iter(loader), iter(loader)
    first = [values.tolist() for (values,) in used]
    assert loader.epoch == 0
    assert first == batches(loader_of(0, 2))
    del unused


def test_iterators_keep_the_epoch_in_which_they_began() -> None:
    loader = loader_of(1, 2)
    expected = [batches(loader), batches(loader)]
    loader.set_epoch(0)
    iterators = [iter(loader), iter(loader)]
    assert [[values.tolist() for (values,) in iterator] for iterator in iterators] == expected


def test_worker_processes_give_the_same_batches() -> None:
    loader = loader_of(1, 3, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    here = loader_of(1, 3)
    assert loader.torch_loader.persistent_workers
    assert [batches(loader), batches(loader)] == [batches(here), batches(here)]


def test_a_limit_for_processes_that_there_are_none_of_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="timeout=5 limits waits for the processes"):
        loader_of(0, 1, timeout=5)


def test_it_shows_what_it_was_made_of() -> None:
    be(0, 2)
    data = numbers(21)
    loader = quorate.loader(data, 4, collate_fn=len)
    assert loader.dataset is data
    assert loader.batch_size == 4
    assert len(loader) == 3
    assert list(loader) == [4, 4, 3]
    assert len(quorate.loader(data, 4, drop_last=True)) == 2


def test_a_world_must_have_been_joined() -> None:
    with pytest.raises(ConfigurationError, match=r"call quorate.join\(\) first"):
        quorate.loader(numbers(4), 2)


def test_unknown_share() -> None:
    with pytest.raises(
        ConfigurationError, match=r'unknown share "statik"; did you mean "static".* Known: dynamic, static'
    ):
        loader_of(0, 2, share="statik")


@pytest.mark.parametrize("batch_size", [0, -3, True, 2.5])
def test_batch_size_must_be_positive(batch_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"batch_size must be a whole number of at least 1.*{batch_size}"):
        loader_of(0, 2, batch_size=batch_size)


def test_data_needs_a_length_or_is_a_stream() -> None:
    be(0, 2)
    with pytest.raises(ConfigurationError, match="or a stream, and not a Bag"):
        quorate.loader(Bag(), 2)


def test_empty_data() -> None:
    with pytest.raises(ConfigurationError, match=r"dataset \(TensorDataset\) is empty"):
        loader_of(0, 2, n=0)


def test_a_batch_larger_than_the_data_is_refused_where_it_is_trained_on() -> None:
    with pytest.raises(ConfigurationError, match="batch_size 42 is larger than the whole dataset of 41 examples"):
        loader_of(0, 2, n=41, batch_size=42)
    assert len(loader_of(0, 2, n=41, batch_size=42, shuffle=False)) == 1
    assert len(loader_of(0, 2, n=41, batch_size=41)) == 1


def test_no_batch_left() -> None:
    message = (
        "batch_size 64 is larger than this rank's share of 20 examples; drop_last=True would leave no batch: "
        "use a batch_size of at most 20 or drop_last=False"
    )
    with pytest.raises(ConfigurationError, match=message):
        loader_of(0, 2, n=41, batch_size=64, drop_last=True)
    with pytest.raises(ConfigurationError, match=r"share of 0 examples.*no batch: drop_last=False"):
        loader_of(0, 5, n=4, batch_size=1, drop_last=True)
    assert len(loader_of(0, 2, n=41, batch_size=40)) == 1
