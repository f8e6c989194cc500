"""What travels with a gradient: options that never go back, norms, weights, scales; and what does not compose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from quorate.rounds.log import Round
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def run(size: int, task: Any) -> list[Any]:
    return VirtualWorld(size).run(joined(task))


def rounds_of(optimizer: Any) -> list[Round]:
    """The rounds this worker sees, from now on."""
    seen: list[Round] = []
    watch = optimizer.__dict__["_quorate_worker"]._rounds.watch
    noted = watch.note_round
    watch.note_round = lambda one: (seen.append(one), noted(one))
    return seen


def test_the_learning_rate_is_that_of_the_most_advanced_and_never_goes_back() -> None:
    """Cosine over 30 local steps; rank 2 is three times slower, so its own schedule is far behind."""

    def task(world: quorate.World) -> Any:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for=2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        seen, applied = rounds_of(optimizer), []
        optimizer.register_step_pre_hook(lambda o, *_: applied.append(o.param_groups[0]["lr"]))
        for _ in range(30 if world.rank < 2 else 10):
            optimizer.zero_grad()
            world.wire.clock.sleep(0.03 if world.rank == 2 else 0.01)
            model(torch.ones(1, 2)).sum().backward()
            mine = optimizer.param_groups[0]["lr"]
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == mine
            scheduler.step()
        optimizer.finish()
        return applied, [one.step for one in seen if one.sum is not None], optimizer.param_groups[0]["lr"]

    found = run(3, task)
    rates, places, _ = found[0]
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 30)
    expected = {}
    for step in range(1, 31):
        expected[step] = reference.param_groups[0]["lr"]
        reference.step()
        schedule.step()
    assert [measures[0] for measures in found] == [rates] * 3
    assert places == sorted(places)
    assert rates == pytest.approx([expected[int(place + 1e-6) + 1] for place in places])
    assert rates == sorted(rates, reverse=True)
    assert found[2][2] <= 0.5 + 1e-9, "its own scheduler is where the training is, though it has made few steps"


def test_the_norm_of_the_mean_is_clipped() -> None:
    def task(world: quorate.World) -> torch.Tensor:
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for="all", clip_norm=0.5)
        (model(torch.ones(1, 3)).sum() * 10 * (world.rank + 1)).backward()
        optimizer.step()
        optimizer.finish()
        return model.weight.detach()

    for weight in run(2, task):
        assert float(weight.norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("divide_by", "moved"), [("world", 1.0), ("arrived", 2.0)])
def test_what_a_round_is_divided_by(divide_by: str, moved: float) -> None:
    """Rank 0 steps twice while rank 1 computes: its rounds have one contributor of two workers."""

    def task(world: quorate.World) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for=1, divide_by=divide_by)
        if world.rank == 1:
            world.wire.clock.sleep(1.0)
        for _ in range(2):
            if world.rank == 0:
                optimizer.zero_grad()
                (-model(torch.ones(1, 1))).sum().backward()
                optimizer.step()
        at = model.weight.item()
        optimizer.finish()
        return at

    assert run(2, task)[0] == pytest.approx(moved)


def test_late_gradients_may_count_less() -> None:
    def task(world: quorate.World) -> list[tuple[float, dict[int, list[tuple[int, int]]]]]:
        model = torch.nn.Linear(1, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for=1, late_weight="falling")
        seen = rounds_of(optimizer)
        for _ in range(8 if world.rank == 0 else 2):
            optimizer.zero_grad()
            world.wire.clock.sleep(0.01 if world.rank == 0 else 0.035)
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        optimizer.finish()
        return [(one.weight, one.contributors) for one in seen]

    late = 0
    for weight, contributors in run(2, task)[0]:
        expected = sum(n / (1 + s) for given in contributors.values() for s, n in given)
        late += any(s > 0 for given in contributors.values() for s, _ in given)
        assert weight == pytest.approx(expected)
    assert late


def test_gradients_are_handed_in_unscaled_and_one_that_overflowed_is_not() -> None:
    def task(world: quorate.World) -> tuple[float, list[float]]:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for="all")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        seen = rounds_of(optimizer)
        for step in range(3):
            optimizer.zero_grad()
            bad = step == 1 and world.rank == 1
            loss = model(torch.full((1, 1), float("inf") if bad else -1.0)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        return model.weight.item(), [one.weight for one in seen]

    for weight, weights in run(2, task):
        assert weights[:3] == [2.0, 1.0, 2.0]
        assert weight == pytest.approx(1.0 + 0.5 + 1.0)


def test_several_optimizers_have_rounds_of_their_own() -> None:
    def task(world: quorate.World) -> torch.Tensor:
        one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        optimizers: list[Any] = [
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="quorum", wait_for=1)
            for model in (one, other)
        ]
        draw = torch.Generator().manual_seed(world.rank)
        for step in range(8):
            world.wire.clock.sleep(0.01 * (1 + world.rank))
            for optimizer in optimizers[: 1 + step % 2]:
                optimizer.zero_grad()
                other(one(torch.randn(3, 2, generator=draw))).square().mean().backward()
                optimizer.step()
        for optimizer in optimizers:
            optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for model in (one, other) for p in model.parameters()])

    found = run(3, task)
    assert all(torch.equal(measures, found[0]) for measures in found)


def test_a_closure_is_asked_once_and_its_loss_returned() -> None:
    def task(world: quorate.World) -> tuple[float, float]:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
        quorate.distribute(optimizer, model, strategy="quorum", wait_for="all")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 1)).sum() * (world.rank + 1)
            loss.backward()
            return loss

        loss = optimizer.step(closure).item()
        optimizer.finish()
        return loss, model.weight.item()

    assert run(2, task) == [(1.0, 0.25), (2.0, 0.25)]


def test_lbfgs_is_refused() -> None:
    def task(world: quorate.World) -> None:
        model = torch.nn.Linear(1, 1)
        quorate.distribute(torch.optim.LBFGS(model.parameters()), model, strategy="eager-solo")

    with pytest.raises(ConfigurationError, match="LBFGS asks for the loss several times a step"):
        run(2, task)
