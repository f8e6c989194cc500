"""Trainings with Horovod's API: the optimizer, objects, elastic state, and workers with unequal data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
import quorate.horovod as hvd
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.unit.horovod.test_collectives import SIZE, on_workers


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def numbers(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def train(optimizer: Any, model: nn.Module, rank: int, steps: int = 6, passes: int = 1) -> list[float]:
    for step in range(steps):
        for number in range(passes):
            model(batch(rank, passes * step + number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    return numbers(model)


def trained(**given: Any) -> list[list[float]]:
    passes = given.get("backward_passes_per_step", 1)

    def task(rank: int) -> list[float]:
        model = model_of(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        distributed = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **given)
        assert distributed is optimizer
        return train(distributed, model, rank, passes=passes)

    return on_workers(task)


def by_three_lines(**settings: Any) -> list[list[float]]:
    def live(world: quorate.World) -> list[float]:
        model = model_of(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return train(quorate.distribute(optimizer, model, **settings), model, world.rank)

    return VirtualWorld(SIZE).run(joined(live))


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority", "local-sgd", "d-psgd"])
def test_a_strategy_learns_the_bits_of_three_lines(strategy: str) -> None:
    assert trained(strategy=strategy) == by_three_lines(strategy=strategy)


def by_hand(factor: float, passes: int = 1) -> list[float]:
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(6):
        for rank in range(SIZE):
            for number in range(passes):
                (model(batch(rank, passes * step + number)).square().mean() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(model)


@pytest.mark.parametrize(
    ("given", "factor", "passes"),
    [
        ({}, 1 / SIZE, 1),
        ({"op": hvd.Sum}, 1.0, 1),
        ({"gradient_predivide_factor": 2.0}, 1 / SIZE, 1),
        ({"backward_passes_per_step": 2}, 1 / SIZE, 2),
        ({"num_groups": 2}, 1 / SIZE, 1),
    ],
    ids=str,
)
def test_gradients_are_those_of_all_workers(given: dict[str, Any], factor: float, passes: int) -> None:
    expected = by_hand(factor, passes)
    for end in trained(**given):
        assert end == pytest.approx(expected, abs=1e-6)


def test_adasum_and_half_are_those_of_distribute() -> None:
    assert trained(op=hvd.Adasum) == by_three_lines(reduce="adasum")
    assert trained(compression=hvd.Compression.fp16) == by_three_lines(compress="half")


def test_gradients_are_clipped_between_synchronize_and_step() -> None:
    def task(rank: int) -> list[float]:
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
        )
        for step in range(3):
            model(batch(rank, step)).square().mean().backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        return numbers(model)

    expected, model = [], model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        for rank in range(SIZE):
            (model(batch(rank, step)).square().mean() / SIZE).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    expected = numbers(model)
    for end in on_workers(task):
        assert end == pytest.approx(expected, abs=1e-6)


REFUSED: dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]] = {
    "unnamed": (
        lambda model: {"named_parameters": list(model.named_parameters())[:2]},
        "2 parameters of the optimizer",
    ),
    "twice": (lambda model: {"named_parameters": [("a", p) for p in model.parameters()]}, "must be unique"),
    "no names": (lambda model: {"named_parameters": model.parameters()}, "sequence of tuples"),
    "some workers": (lambda model: {"process_set": hvd.ProcessSet([0])}, "all workers take part"),
    "predivided sum": (lambda model: {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "only with op=hvd.Average"),
    "largest": (lambda model: {"op": hvd.Max}, "hvd.Average, hvd.Sum or hvd.Adasum"),
    "own compressor": (lambda model: {"compression": object}, "write a codec"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_is_refused(name: str) -> None:
    given, words = REFUSED[name]

    def task(rank: int) -> None:
        model = model_of()
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **given(model))

    with pytest.raises(ConfigurationError, match=words):
        on_workers(task)


def test_workers_with_unequal_data_join() -> None:
    def task(rank: int) -> tuple[int, list[float]]:
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        last = 0
        for epoch in range(2):
            for step in range(2 + rank):
                model(batch(rank, 10 * epoch + step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            last = hvd.join()
        return last, numbers(model)

    results = on_workers(task)
    assert {last for last, _ in results} == {2}
    assert results[0] == results[1] == results[2]


def test_objects_and_optimizer_states_are_those_of_the_root() -> None:
    def task(rank: int) -> tuple[Any, Any, Any]:
        model = model_of()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
        model(batch(rank, 0)).sum().backward()
        optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        moments = torch.cat([s["exp_avg"].reshape(-1) for s in optimizer.state.values()]).tolist()
        copied = hvd.broadcast_object({"epoch": rank, "x": torch.ones(2) * rank}, root_rank=2)
        gathered = hvd.allgather_object([rank] * rank)
        return (optimizer.param_groups[0]["lr"], moments), (copied["epoch"], copied["x"].tolist()), gathered

    results = on_workers(task)
    assert results[0] == results[1] == results[2]
    (rate, _), copied, gathered = results[0]
    assert (rate, copied, gathered) == (0.2, (2, [2.0, 2.0]), [[], [1], [2, 2]])


def test_nothing_is_executed_that_another_worker_sends() -> None:
    with pytest.raises(ConfigurationError, match="cannot send the object, which is a builtin_function"):
        on_workers(lambda rank: hvd.broadcast_object(print if rank == 0 else None))


def test_elastic_state_is_common_committed_and_restored() -> None:
    def task(rank: int) -> list[Any]:
        model = model_of(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=rank, batch=7)

        @hvd.elastic.run
        def loop(state: Any, factor: int) -> list[Any]:
            begin = numbers(model)
            state.epoch = 5
            state.commit()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1.0)
            state.epoch, state.batch = 6, 0
            state.restore()
            assert numbers(model) == begin
            return [begin, state.epoch, state.batch, factor, optimizer.param_groups[0]["lr"]]

        return loop(state, 3)

    results = on_workers(task)
    assert results[0] == results[1] == results[2]
    assert results[0][1:] == [5, 7, 3, 0.1]


def test_the_elastic_sampler_gives_out_what_is_left() -> None:
    def task(rank: int) -> tuple[list[int], list[int]]:
        sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        begin = list(sampler)
        sampler.record_indices([0, 1, 2, 3])
        kept = sampler.state_dict()
        other = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        other.load_state_dict(kept)
        assert len(other) == len(list(other)) == 2
        sampler.set_epoch(1)
        assert list(sampler) == begin
        return begin, list(other)

    results = on_workers(task)
    assert [begin for begin, _ in results] == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert sorted(index for _, left in results for index in left) == [4, 5, 6, 7, 8, 9]


def test_batch_norms_are_over_all_workers() -> None:
    whole = nn.BatchNorm1d(4)
    expected = whole(torch.cat([batch(rank, 0) for rank in range(SIZE)]))

    def task(rank: int) -> tuple[list[float], list[float]]:
        norm = hvd.SyncBatchNorm(4)
        assert isinstance(norm, hvd.SyncBatchNorm)
        return norm(batch(rank, 0)).detach().reshape(-1).tolist(), norm.running_mean.tolist()

    results = on_workers(task)
    assert [y for x, _ in results for y in x] == pytest.approx(expected.detach().reshape(-1).tolist(), abs=1e-5)
    assert results[0][1] == pytest.approx(whole.running_mean.tolist(), abs=1e-6)
