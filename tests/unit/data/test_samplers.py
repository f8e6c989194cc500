"""Samplers in `quorate.loader`: drawn once for all workers and dealt, or used as they are where they draw for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

DATA = torch.arange(24)
Epochs = list[list[list[int]]]
"""By epoch, the batches of one worker."""


class Odd:
    """A sampler of a user: the odd examples, in an order that a generator of its own has."""

    def __init__(self, seed: int = 0) -> None:
        self._seed, self.draws = seed, 0

    def __iter__(self) -> Iterator[int]:
        self.draws += 1
        draw = torch.Generator().manual_seed(self._seed + self.draws)
        return iter((1 + 2 * torch.randperm(12, generator=draw)).tolist())


def epochs_of(size: int, make: Callable[[quorate.World], Any], epochs: int = 2) -> list[Epochs]:
    def live(world: quorate.World) -> Epochs:
        loader = make(world)
        return [[batch.tolist() for batch in loader] for _ in range(epochs)]

    return VirtualWorld(size).run(joined(live))


def counted(workers: list[Epochs], epoch: int) -> Counter[int]:
    return Counter(index for worker in workers for batch in worker[epoch] for index in batch)


@pytest.mark.parametrize("share", ["static", "dynamic"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sampler_is_drawn_once_and_dealt(size: int, share: Any) -> None:
    workers = epochs_of(size, lambda world: quorate.loader(DATA, 2, sampler=Odd(), share=share))
    for epoch in range(2):
        assert counted(workers, epoch) == Counter(range(1, 24, 2))
    assert [worker[0] for worker in workers] != [worker[1] for worker in workers]


def test_weights_and_random_samplers_draw_alike_on_all_workers() -> None:
    weights = [0.0] * 12 + [1.0] * 12
    weighted = epochs_of(2, lambda world: quorate.loader(DATA, 2, sampler=WeightedRandomSampler(weights, 16)))
    assert sum(counted(weighted, 0).values()) == 16 and min(counted(weighted, 0)) >= 12
    generator = torch.Generator().manual_seed(5)
    shuffled = epochs_of(3, lambda world: quorate.loader(DATA, 4, sampler=RandomSampler(DATA, generator=generator)))
    assert counted(shuffled, 0) == counted(shuffled, 1) == Counter(range(24))


def test_epochs_are_the_same_after_resuming_with_another_number_of_workers() -> None:
    def begin(world: quorate.World) -> tuple[list[int], dict[str, Any]]:
        loader = quorate.loader(DATA, 2, sampler=Odd())
        list(loader)
        batches = iter(loader)
        return [*next(batches).tolist(), *next(batches).tolist()], loader.state_dict()

    seen, states = zip(*VirtualWorld(2).run(joined(begin)), strict=True)

    def go_on(world: quorate.World) -> list[list[int]]:
        loader = quorate.loader(DATA, 1, sampler=Odd())
        loader.load_state_dicts(list(states))
        return [torch.cat([*loader]).tolist() for _ in range(2)]

    later = VirtualWorld(1).run(joined(go_on))[0]
    assert sorted([*seen[0], *seen[1], *later[0]]) == list(range(1, 24, 2))
    assert later[1] == list(Odd(2)) != list(Odd(1)), "the third epoch of the sampler"


@pytest.mark.parametrize("share", ["static", "dynamic"])
def test_batches_of_a_batch_sampler_stay_whole(share: Any) -> None:
    drawn = [[0, 1], [2], [3, 4, 5], [6, 7, 8, 9]]
    workers = epochs_of(2, lambda world: quorate.loader(DATA, batch_sampler=drawn, share=share))
    assert sorted(batch for worker in workers for batch in worker[0]) == drawn
    shuffled = epochs_of(
        2, lambda world: quorate.loader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 5, False))
    )
    assert counted(shuffled, 1) >= Counter(range(24)), "the last batch is short, and one of five batches appears twice"


def test_a_sampler_of_one_worker_is_used_as_it_is() -> None:
    def make(world: quorate.World) -> Any:
        sampler = DistributedSampler(DATA, world.size, world.rank, seed=3)  # type: ignore[arg-type, var-annotated]
        return quorate.loader(DATA, 4, sampler=sampler)

    for rank, worker in enumerate(epochs_of(2, make)):
        sampler = DistributedSampler(DATA, 2, rank, seed=3)  # type: ignore[arg-type, var-annotated]
        for epoch, batches in enumerate(worker):
            sampler.set_epoch(epoch)
            assert [index for batch in batches for index in batch] == list(sampler)


def test_budgets_of_tokens_hold_and_every_example_appears() -> None:
    lengths = [1 + index * index % 17 for index in range(24)]
    workers = epochs_of(2, lambda world: quorate.loader(DATA, tokens_per_batch=30, lengths=lengths, share="dynamic"), 3)
    batches = [batch for worker in workers for epoch in worker for batch in epoch]
    assert max(len(batch) * max(lengths[index] for index in batch) for batch in batches) <= 30
    assert [counted(workers, epoch) for epoch in range(3)] == [Counter(range(24))] * 3
    assert len({sum(len(worker[epoch]) for worker in workers) for epoch in range(3)}) == 1
    by_function = epochs_of(2, lambda w: quorate.loader(DATA, tokens_per_batch=30, lengths=lambda x: lengths[x]))
    assert counted(by_function, 0).keys() == set(range(24))


def refusal(make: Callable[[quorate.World], Any], size: int = 1) -> str:
    with pytest.raises(ConfigurationError) as refused:
        VirtualWorld(size).run(joined(make))
    return str(refused.value)


def test_samplers_that_draw_differently_are_refused() -> None:
    said = refusal(lambda world: quorate.loader(DATA, 2, sampler=Odd(world.rank)), 2)
    assert "workers would distribute different epochs" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 2, "sampler": iter([1, 2])}, "sampler is an iterator, which is empty after one epoch"),
        ({"batch_size": 2, "sampler": [1, 24]}, "drew the index 24 in epoch 0, and the dataset has 24 examples"),
        ({"batch_size": 2, "sampler": ["a"]}, "a sampler draws indices, whole numbers from 0"),
        ({"batch_size": 1, "sampler": []}, "the sampler (list) is empty"),
        ({"batch_size": 2, "sampler": [1], "tokens_per_batch": 3}, "sampler and tokens_per_batch cannot be combined"),
        ({"batch_size": 2, "batch_sampler": [[1]]}, "batch_sampler and batch_size cannot be combined"),
        ({"batch_sampler": [[1]], "batch": "auto"}, 'batch="auto" doubles batch_size'),
        ({"tokens_per_batch": 0, "lengths": [1] * 24}, "tokens_per_batch must be a whole number (at least 1)"),
        ({"tokens_per_batch": 3}, "tokens_per_batch needs the length of each example"),
        ({"tokens_per_batch": 3, "lengths": [1]}, "lengths must be 24 whole numbers of at least 1"),
        ({"batch_size": 2, "lengths": [1] * 24}, "lengths= belongs to tokens_per_batch="),
        ({}, "quorate.loader needs batch_size"),
        ({"batch_size": 2, "sampler": [1], "partition": "iid"}, "a sampler cannot be combined with partition"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    assert said in refusal(lambda world: quorate.loader(DATA, **arguments))


def test_samplers_of_one_worker_say_for_whom_they_draw() -> None:
    wrong = DistributedSampler(DATA, 3, 0)  # type: ignore[arg-type, var-annotated]
    assert "draws for rank 0 of 3, and this is rank " in refusal(lambda w: quorate.loader(DATA, 2, sampler=wrong), 2)

    class Shrinking(Odd):
        def __iter__(self) -> Iterator[int]:
            return iter(list(super().__iter__())[self.draws :])

    def live(world: quorate.World) -> None:
        loader = quorate.loader(DATA, 2, sampler=Shrinking())
        list(loader)
        list(loader)

    assert "drew 10 entries in epoch 1 and 11 in the first" in refusal(live)
