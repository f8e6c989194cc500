"""`quorate.schedule` goes by examples: alike for any number of workers, through deaths, and for those that join."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.optim import LARS
from quorate.train.example_schedule import EXAMPLES
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.kept_trainings import in_world

BATCH, TOTAL = 4, 960.0
HOW: dict[str, Any] = {"batch_size": BATCH, "warm_up_examples": 200.0, "decay": "cosine"}


@dataclass
class Result:
    """For each step the examples before it and its rate; and the parameters, and losses, at the end."""

    rates: list[tuple[float, float]] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    moved: int = 0
    """How often the scheduler was stepped."""


def batch(number: int) -> torch.Tensor:
    return torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(number))


def train(
    world: quorate.World,
    steps: int,
    strategy: str = "all-reduce",
    *,
    accumulation: int = 1,
    calls: Callable[[int], int] = lambda step: 1,
    until: float | None = None,
    dies: int | None = None,
    made: Callable[[Any], Any] = lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9),
    how: dict[str, Any] = HOW,
    **settings: Any,
) -> Result:
    """`calls` of the scheduler after each step; with `until` it ends when that many examples have been seen."""
    torch.manual_seed(0)
    model, result = nn.Linear(3, 1).double(), Result()
    optimizer: Any = made(model.parameters())
    scheduler = quorate.schedule(optimizer, TOTAL, accumulation=accumulation, **how)
    optimizer = quorate.distribute(optimizer, model, strategy, **settings)
    for step in range(steps):
        if until is not None and scheduler.examples >= until:
            break
        if step == dies:
            world.wire.crash()
        result.rates.append((scheduler.examples, optimizer.param_groups[0]["lr"]))
        optimizer.zero_grad()
        total = 0.0
        for part in range(accumulation):
            x = batch((step * world.size + world.rank) * accumulation + part).double()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / accumulation
            if part < accumulation - 1:
                with optimizer.accumulate():
                    loss.backward()
            else:
                loss.backward()
            total += loss.item()
        result.losses.append(float(world.mean(total)) if dies is None and until is None else total)
        world.wire.clock.sleep(0.01)
        optimizer.step()
        for _ in range(calls(step)):
            scheduler.step()
    optimizer.finish()
    result.parameters, result.moved = [p.detach() for p in model.parameters()], scheduler.last_epoch
    return result


def alike(size: int, task: Callable[[quorate.World], Result]) -> list[Result]:
    return VirtualWorld(size, seed=2).run(joined(task))


def test_one_worker_that_accumulates_and_eight_that_do_not_have_the_same_rates_and_losses() -> None:
    (alone,) = alike(1, lambda world: train(world, 30, accumulation=8))
    many = alike(8, lambda world: train(world, 30))
    for result in many:
        assert result.rates == alone.rates
        assert result.losses == pytest.approx(alone.losses, rel=1e-9)
        for p, q in zip(result.parameters, alone.parameters, strict=True):
            torch.testing.assert_close(p, q)
    examples, rates = zip(*alone.rates, strict=True)
    assert examples == tuple(32.0 * step for step in range(30))
    assert rates[0] == pytest.approx(0.02) and rates[3] == pytest.approx(0.02 * (1 + 7 * 96 / 200))
    assert rates[-1] == pytest.approx(0.16 * (1 + math.cos(math.pi * (928 - 200) / 760)) / 2)


def test_a_death_does_not_change_the_rate_for_so_many_examples() -> None:
    def live(world: quorate.World) -> Result:
        dies = 5 if world.rank == 2 else None
        return train(world, 100, dies=dies, until=TOTAL, on_death="continue")

    outcomes = VirtualWorld(4, seed=2).outcomes(joined(live))
    assert [outcome.is_crashed for outcome in outcomes] == [False, False, True, False]
    left = [outcome.result for outcome in outcomes if outcome.result is not None]
    (whole, *_) = alike(4, lambda world: train(world, 60))
    rate_at = dict(whole.rates)
    for result in left:
        assert result.rates == left[0].rates
        steps = [b - a for (a, _), (b, _) in zip(result.rates, result.rates[1:], strict=False)]
        assert set(steps) == {16.0, 12.0} and steps == sorted(steps, reverse=True)
        shared = [(n, rate) for n, rate in result.rates if n in rate_at]
        assert len(shared) > 10
        assert all(rate == pytest.approx(rate_at[n], rel=1e-12) for n, rate in shared)
        assert all(torch.equal(p, q) for p, q in zip(result.parameters, left[0].parameters, strict=True))


@pytest.mark.parametrize(("strategy", "settings"), [("all-reduce", {"on_death": "continue"}), ("quorum", {})])
def test_one_that_joins_is_where_the_others_are(strategy: str, settings: dict[str, Any]) -> None:
    def live(wire: Wire) -> Result:
        if wire.is_newcomer:
            wire.clock.sleep(0.15)
        return joined(lambda world: train(world, 300, strategy, until=TOTAL, **settings))(wire)

    first, _, last = [outcome.result for outcome in VirtualWorld(2, joiners=1, seed=2).outcomes(live)]
    assert first is not None and last is not None
    assert 40 < last.rates[1][0] < 100, "after seven or eight steps of the others"
    by_then = dict(first.rates)
    if strategy == "all-reduce":
        assert all(n in by_then and rate == by_then[n] for n, rate in last.rates[1:])
    ends = [result.rates[-1][0] for result in (first, last)]
    assert ends[0] == pytest.approx(ends[1], abs=3 * BATCH)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters, last.parameters, strict=True))


@pytest.mark.parametrize("strategy", ["eager-solo", "local-sgd", "d-psgd", "parameter-server"])
def test_under_other_strategies_it_ends_where_the_examples_do(strategy: str, capfd: pytest.CaptureFixture[str]) -> None:
    def uneven(world: quorate.World) -> Result:
        world.wire.clock.sleep(0.013 * world.rank)
        return train(world, 60, strategy)

    for result in alike(4, uneven):
        assert result.rates[-1][0] == pytest.approx(TOTAL - 16, abs=48)
        assert result.moved == 60
    assert "several times" not in capfd.readouterr().err


def test_a_scheduler_that_is_stepped_rarely_has_counted_all(capfd: pytest.CaptureFixture[str]) -> None:
    often = alike(2, lambda world: train(world, 31))
    rarely = alike(2, lambda world: train(world, 31, calls=lambda step: int(step % 10 == 9)))
    assert rarely[0].rates[30] == often[0].rates[30]
    assert "several times" not in capfd.readouterr().err


def test_one_that_is_stepped_once_for_each_worker_is_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    right = alike(4, lambda world: train(world, 10))
    results = alike(4, lambda world: train(world, 10, calls=lambda step: 4))
    assert results[0].rates == right[0].rates
    assert capfd.readouterr().err.count("scheduler.step() is called several times for one optimizer.step()") == 4


def test_one_line_says_what_was_chosen(capfd: pytest.CaptureFixture[str]) -> None:
    alike(8, lambda world: train(world, 1, accumulation=2))
    assert capfd.readouterr().err == (
        "quorate: effective batch 64 (8 workers x 4 x 2 accumulated); learning rate 0.32 (0.02 x 16, linear); gradual "
        "warm-up over 200 examples from 1 times the base rate, then cosine to 0 of it at 960\n"
    )


def test_it_is_a_scheduler_of_torch_without_a_world() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [p], "lr": 1.0}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1}])
    scheduler = quorate.schedule(optimizer, 100, batch_size=5, base_batch_size=20, warm_up="none", decay="polynomial")
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.05])  # sqrt of a quarter
    for _ in range(10):
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == pytest.approx([0.125, 0.0125])


def test_it_goes_on_from_its_state_and_from_that_of_the_optimizer() -> None:
    def made() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
        return optimizer, quorate.schedule(optimizer, 100, batch_size=5, decay="cosine")

    def steps(optimizer: Any, scheduler: Any, count: int) -> Any:
        for _ in range(count):
            optimizer.step()
            scheduler.step()
        return optimizer.param_groups[0][EXAMPLES], optimizer.param_groups[0]["lr"]

    whole, first = made(), made()
    wanted = steps(*whole, 12)
    steps(*first, 7)
    both, only_optimizer = made(), made()
    both[0].load_state_dict(first[0].state_dict())
    both[1].load_state_dict(first[1].state_dict())
    only_optimizer[0].load_state_dict(first[0].state_dict())
    assert steps(*both, 5) == wanted == steps(*only_optimizer, 5)


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-solo"])
@pytest.mark.parametrize("gives", [True, False])
def test_a_checkpoint_goes_on_at_its_examples(gives: bool, strategy: str, tmp_path: Path) -> None:
    """With another number of workers, and whether the script gives the scheduler to `load` or not."""

    def live(world: quorate.World, until: float) -> list[tuple[float, float]]:
        model = nn.Linear(3, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.02)
        scheduler = quorate.schedule(optimizer, TOTAL, base_batch_size=2 * BATCH, **HOW)
        optimizer = quorate.distribute(optimizer, model, strategy)
        kept = {"scheduler": scheduler} if gives else {}
        quorate.load(**kept)
        rates = []
        while scheduler.examples < until:
            optimizer.zero_grad()
            model(batch(world.rank).float()).sum().backward()
            rates.append((scheduler.examples, optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
        quorate.save(**kept)
        optimizer.finish()
        return rates

    (whole, *_) = in_world(2, tmp_path / "none", lambda world: live(world, 800))
    in_world(2, tmp_path / "kept", lambda world: live(world, 400))
    (rest, *_) = in_world(2, tmp_path / "kept", lambda world: live(world, 800))
    slack = 0 if strategy == "all-reduce" else 2 * BATCH
    assert rest[0][0] == pytest.approx(400, abs=slack)
    at = dict(whole)
    assert all(rate == pytest.approx(at[n]) for n, rate in rest[2:])
    if strategy == "all-reduce":
        (fewer,) = in_world(1, tmp_path / "kept", lambda world: live(world, 900))
        assert fewer[0][0] == 800 and fewer[1][0] == 804


def test_momentum_correction_makes_the_papers_form_of_lars_the_corrected_one() -> None:
    def ends(inside: bool) -> torch.Tensor:
        p = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
        optimizer = LARS([p], lr=0.5, coefficient=0.1, momentum_correction=not inside)
        how: dict[str, Any] = {"warm_up_examples": 4, "base_batch_size": 1, "momentum_correction": inside}
        scheduler = quorate.schedule(optimizer, 10, batch_size=2, decay="polynomial", **how)
        for _ in range(4):
            p.grad = p.detach() ** 2
            optimizer.step()
            scheduler.step()
        return p.detach()

    torch.testing.assert_close(ends(True), ends(False))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"accumulation": 1.5}, "accumulation must be a whole number"),
        ({"scaling": "cubic"}, 'scaling "cubic"'),
        ({"momentum_correction": True}, "keep the rate in the velocity, and this one does not"),
        ({"warm_up_examples": 2 * TOTAL}, "less than total_examples"),
    ],
)
def test_what_is_wrong_is_said(how: dict[str, Any], said: str) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    with pytest.raises(ConfigurationError, match=said):
        quorate.schedule(optimizer, TOTAL, **{"batch_size": BATCH, **how})
    assert EXAMPLES not in optimizer.param_groups[0]


def test_a_call_without_what_it_needs_is_a_sentence() -> None:
    optimizer: Any = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    with pytest.raises(ConfigurationError, match="batch_size"):
        quorate.schedule(optimizer, TOTAL)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="schedule takes a torch.optim.Optimizer, not list"):
        quorate.schedule([], TOTAL, batch_size=4)  # type: ignore[arg-type]
    scheduler = quorate.schedule(optimizer, TOTAL, batch_size=4)
    with pytest.raises(ConfigurationError, match="takes no epoch"):
        scheduler.step(3)
    current.forget(thread_only=True)
