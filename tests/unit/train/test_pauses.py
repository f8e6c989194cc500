"""Data dealt out as it goes, ends by time, evaluations in the middle: all workers come out together, and equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.wire import current
from quorate.wire.virtual.compute import ComputeModel, Constant, Sampled
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZES = [1, 2, 3, 5, 8]


def run(size: int, task: Callable[[Any], Any], compute: ComputeModel | None = None, seed: int = 0) -> list[Any]:
    world = VirtualWorld(size, seed=seed, compute=compute or Sampled("uniform", 0.001, 0.1, seed))
    return world.run(joined(task))


def setting(examples: int, share: str, batch_size: int = 2) -> tuple[torch.nn.Module, Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    quorate.distribute(optimizer, model, with_one_worker="algorithm")
    data = TensorDataset(torch.arange(examples, dtype=torch.float32).unsqueeze(1))
    return model, optimizer, quorate.loader(data, batch_size, share=share, drop_last=True)


def epoch(model: torch.nn.Module, optimizer: Any, loader: Any) -> list[int]:
    seen: list[int] = []
    for (inputs,) in loader:
        seen += inputs.squeeze(1).int().tolist()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return seen


def numbers(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.seeds(1, 8)
def test_a_dynamic_share_gives_every_example_once_and_replicas_come_out_equal(size: int, seed: int) -> None:
    def task(world: quorate.World) -> Any:
        parts = setting(38, "dynamic")
        epochs = []
        for _ in range(3):
            seen = epoch(*parts)
            epochs.append((seen, numbers(parts[0]), parts[1].state_dict()["state"][0]["momentum_buffer"].clone()))
        return epochs

    results = run(size, task, seed=seed)
    for number in range(3):
        assert sorted(i for result in results for i in result[number][0]) == list(range(38))
        for result in results:
            assert torch.equal(result[number][1], results[0][number][1])
            assert torch.equal(result[number][2], results[0][number][2])
    if size > 1:
        assert results[0][0][0] != results[0][1][0]


def test_the_faster_worker_computes_more() -> None:
    def task(world: quorate.World) -> int:
        _, _, loader = setting(64, "dynamic")
        taken = 0
        for _ in loader:  # no optimizer steps: nobody waits for anybody
            world.wire.clock.sleep(0.03 if world.rank == 2 else 0.01)
            taken += 1
        return taken

    assert sorted(run(3, task)) == [5, 13, 14]


def test_workers_may_do_different_things_before_an_evaluation() -> None:
    """Rank r makes r extra steps with data of its own; the others keep it company."""

    def task(world: quorate.World) -> Any:
        model, optimizer, loader = setting(16, "static")
        epoch(model, optimizer, loader)
        for _ in range(world.rank):
            optimizer.zero_grad()
            model(torch.randn(4, 1)).square().mean().backward()
            optimizer.step()
        before = numbers(model)
        with world.evaluate():
            inside = numbers(model), model[1].running_mean.clone()  # type: ignore[index, union-attr, operator]
        epoch(model, optimizer, loader)
        optimizer.finish()
        return *inside, numbers(model), before

    for size in SIZES:
        results = run(size, task)
        for result in results:
            assert all(torch.equal(a, b) for a, b in zip(result[:3], results[0][:3], strict=True))
            assert torch.equal(result[0], results[-1][3])  # of the one that has come furthest


def test_one_that_has_finished_does_not_hold_up_an_evaluation() -> None:
    def task(world: quorate.World) -> float:
        model, optimizer, loader = setting(12, "static")
        if world.rank == 0:
            optimizer.finish()
            return 0.0
        epoch(model, optimizer, loader)
        place = current.here()
        from quorate.train.pauses import pause

        pause(place)
        at = world.wire.clock.now()
        epoch(model, optimizer, loader)
        optimizer.finish()
        return at

    assert run(2, task, Constant(0.01))[1] < 0.2


@pytest.mark.parametrize("share", ["static", "dynamic"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_time_is_up_for_all_at_the_same_step(size: int, share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SECONDS", "0.5")

    def task(world: quorate.World) -> Any:
        parts = setting(4000, share)
        seen = len(epoch(*parts)) // 2
        with world.evaluate():
            world.wire.clock.sleep(100.0)
        return seen, len(epoch(*parts)), world.wire.clock.now(), numbers(parts[0])

    results = run(size, task, Constant(0.01))
    assert {result[0] for result in results} <= {50, 51, 52}
    assert len({result[0] for result in results}) == 1
    assert all(result[1] == 0 for result in results)
    assert all(torch.equal(result[3], results[0][3]) for result in results)


def test_an_evaluation_does_not_use_up_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SECONDS", "0.5")

    def task(world: quorate.World) -> int:
        parts = setting(80, "static")
        before = len(epoch(*parts))
        with world.evaluate():
            world.wire.clock.sleep(100.0)
        return before + len(epoch(*parts))

    assert run(2, task, Constant(0.01)) == [80, 80]


def test_the_launcher_goes_before_the_script_where_data_is_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_DATA_SHARE", "dynamic")
    monkeypatch.setenv("QUORATE_SEED", "5")

    def task(world: quorate.World) -> Any:
        data = TensorDataset(torch.arange(10))
        training, test = quorate.loader(data, 10), quorate.loader(data, 10, shuffle=False)
        return [batch.tolist() for (batch,) in training], [batch.tolist() for (batch,) in test]

    results = run(2, task)
    expected = torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()
    assert sorted(len(result[0]) for result in results) == [0, 1]
    assert [batch for result in results for batch in result[0]] == [expected]
    assert [len(result[1][0]) for result in results] == [5, 5]
