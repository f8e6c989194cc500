"""Momentum of workers: Nesterov's where nobody is late, and as good as prompt where somebody is."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import quorate
from quorate.replica.optimizer_state import keys_like_parameters
from quorate.replica.replica import Replica
from quorate.replica.worker_momentum import kind_of
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.other_optimizers import OfMatrices

Make = Callable[[Iterable[Any]], Any]
STEPS = 20


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def batch(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 4, generator=draw, dtype=torch.float64)
    return x, x.sum(1, keepdim=True)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def synchronous(
    make: Make, size: int, schedule: Callable[[Any], Any] | None = None, made: Callable[[], nn.Module] = net
) -> Tensor:
    """One process that averages what `size` workers would compute."""
    model = made()
    optimizer = make(model.parameters())
    scheduler = None if schedule is None else schedule(optimizer)
    draws = [torch.Generator().manual_seed(5 + rank) for rank in range(size)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for draw in draws:
            (loss(model, *batch(draw)) / size).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return flat(model)


def trained(
    size: int,
    make: Make,
    *,
    steps: int | Sequence[int] = STEPS,
    waits: bool = False,
    schedule: Callable[[Any], Any] | None = None,
    step: Callable[[Any, nn.Module, Tensor, int], None] | None = None,
    model: Callable[[], nn.Module] = net,
    strategy: str = "quorum",
    look: Callable[[Any, nn.Module], Any] = lambda optimizer, model: flat(model),
    **settings: Any,
) -> list[Any]:
    """Return the views of `look` on all workers at the end; `step` replaces backward and step; `steps` may be by
    rank."""

    @joined
    def live(world: quorate.World) -> Any:
        own = model()
        optimizer = quorate.distribute(make(own.parameters()), own, strategy, with_one_worker="algorithm", **settings)
        scheduler = None if schedule is None else schedule(optimizer)
        draw, chance = torch.Generator().manual_seed(5 + world.rank), random.Random(world.rank)
        for number in range(steps if isinstance(steps, int) else steps[world.rank]):
            x, y = batch(draw)
            error = loss(own, x.to(next(own.parameters()).dtype), y.to(next(own.parameters()).dtype))
            if waits:
                world.wire.clock.sleep(0.005 + chance.random() * 0.03)
            if step is None:
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
            else:
                step(optimizer, own, error, number)
            if scheduler is not None and (step is not accumulate or number % 2):
                scheduler.step()
        optimizer.finish()
        return look(optimizer, own)

    return VirtualWorld(size, seed=2).run(live)


def sgd(**options: Any) -> Make:
    return lambda p: torch.optim.SGD(p, **{"lr": 0.05, "momentum": 0.9, **options})


def adamw(**options: Any) -> Make:
    return lambda p: torch.optim.AdamW(p, **{"lr": 0.01, **options})


def groups(nesterov: bool) -> Make:
    def make(parameters: Iterable[Any]) -> Any:
        first, *rest = parameters
        several = [{"params": [first], "lr": 0.1, "momentum": 0.5}, {"params": rest}]
        return torch.optim.SGD(several, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=nesterov)

    return make


NESTEROV: dict[str, tuple[Make, Make]] = {
    "heavy ball": (sgd(), sgd(nesterov=True)),
    "nesterov": (sgd(nesterov=True), sgd(nesterov=True)),
    "decay": (sgd(weight_decay=0.01), sgd(weight_decay=0.01, nesterov=True)),
    "groups": (groups(False), groups(True)),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", NESTEROV)
def test_where_nobody_is_late_it_is_nesterovs(kind: str, size: int) -> None:
    own, reference = NESTEROV[kind]
    ends = trained(size, own, wait_for="all", momentum="worker")
    assert torch.allclose(ends[0], synchronous(reference, size), rtol=0, atol=1e-14)
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_momentum_that_a_schedule_moves_is_nesterovs_too() -> None:
    def cycle(optimizer: Any) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS + 1)

    ends = trained(3, sgd(), wait_for="all", momentum="worker", schedule=cycle)
    assert torch.allclose(ends[0], synchronous(sgd(nesterov=True), 3, cycle), rtol=0, atol=1e-14)


def test_the_common_optimizer_keeps_it_where_nobody_may_be_late() -> None:
    """By default and on request: equal to synchronous training, to the bit."""
    for settings in ({}, {"momentum": "common"}):
        assert torch.equal(
            trained(3, sgd(), wait_for="all", **settings)[0], trained(3, sgd(), strategy="all-reduce")[0]
        )


CLASSES: dict[str, Make] = {
    "SGD": sgd(dampening=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.03),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "RMSprop, momentum": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_moves_as_far_as_in_synchronous_training(kind: str) -> None:
    """A shared optimizer that makes a whole step of every round would go much further under a quorum of one."""
    begin = flat(net())
    far = float((synchronous(CLASSES[kind], 4) - begin).norm())
    ends = trained(4, CLASSES[kind], wait_for=1, waits=True)
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert 0.6 * far < float((ends[0] - begin).norm()) < 1.4 * far


def matrices() -> nn.Module:
    """Muon takes nothing else."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False)).double()


def test_muon_moves_as_far_as_in_synchronous_training(capfd: pytest.CaptureFixture[str]) -> None:
    def muon(parameters: Iterable[Any]) -> Any:
        return torch.optim.Muon(parameters, lr=0.02)

    begin = flat(matrices())
    far = float((synchronous(muon, 4, made=matrices) - begin).norm())
    ends = trained(4, muon, wait_for=1, waits=True, model=matrices)
    assert "each worker keeps the momentum of its own gradients in Muon" in capfd.readouterr().err
    assert 0.6 * far < float((ends[0] - begin).norm()) < 1.4 * far
    assert float((trained(4, muon, wait_for=1, waits=True, model=matrices, momentum="common")[0] - begin).norm()) > far


class Lion(torch.optim.Optimizer):
    """An optimizer of another package: its moment is called exp_avg, and it steps by its sign."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.add_((m * group["betas"][0] + p.grad * (1 - group["betas"][0])).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - group["betas"][1])


class Plain(torch.optim.Optimizer):
    """It keeps something that nobody knows."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.state[p].setdefault("trace", torch.zeros_like(p)).add_(p.grad)
            p.sub_(self.state[p]["trace"], alpha=self.param_groups[0]["lr"])


def test_a_class_of_another_package_is_known_by_what_it_keeps(capfd: pytest.CaptureFixture[str]) -> None:
    begin = flat(net())
    far = float((synchronous(Lion, 4) - begin).norm())
    ends = trained(4, Lion, wait_for=1, waits=True)
    assert 0.6 * far < float((ends[0] - begin).norm()) < 1.4 * far
    assert "each worker keeps the momentum of its own gradients in Lion" in capfd.readouterr().err


@pytest.mark.parametrize("make", [OfMatrices, lambda p: OfMatrices(p, momentum=0.5)])
def test_a_muon_of_another_package_is_no_sgd(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """Both keep a `momentum_buffer`; a step that normalizes its gradient is as long for one worker as for all."""
    begin = flat(matrices())
    far = float((synchronous(make, 4, made=matrices) - begin).norm())
    ends = trained(4, make, wait_for=1, waits=True, model=matrices)
    assert 0.6 * far < float((ends[0] - begin).norm()) < 1.4 * far
    assert "each worker keeps the momentum of its own gradients in OfMatrices" in capfd.readouterr().err


def kind_for(make: Make) -> str | None:
    optimizer = make(matrices().parameters())
    keys = keys_like_parameters(type(optimizer), optimizer.param_groups[0])
    return kind_of(type(optimizer), optimizer.param_groups, keys)


class Turned(torch.optim.Optimizer):
    """Adam in another basis, as SOAP: its `exp_avg_sq` has squares of other numbers than the gradient's."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                basis = torch.linalg.eigh(p.grad.T @ p.grad)[1]
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p)).lerp_(p.grad, 1 - first)
                v = self.state[p].setdefault("exp_avg_sq", torch.zeros_like(p))
                v.lerp_((p.grad @ basis).square(), 1 - second)
                p.sub_((m @ basis / (v.sqrt() + 1e-8)) @ basis.T, alpha=group["lr"])


class OwnAdam(torch.optim.Adam):
    """One that is not in torch's modules by name alone."""


class OwnHeavyBall(torch.optim.Optimizer):
    """SGD with momentum of another package."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                kept = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                p.sub_(kept.mul_(group["momentum"]).add_(p.grad), alpha=group["lr"])


def test_the_kind_of_another_package_follows_from_its_steps() -> None:
    assert kind_for(OfMatrices) == "muon"
    assert kind_for(OwnHeavyBall) == "sgd"
    assert kind_for(OwnAdam) == "adam"
    assert kind_for(Turned) is None


def test_means_of_moments_have_those_of_every_group() -> None:
    """The first group keeps none."""
    model = net()
    first, *others = model.parameters()
    groups: Any = [{"params": [first], "momentum": 0.0}, {"params": others}]
    replica = Replica(torch.optim.SGD(groups, lr=0.1, momentum=0.9), torch.optim.SGD, model, lambda *_: 0)
    assert any(segment.name.endswith("/momentum_buffer") for segment in replica.read(moments=True).layout.segments)


def test_what_is_not_known_stays_with_the_common_optimizer_and_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    end = trained(3, Plain, wait_for=1, waits=True)[0]
    assert capfd.readouterr().err.count('the shared optimizer keeps it (momentum="common")') == 1
    assert torch.equal(end, trained(3, Plain, wait_for=1, waits=True, momentum="common")[0])
    trained(3, sgd(momentum=0.0), wait_for=1, waits=True)
    assert "shared optimizer" not in capfd.readouterr().err.split("known")[-1]


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))


def error_at_end(optimizer: Any, model: nn.Module) -> float:
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float(loss(model, x, x.sum(1, keepdim=True)))


WIDE: dict[str, Any] = {"steps": 50, "model": wide, "look": error_at_end}
LEARNS: dict[str, Make] = {"fast SGD": sgd(lr=0.03), "SGD": sgd(lr=0.005), "AdamW": adamw()}


@cache
def prompt_error(kind: str) -> float:
    return float(trained(4, LEARNS[kind], strategy="all-reduce", **WIDE)[0])


@pytest.mark.parametrize("strategy", ["eager-solo", "eager-majority", "adaptive"])
def test_late_gradients_teach_with_momentum(strategy: str) -> None:
    """At a rate at which the common optimizer's momentum learns a tenth of it, or nothing."""
    run: dict[str, Any] = {"waits": True, "strategy": strategy, **WIDE}
    prompt = prompt_error("fast SGD")
    assert trained(4, LEARNS["fast SGD"], **run)[0] < 1.5 * prompt
    if strategy == "eager-solo":
        assert not trained(4, LEARNS["fast SGD"], momentum="common", **run)[0] < 3 * prompt


RULES: list[dict[str, Any]] = [
    {"late": "drop"}, {"late": "replace"}, {"late_weight": "falling"}, {"overlap": True}, {"divide_by": "arrived"},
]  # fmt: skip


@pytest.mark.parametrize("settings", RULES, ids=str)
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_every_rule_for_what_is_late_goes_with_it(settings: dict[str, Any], kind: str) -> None:
    most = 6.0 if settings.get("late") == "drop" else 1.8  # what is dropped teaches nothing
    error = trained(4, LEARNS[kind], waits=True, strategy="eager-solo", **WIDE, **settings)[0]
    assert error < most * prompt_error(kind)


def accumulate(optimizer: Any, model: nn.Module, error: Tensor, number: int) -> None:
    if number % 2:
        (error / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
    else:
        with optimizer.accumulate():
            (error / 2).backward()


@pytest.mark.parametrize("make", [sgd(lr=0.005), adamw()], ids=["SGD", "AdamW"])
def test_loops_that_accumulate_clip_and_schedule_learn(make: Make) -> None:
    def falls(optimizer: Any) -> Any:
        return lr_scheduler.CosineAnnealingLR(optimizer, WIDE["steps"])

    run: dict[str, Any] = {**WIDE, "schedule": falls, "step": accumulate}
    prompt = trained(4, make, strategy="all-reduce", **run)[0]
    assert trained(4, make, strategy="eager-solo", waits=True, **run)[0] < 1.6 * prompt
    clipped = {**run, "step": None, "strategy": "eager-solo", "clip_norm": 1.0}
    assert trained(4, make, waits=True, **clipped)[0] < 4.0


def test_a_gradient_that_is_no_number_does_not_stay_in_a_momentum() -> None:
    def bad_once(optimizer: Any, model: nn.Module, error: Tensor, number: int) -> None:
        optimizer.zero_grad()
        (error * (float("nan") if number == 5 else 1.0)).backward()
        optimizer.step()

    for make in (sgd(lr=0.01), adamw()):
        for end in trained(3, make, wait_for=1, waits=True, step=bad_once, on_nonfinite="skip"):
            assert bool(torch.isfinite(end).all())


@pytest.mark.parametrize("make", [sgd(lr=0.01), adamw()], ids=["SGD", "AdamW"])
def test_scaled_gradients_go_into_a_momentum_as_they_are(make: Make) -> None:
    """A power of two changes no bit; a step that overflows gives nothing, and is none."""
    scalers: dict[int, Any] = {}

    def scaled(optimizer: Any, model: nn.Module, error: Tensor, number: int) -> None:
        scaler = scalers.setdefault(id(optimizer), torch.amp.GradScaler("cpu", init_scale=2.0**12))
        optimizer.zero_grad()
        scaler.scale(error * (float("inf") if number == overflows else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()

    run: dict[str, Any] = {"wait_for": 1, "waits": True, "look": plain}
    overflows: int | None = None
    for (_, end), (_, expected) in zip(trained(3, make, step=scaled, **run), trained(3, make, **run), strict=True):
        assert all(torch.equal(end[name], expected[name]) for name in expected)
    overflows = 5
    assert all(bool(torch.isfinite(end).all()) for end in trained(3, make, wait_for=1, waits=True, step=scaled))


def test_a_round_that_is_late_gives_momentum_further_ahead() -> None:
    def delay(optimizer: Any, model: nn.Module) -> float:
        return float(optimizer.__dict__["_quorate_worker"].replica.momentum.delay)

    assert trained(3, sgd(), wait_for="all", momentum="worker", look=delay) == [0.0] * 3
    assert all(0.3 < mean < 3 for mean in trained(4, sgd(lr=0.01), wait_for=1, waits=True, steps=60, look=delay))


# -- in torch's own form


def plain(optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return optimizer.state_dict(), {name: x.clone() for name, x in model.state_dict().items()}


@pytest.mark.parametrize(
    "make", [sgd(nesterov=True, lr=0.02), adamw(), lambda p: torch.optim.NAdam(p)], ids=["SGD", "AdamW", "NAdam"]
)
def test_a_plain_script_goes_on_from_the_state_dict(make: Make) -> None:
    """With one worker nothing is lost: SGD goes on to the bit, the others to what their own form of momentum makes."""
    whole = trained(1, make, wait_for="all", momentum="worker", steps=24)[0]
    ((state, numbers),) = trained(1, make, wait_for="all", momentum="worker", steps=16, look=plain)
    model = net()
    model.load_state_dict(numbers)
    optimizer = make(model.parameters())
    optimizer.load_state_dict(state)
    draw = torch.Generator().manual_seed(5)
    for number in range(24):
        x, y = batch(draw)
        if number >= 16:
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    tolerance = 1e-14 if isinstance(optimizer, torch.optim.SGD) else 0.05
    assert torch.allclose(flat(model), whole, rtol=0, atol=tolerance)
    held = next(iter(state["state"].values()))
    assert {"momentum_buffer"} == held.keys() if tolerance < 1e-3 else held["exp_avg"].abs().max() > 0


def test_a_state_of_a_plain_script_is_gone_on_from() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model, *batch(torch.Generator().manual_seed(1))).backward()
        optimizer.step()
    state, numbers = plain(optimizer, model)

    def begun() -> nn.Module:
        again = net()
        again.load_state_dict(numbers)
        return again

    def make(parameters: Iterable[Any]) -> Any:
        loaded = torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True)
        loaded.load_state_dict(copy.deepcopy(state))
        return loaded

    alone = trained(1, make, strategy="all-reduce", model=begun)[0]
    assert torch.allclose(
        trained(1, make, wait_for="all", momentum="worker", model=begun)[0], alone, rtol=0, atol=1e-14
    )


def with_ones(optimizer: Any, model: nn.Module, _error: Tensor, _number: int) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


@pytest.mark.parametrize(("wait_for", "moved"), [(1, 32 / 3), (2, 32 / 3), ("all", 20.0)])
def test_a_gradient_counts_the_same_when_others_have_ended(wait_for: Any, moved: float) -> None:
    """Workers make 4, 8 and 20 steps, so that one is alone for most of its own."""

    def moves(**settings: Any) -> list[Tensor]:
        ends = trained(3, sgd(lr=1.0, momentum=0.0), steps=(4, 8, 20), waits=True, step=with_ones, **settings)
        return [flat(net()) - end for end in ends]

    for own in moves(wait_for=wait_for):
        assert torch.allclose(own, torch.full_like(own, moved), rtol=0, atol=1e-12)
    shared = moves(wait_for=wait_for, momentum="common")  # is divided among those that still step
    assert float(shared[0].min()) > moved + 4 if wait_for != "all" else torch.equal(shared[0], own)
