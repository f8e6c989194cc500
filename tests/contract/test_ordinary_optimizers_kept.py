"""Optimizers of other packages in checkpoints, and in replicas that those who join are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, Diverged
from quorate.wire.virtual.world import VirtualWorld
from tests.contract.test_ordinary_optimizers import around_adam, around_momentum, flat, trained_schedule_free
from tests.support.joined import joined
from tests.support.kept_trainings import in_world
from tests.support.ordinary_loops import FAMILIES, loss_of, small_net
from tests.support.other_optimizers import Around, Counting, Prodigal, numbers_of
from tests.support.scene import Scene, Trainer, squares
from tests.support.scene import net as wide

Make = Callable[[Any], torch.optim.Optimizer]
Told = tuple[int | None, list[list[float]], list[dict[str, Any]]]
STEPS, SAVED = 9, 5


def of_matrices_and_the_rest(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    every = list(model.parameters())
    return [
        torch.optim.Muon([p for p in every if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([p for p in every if p.ndim != 2], lr=0.02),
    ]


class Named(torch.optim.SGD):
    """It counts in its state, under a name, and in an attribute."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.state["k"] = 0  # type: ignore[index]
        self.calls = 0

    def step(self, closure: Any = None) -> None:
        self.state["k"] += 1  # type: ignore[index,operator]
        self.calls += 1
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad /= self.state["k"]  # type: ignore[index]
        super().step(closure)


OTHERS: dict[str, Callable[[torch.nn.Module], list[torch.optim.Optimizer]]] = {
    "counting": lambda model: [Counting(model.parameters())],
    "prodigal": lambda model: [Prodigal(model.parameters())],
    "schedule-free": lambda model: [trained_schedule_free(model.parameters())],
    "lookahead": lambda model: [around_adam(model.parameters())],
    "around": lambda model: [around_momentum(model.parameters())],
    "two": of_matrices_and_the_rest,
    "named": lambda model: [Named(model.parameters())],
}


def trained(make: str, strategy: str, steps: int, world: quorate.World, **settings: Any) -> Told:
    """Where it began, the parameters of all and the options of each optimizer, after so many steps."""
    model = small_net()
    optimizers = [quorate.distribute(plain, model, strategy, **settings) for plain in OTHERS[make](model)]
    began = quorate.load()
    for step in range(began or 0, steps):
        step_all(model, optimizers, world, step, 0.01 * (1 + world.rank))
        if step + 1 == SAVED:
            quorate.save()
    for optimizer in optimizers:
        optimizer.finish()
    return began, [flat(model)], [numbers_of(optimizer) for optimizer in optimizers]


def step_all(model: torch.nn.Module, optimizers: list[Any], world: quorate.World, step: int, seconds: float) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss_of(model, world.rank, step).backward()
    world.wire.clock.sleep(seconds)
    for optimizer in optimizers:
        optimizer.step()


ON_SMALL_NET: Any = {"model": small_net, "loss": lambda t: loss_of(t.model, t.rank, t.step)}


SETTINGS: dict[str, dict[str, Any]] = {"parameter-server": {"in_order": True}}


CELLS = [*(("quorum", make) for make in OTHERS), *((strategy, "two") for strategy in FAMILIES)]
CELLS += [("all-reduce", "lookahead"), ("eager-majority", "counting"), ("parameter-server", "named")]


@pytest.mark.parametrize(("strategy", "make"), CELLS)
def test_what_was_cut_off_goes_on_as_if_it_had_not(strategy: str, make: str, tmp_path: Path) -> None:
    settings = SETTINGS.get(strategy, {})
    whole = in_world(2, tmp_path / "whole", lambda world: trained(make, strategy, STEPS, world, **settings))
    in_world(2, tmp_path / "cut", lambda world: trained(make, strategy, SAVED, world, **settings))
    again = in_world(2, tmp_path / "cut", lambda world: trained(make, strategy, STEPS, world, **settings))
    assert again[0][1:] == again[1][1:] or strategy in ("local-sgd", "d-psgd")
    for (_, parameters, options), (began, others, same) in zip(whole, again, strict=True):
        assert began is not None and began >= SAVED - 1
        if strategy == "eager-majority":  # who is late is another one after a pause
            assert [set(group) for group in options] == [set(group) for group in same]
            assert [group.get("k", 2) > 1 for group in same] == [True] * len(same)
        else:
            assert options == same
            assert parameters == others


def test_what_a_format_of_torchs_leaves_out_is_kept(tmp_path: Path) -> None:
    def check(trainer: Trainer) -> None:
        assert trainer.optimizer.base_optimizer.param_groups is trainer.optimizer.param_groups

    make = lambda parameters: Around(parameters, torch.optim.Adam, lr=0.05)  # noqa: E731
    scene = Scene("quorum", 2, **ON_SMALL_NET, make=make, steps=STEPS, last=check, wait_for="all")
    whole, again = scene.resumed(tmp_path, SAVED, SAVED)
    assert all(map(torch.equal, whole, again))


def late(task: Callable[[quorate.World], Any], begin: Callable[[int], float], wire: Wire) -> Any:
    """What a worker does that joins at this time if it is a newcomer."""
    if wire.is_newcomer:
        wire.clock.sleep(begin(wire.rank))
    return joined(task)(wire)


def joined_late(make: str, strategy: str, wire: Wire, **settings: Any) -> tuple[list[float], list[dict[str, Any]], int]:
    """Two workers train from the beginning, and a third joins."""

    def task(world: quorate.World) -> tuple[list[float], list[dict[str, Any]], int]:
        model = small_net()
        optimizers = [quorate.distribute(plain, model, strategy, **settings) for plain in OTHERS[make](model)]
        loader = quorate.loader(torch.utils.data.TensorDataset(torch.arange(192.0)), 2, share="dynamic")
        began = quorate.load() or 0
        for _ in range(loader.epoch, 2):
            for step, _batch in enumerate(loader):
                step_all(model, optimizers, world, step, 0.01)
            with world.evaluate():
                pass
        for optimizer in optimizers:
            optimizer.finish()
        return flat(model), [numbers_of(optimizer) for optimizer in optimizers], began

    return late(task, lambda rank: 0.1, wire)


@pytest.mark.parametrize("make", OTHERS)
@pytest.mark.parametrize("strategy", ["eager-majority", "quorum"])
def test_one_that_joins_goes_on_from_what_the_others_keep(strategy: str, make: str) -> None:
    world = VirtualWorld(2, joiners=1, seed=3, timeout=60.0)
    first, second, third = world.run(lambda wire: joined_late(make, strategy, wire))
    assert first[0] == second[0] == third[0]
    assert first[1] == second[1] == third[1]
    assert third[2] > 0


@pytest.mark.parametrize("strategy", ["local-sgd"])
def test_one_that_joins_with_two_optimizers_is_refused_before_it_enters(strategy: str) -> None:
    world = VirtualWorld(2, joiners=1, seed=3, timeout=60.0)
    first, second, third = world.outcomes(lambda wire: joined_late("two", strategy, wire))
    assert isinstance(third.error, ConfigurationError) and "several distributed optimizers" in str(third.error)
    assert first.result is not None and second.result is not None
    assert first.result[0] == second.result[0], "the others go on without it"


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def of_one_model() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    model = net()
    p = list(model.parameters())
    return [model] * 3, [torch.optim.SGD(p[:2], 0.1, 0.9), torch.optim.AdamW(p[2:4], 0.01), torch.optim.Adam(p[4:])]


def of_two_models() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    first, second = net(), net()
    return [first, second], [torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), 0.1, 0.9)]


class Several:
    """A training with several optimizers in rounds, which the workers from `begin` virtual seconds on join.

    Where these have a model each, the first is stepped three times as often as the second.
    """

    def __init__(self, make: Any, strategy: str, paces: list[float], begin: list[float], **settings: Any) -> None:
        self.make, self.strategy, self.paces, self.begin, self.settings = make, strategy, paces, begin, settings
        self.computed: list[tuple[int, int]] = []
        self.joins_with = list(range(3))
        """The optimizers that a worker that joins distributes, in order."""

    def run(self, seed: int = 3) -> list[Any]:
        world = VirtualWorld(len(self.paces) - len(self.begin), joiners=len(self.begin), seed=seed, timeout=60.0)
        return world.outcomes(self.live)

    def live(self, wire: Wire) -> Any:
        return late(partial(self.trained, wire=wire), lambda rank: self.begin[rank - wire.size], wire)

    def trained(self, world: quorate.World, wire: Wire) -> Any:
        torch.manual_seed(world.rank)
        models, plain = self.make()
        places = [at for at in (self.joins_with if wire.is_newcomer else range(3)) if at < len(plain)]
        distributed = {at: quorate.distribute(plain[at], models[at], self.strategy, **self.settings) for at in places}
        optimizers = [distributed[at] for at in sorted(distributed)]
        inputs = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))
        loader = quorate.loader(torch.utils.data.TensorDataset(inputs, torch.arange(96)), 4, share="dynamic")
        steps, gathered = quorate.load() or 0, {}
        for epoch in range(loader.epoch, 2):
            for inputs, numbers in loader:
                wire.clock.sleep(self.paces[world.rank])
                self.step(models, optimizers, inputs, steps)
                steps += 1
                self.computed += [(epoch, at) for at in numbers.tolist()]
            with world.evaluate():
                gathered[epoch] = world.gather(world.rank)
        for optimizer in optimizers:
            optimizer.finish()
        tensors = [x.detach().clone() for model in models for x in (*model.parameters(), *model.buffers())]
        states = [x.clone() for one in plain for of in one.state.values() for x in of.values() if torch.is_tensor(x)]
        return [*tensors, *states], gathered

    def step(self, models: Any, optimizers: Any, inputs: torch.Tensor, steps: int) -> None:
        for at, optimizer in enumerate(optimizers):
            if models[0] is not models[-1]:
                if at and steps % 3:
                    continue
                optimizer.zero_grad()
                models[at](inputs).square().mean().backward()
            elif at == 0:
                models[0].zero_grad()
                models[0](inputs).square().mean().backward()
            optimizer.step()


def check_several(plan: Several, outcomes: list[Any]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    tensors, gathered = outcomes[0].result
    for outcome in outcomes[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outcome.result[0], tensors, strict=True))
        assert all(ranks == gathered[epoch] for epoch, ranks in outcome.result[1].items())
    assert sorted(plan.computed) == [(epoch, at) for epoch in range(2) for at in range(96)]


@pytest.mark.parametrize("make", [of_one_model, of_two_models])
@pytest.mark.parametrize("wait_for", ["all", "majority"])
def test_those_that_join_have_all_optimizers_between_the_same_two_pauses(make: Any, wait_for: Any) -> None:
    plan = Several(make, "quorum", [0.01, 0.003, 0.005, 0.02], [0.02, 0.06], wait_for=wait_for)
    check_several(plan, outcomes := plan.run())
    assert [len(outcome.result[1]) for outcome in outcomes] == [2] * 4, "they joined in the first epoch"
    assert outcomes[0].result[1][0] == [0, 1, 2, 3]


def test_workers_do_not_wait_for_each_other_in_rounds_of_different_optimizers() -> None:
    plan = Several(of_two_models, "eager-majority", [0.002, 0.01, 0.05], [])
    check_several(plan, plan.run(28))


@pytest.mark.parametrize(
    ("joins_with", "sentence"),
    [
        ([0], "have distributed 2 optimizers, and this one only 1"),
        ([1, 0], "the optimizer is SGD here, and Adam on the workers that this one joins"),
    ],
)
def test_one_that_joins_with_other_optimizers_is_refused_before_it_enters(joins_with: list[int], sentence: str) -> None:
    plan = Several(of_two_models, "quorum", [0.01, 0.01, 0.01], [0.05])
    plan.joins_with = joins_with
    *others, refused = plan.run()
    assert isinstance(refused.error, ConfigurationError) and sentence in str(refused.error)
    check_several(plan, others)
    assert others[0].result[1] == {0: [0, 1], 1: [0, 1]}


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority", "quorum"])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_the_rank_that_changed_its_optimizer_state_is_named(strategy: str, changed: int) -> None:
    def change(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (changed, 6):
            next(iter(trainer.optimizer.state.values()))["exp_avg_sq"].add_(1.0)

    make = partial(torch.optim.Adam, lr=0.01)
    ends = Scene(strategy, **ON_SMALL_NET, make=make, steps=40, after=change, world={"seed": 3}).outcomes()
    diverged = [end.error for end in ends if isinstance(end.error, Diverged)]
    assert diverged and all(f"the replica of rank {changed} parted from the others" in str(x) for x in diverged)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_power_sgd_remembers_comes_back_in_its_own_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of its parameters, and of the thin matrices."""

    def look(trainer: Trainer) -> tuple[list[float], torch.dtype]:
        return trainer.parameters.tolist(), next(iter(trainer.worker.reducer_state.q.values())).dtype

    settings = {"compress": "power-sgd", "rank": 2, "start": 0, "dense_below": 0}
    fields: Any = {"model": lambda: wide(4, 16, 16).to(dtype), "heavy": 0.9, "loss": squares, "steps": STEPS}
    whole, again = Scene("all-reduce", 2, settings=settings, **fields).resumed(tmp_path, SAVED, SAVED, look)
    assert again == whole
    assert again[0][1] == (torch.float64 if dtype == torch.float64 else torch.float32)
