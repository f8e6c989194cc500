"""Under every strategy gradients are applied at the rate that synchronous training has at that point of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_TENSOR
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer

STEPS = 60
PEAK = 1.0
IN_ROUNDS = ["adaptive", "bounded-staleness", "eager-majority", "eager-solo", "quorum"]
Applied = list[tuple[float, float]]
"""(gradients, at which rate)"""


def trained(
    name: str,
    speeds: tuple[int, ...],
    *,
    share: str = "dynamic",
    schedule: Callable[[Any], Any] = lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS),
    after_step: Callable[[Any, Any, int], None] = lambda scheduler, optimizer, step: scheduler.step(),
) -> list[tuple[int, Applied, Any]]:
    """Of each worker: how many steps it made, what it saw applied, and its scheduler; `speeds` are seconds of a step.

    Where replicas are equal, rank 0 has seen all that was applied anywhere.
    """
    schedulers: dict[int, Any] = {}

    def noted(trainer: Trainer, call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any, **named: Any) -> Any:
            trainer.seen.append((1.0, trainer.rate))
            return call(*given, **named)

        return note

    def begin(trainer: Trainer) -> None:
        schedulers[trainer.rank], worker = schedule(trainer.optimizer), trainer.worker
        if worker.is_served and worker.strategy.replicas == "meet":
            worker.servers.push = noted(trainer, worker.servers.push)
        elif worker.differs or not worker.has_rounds:
            worker.replica.update = noted(trainer, worker.replica.update)

    def look(trainer: Trainer) -> tuple[int, Applied, Any]:
        seen = [one for one in trainer.rounds if one.weight and trainer.rank == 0 and not trainer.worker.differs]
        found = [(one.weight, one.options[0]["lr"]) for one in seen]
        return trainer.step, trainer.seen or found, schedulers[trainer.rank]

    fields: Any = {
        "model": partial(nn.Linear, 4, 1, bias=False),
        "rate": PEAK,
        "data": torch.utils.data.TensorDataset(torch.linspace(-1, 1, STEPS * len(speeds) * 4).view(-1, 4)),
        "shard": {"batch_size": 1, "share": share},
        "loss": lambda trainer: (trainer.model(trainer.batch[0]) * 0).sum(),
        "pause": lambda rank, step: 0.01 * speeds[rank],
        "begin": begin,
        "after": lambda trainer: after_step(schedulers[trainer.rank], trainer.optimizer, trainer.step),
        "settings": OF_ONE_TENSOR.get(name, {}),
    }
    return Scene(name, len(speeds), world={"seed": 1}, **fields).run(look)


def below(found: list[tuple[int, Applied, Any]], rate: float = 0.05 * PEAK) -> float:
    """The share of gradients that were applied below `rate`."""
    applied = [each for _, own, _ in found for each in own]
    return sum(count for count, at in applied if at < rate) / sum(count for count, _ in applied)


SYNCHRONOUS = 2 / STEPS  # below a twentieth of the peak are the last two steps


@pytest.mark.parametrize(
    ("share", "name"), [*(("dynamic", name) for name in NAMES), *(("static", n) for n in IN_ROUNDS)]
)
def test_as_few_gradients_come_at_low_rates_as_in_synchronous_training(name: str, share: str) -> None:
    found = trained(name, (4, 3, 2, 1), share=share)
    assert abs(below(found) - SYNCHRONOUS) <= 0.02
    assert min(rate for _, own, _ in found for _, rate in own) >= -1 / STEPS, "no schedule goes past its end"


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_each_gradient_comes_within_a_step_of_its_rate(name: str) -> None:
    (_, applied, _), *_ = trained(name, (4, 3, 2, 1))
    done = 0.0
    for count, rate in applied:
        assert abs(rate - (1 - int(done + 1e-6) / STEPS)) <= 1.01 / STEPS, f"after {done} steps"
        done += count / 4
    assert done == pytest.approx(STEPS)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=PEAK, total_steps=STEPS),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, STEPS // 4),
    "warm-up, then linear": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 16), lr_scheduler.LinearLR(o, 1.0, 0.01, STEPS - 16)], [16]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 5), lr_scheduler.ExponentialLR(o, 0.95)]
    ),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [15, 30, 45], 0.3),
}


@pytest.mark.covering(("name", "schedule"), product(["eager-solo", "ad-psgd"], SCHEDULES))
def test_every_kind_of_schedule_is_where_the_training_is(name: str, schedule: str) -> None:
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    alone, rates = SCHEDULES[schedule](plain), []
    for _ in range(STEPS):
        rates.append(plain.param_groups[0]["lr"])
        plain.step()
        alone.step()
    found = trained(name, (4, 3, 2, 1), schedule=SCHEDULES[schedule])
    applied = [each for _, own, _ in found for each in own]
    assert all(any(at == pytest.approx(rate, rel=1e-9, abs=1e-12) for rate in rates) for _, at in applied)
    mean = sum(count * at for count, at in applied) / sum(count for count, _ in applied)
    assert mean == pytest.approx(sum(rates) / STEPS, rel=0.1)


def test_a_plateau_is_waited_for_in_steps_of_the_training() -> None:
    """The loss never falls, so the rate falls each time that patience is over: after 11 steps, 22 and 33."""

    def told(scheduler: Any, optimizer: Any, step: int) -> None:
        scheduler.step(1.0)

    found = trained(
        "eager-solo",
        (4, 3, 2, 1),
        schedule=lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=10),
        after_step=told,
    )
    (_, applied, _), *_ = found
    at_first = sum(count for count, rate in applied if rate == PEAK) / 4
    assert 11 <= at_first <= 13


def test_a_schedule_of_epochs_is_stepped_when_the_script_says_so() -> None:
    """Twice in the middle of the training, by each worker's own count."""

    def seldom(scheduler: Any, optimizer: Any, step: int) -> None:
        if step in (10, 20):
            scheduler.step()

    found = trained(
        "eager-solo", (1, 1, 1, 1), schedule=lambda o: lr_scheduler.ExponentialLR(o, 0.5), after_step=seldom
    )
    (_, applied, scheduler), *_ = found
    assert scheduler.last_epoch == 2
    assert [rate for _, rate in applied] == sorted((rate for _, rate in applied), reverse=True)
    assert sum(count for count, rate in applied if rate == PEAK) / 4 == pytest.approx(10, abs=1.3)


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_rates_that_the_script_writes_before_each_step_are_for_the_steps_of_the_training(name: str) -> None:
    def by_hand(scheduler: Any, optimizer: Any, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (1 - step / STEPS)

    found = trained(name, (4, 3, 2, 1), schedule=lambda o: None, after_step=by_hand)
    assert abs(below(found) - SYNCHRONOUS) <= 0.02
    assert min(rate for _, own, _ in found for _, rate in own) > 0


class Own(lr_scheduler.LRScheduler):
    """With a `step` of its own, defined after an optimizer was distributed."""

    def get_lr(self) -> Any:
        return [base / (1 + self.last_epoch) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)


def test_a_scheduler_class_of_ones_own_goes_by_the_training() -> None:
    found = trained("eager-solo", (4, 3, 2, 1), schedule=Own)
    assert max(scheduler.last_epoch for _, _, scheduler in found) <= STEPS
    (_, applied, _), *_ = found
    assert sum(count for count, rate in applied if rate == PEAK) / 4 == pytest.approx(1, abs=1)


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd", "quorum"])
def test_a_newcomer_goes_on_at_the_rate_of_the_others(strategy: str, has_loader: bool) -> None:
    """It is admitted when the schedulers of the others have stepped, and so has their rate in its first step."""
    data = TensorDataset(torch.ones(200, 4))

    def train(world: World) -> dict[float, int]:
        model = nn.Linear(4, 1)
        plain = torch.optim.SGD(model.parameters(), lr=PEAK)
        optimizer: Any = quorate.distribute(plain, model, strategy, on_death="continue")
        scheduler = lr_scheduler.StepLR(plain, 1, 0.9)
        worker, rates = optimizer.__dict__["_quorate_worker"], dict[float, int]()
        for (x,) in quorate.loader(data, batch_size=4) if has_loader else [(data[:4][0],)] * 25:
            model(x).square().mean().backward()
            world.wire.clock.sleep(0.01)
            optimizer.step()
            rates.setdefault(plain.param_groups[0]["lr"], worker.updates)
            scheduler.step()
            optimizer.zero_grad()
        optimizer.finish()
        return rates

    def live(wire: Wire) -> dict[float, int]:
        wire.clock.sleep(0.105 if wire.is_newcomer else 0.0)
        return joined(train)(wire)

    first, _, newcomer = (end.result or {} for end in VirtualWorld(2, joiners=1, timeout=20.0).outcomes(live))
    common = first.keys() & newcomer.keys()
    assert len(common) >= 5
    if strategy == "all-reduce":
        assert {rate: newcomer[rate] for rate in common} == {rate: first[rate] for rate in common}


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "torch's": lambda plain: lr_scheduler.LambdaLR(plain, lambda step: 1 - step / STEPS),
    "by examples": lambda plain: quorate.schedule(
        plain, STEPS * 6, batch_size=2, base_batch_size=6, warm_up_examples=0, decay="polynomial", power=1.0
    ),
}


class CountedRestarts(lr_scheduler.CosineAnnealingWarmRestarts):
    """Counts the calls of its `step`."""

    calls = 0

    def step(self, epoch: Any = None) -> None:
        self.calls += 1
        super().step(epoch)


@pytest.mark.parametrize("name", ["eager-solo", "all-reduce"])
def test_a_schedule_that_is_told_its_place_is_stepped_once(name: str) -> None:
    """As `step(epoch + batch / batches)`, with ten batches in an epoch."""

    def schedule(optimizer: Any) -> Any:
        scheduler = CountedRestarts(optimizer, STEPS // 10)
        scheduler.calls = 0
        return scheduler

    found = trained(name, (2, 1), schedule=schedule, after_step=lambda scheduler, _, step: scheduler.step(step / 10))
    assert [scheduler.calls for *_, scheduler in found] == [steps for steps, *_ in found]


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("name", IN_ROUNDS)
def test_rounds_that_are_applied_in_a_pause_count_for_the_next_rate(name: str, kind: str) -> None:
    """The pause applies rounds that the newest step of a worker has not; its rate is that of the training then."""

    def train(world: World) -> int:
        model = nn.Linear(4, 1)
        plain = torch.optim.SGD(model.parameters(), lr=PEAK)
        optimizer: Any = quorate.distribute(plain, model, name)
        scheduler, worker, missed = SCHEDULERS[kind](optimizer), optimizer.__dict__["_quorate_worker"], 0
        for step in range(12):
            world.wire.clock.sleep(0.01 * (1 + 3 * world.rank))
            (model(torch.ones(2, 4)) * 0).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step % 4 == 3:
                before = plain.param_groups[0]["lr"]
                with world.evaluate():
                    pass
                expected = PEAK * (1 - int(worker.progress + 1e-6) / STEPS)
                assert plain.param_groups[0]["lr"] == pytest.approx(expected)
                missed += before != plain.param_groups[0]["lr"]
        optimizer.finish()
        return missed

    missed = VirtualWorld(3, seed=1, timeout=60.0).run(joined(train))
    assert sum(missed) > 0 or name == "quorum"
