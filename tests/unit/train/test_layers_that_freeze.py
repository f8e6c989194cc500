"""Layers that freeze and thaw while replicas differ or rounds are under way, also after deaths and joins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.unit.rounds.test_joining import EPOCHS, IN_SUMS, Plan, check

LATE: dict[str, dict[str, Any]] = {
    **IN_SUMS,
    "adaptive-local-sgd": {"sync_every": 2},
    "diloco-overlap": {"sync_every": 4, "overlap": 2},
    "quorum": {"wait_for": 2},
    "adaptive": {"window": 4},
    "d-psgd": {},
    "choco-sgd": {"compress": "top-k", "density": 0.5, "dense_below": 0},
    "osgp": {},
    "ad-psgd": {},
    "easgd": {"sync_every": 2, "servers": 1, "on_death": "continue"},
}
JOINED = [*IN_SUMS, "quorum"]
IN_EACH_WAY = ["all-reduce", "local-sgd", "quorum", "d-psgd"]
"""One that sums gradients, one that means parameters, one with rounds, one that gossips."""


def plan_of(name: str, **about: Any) -> Plan:
    return Plan(size=3, strategy=name.partition("-overlap")[0], settings=LATE[name], **about)


@pytest.mark.parametrize(
    ("name", "share"), [*((name, "dynamic") for name in LATE), *((name, "static") for name in IN_EACH_WAY)]
)
def test_a_layer_freezes(name: str, share: str) -> None:
    """With equal shares, nobody rests between two epochs, and some are further than others."""
    plan = plan_of(name, joins={}, freezes=1, evaluates=False, share=share)
    plan.pace = lambda rank: 0.01 * (rank + 1)
    assert len(check(plan, plan.run())) == 3


@pytest.mark.parametrize("name", LATE)
def test_a_layer_freezes_after_a_death(name: str) -> None:
    plan = plan_of(name, joins={}, freezes=2, deaths={1: 40})
    assert set(check(plan, plan.run())) == {0, 2}


@pytest.mark.parametrize("name", JOINED)
def test_a_layer_freezes_where_one_has_joined(name: str) -> None:
    calls = 30 if name == "hogwild" else 100  # nothing is sent in its steps
    plan = plan_of(name, joins={3: 0.05}, freezes=2, deaths={0: calls})
    results = check(plan, plan.run())
    assert results[3].evaluations[EPOCHS - 1] == [1, 2, 3]


def trained(
    wire: Wire,
    name: str,
    trains: dict[int, bool],
    *,
    steps: int = 24,
    adds: int = -1,
    layer: int = 0,
    rests: bool = False,
    tells: str = "is_local",
    values: list[Any] | None = None,
) -> list[torch.Tensor]:
    """A layer's weights after each step and at the end, where it freezes and thaws before these steps.

    Where it `rests`, rank 1 makes half of the steps; `values` gets a number of the strategy's state.
    """
    values = [] if values is None else values
    current.enter(wire, thread_only=True)
    try:
        world = quorate.join(records=False)
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1), torch.nn.Linear(1, 2))
        parameters = [*model[0].parameters(), *model[1].parameters()]
        plain = torch.optim.SGD(parameters, lr=0.05, momentum=0.5)
        optimizer: Any = quorate.distribute(plain, model, name.partition("-overlap")[0], **LATE[name])
        seen = []
        for step in range(steps // 2 if rests and world.rank == 1 else steps):
            wire.clock.sleep(0.01 * (1 + world.rank))
            if step in trains:
                model[layer].requires_grad_(trains[step])
            if step == adds:
                with torch.no_grad():
                    model[2].weight += world.rank  # rank 0's is what all get
                optimizer.add_param_group({"params": list(model[2].parameters())})
            optimizer.zero_grad()
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * step + world.rank))
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            seen.append(model[0].weight.detach().clone())
            values.append(getattr(optimizer.__dict__["_quorate_worker"].state, tells, None))
        if rests:
            model[layer].requires_grad_(trains[max(trains)])
            with world.evaluate():
                pass
        optimizer.finish()
        return [*seen, torch.cat([p.detach().reshape(-1) for p in model.parameters()])]
    finally:
        current.forget(thread_only=True)


@pytest.mark.parametrize("name", LATE)
def test_it_stands_still_while_frozen_and_moves_again(name: str) -> None:
    """And another layer comes."""
    results = VirtualWorld(3).run(lambda wire: trained(wire, name, {7: False, 15: True}, adds=19))
    assert all(torch.equal(seen[-1], results[0][-1]) for seen in results)
    assert bool(torch.isfinite(results[0][-1]).all())
    for seen in results:
        assert all(torch.equal(x, seen[7]) for x in seen[7:15])
        assert torch.equal(seen[14], results[0][14]), "what is frozen is equal on all workers"
        assert not torch.equal(seen[14], seen[23])


@pytest.mark.parametrize("name", IN_EACH_WAY)
def test_groups_may_come(name: str) -> None:
    results = VirtualWorld(3).run(lambda wire: trained(wire, name, {}, adds=9))
    assert all(torch.equal(seen[-1], results[0][-1]) for seen in results)
    assert bool(torch.isfinite(results[0][-1]).all())


@pytest.mark.parametrize(("step", "turns"), [(2, 4), (9, 4)])
def test_what_was_synchronous_turns_when_it_would_have_and_what_was_local_stays_so(step: int, turns: int) -> None:
    values: list[bool] = []
    VirtualWorld(2).run(
        lambda wire: trained(wire, "post-local-sgd", {step: False}, values=values if wire.rank == 0 else None)
    )
    assert values == [False] * (turns - 1) + [True] * (24 - turns + 1)


def test_what_a_strategy_has_found_it_still_knows() -> None:
    values: list[int] = []
    tells: dict[str, Any] = {"tells": "period", "steps": 60}
    VirtualWorld(2).run(
        lambda wire: trained(
            wire, "adaptive-local-sgd", {40: False}, values=values if wire.rank == 0 else None, **tells
        )
    )
    assert values[0] == 2 and values[39] >= 8 and values[40] >= values[39] / 2


@pytest.mark.parametrize("name", sorted(LATE.keys() - {"all-reduce"}))
def test_one_that_makes_no_step_any_more_takes_part_in_it(name: str) -> None:
    results = VirtualWorld(3).run(lambda wire: trained(wire, name, {18: False}, rests=True))
    assert all(torch.equal(seen[-1], results[0][-1]) for seen in results)


def test_a_layer_that_freezes_on_some_workers_only_is_refused() -> None:
    outcomes = VirtualWorld(2, timeout=20.0).outcomes(
        lambda wire: trained(wire, "local-sgd", {7: False}, layer=wire.rank)
    )
    for outcome in outcomes:
        assert isinstance(outcome.error, ConfigurationError)
        assert f"other parameters are trained on rank {outcome.rank} than on rank {1 - outcome.rank}" in str(
            outcome.error
        )


def test_what_is_frozen_for_another_optimizers_pass_only_stays_where_it_lies() -> None:
    """A discriminator freezes so while its generator learns."""

    def task(wire: Wire) -> None:
        current.enter(wire, thread_only=True)
        try:
            quorate.join(records=False)
            first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
            makes: Any = quorate.distribute(torch.optim.SGD(first.parameters(), lr=0.1), first, name="makes")
            tells: Any = quorate.distribute(torch.optim.SGD(second.parameters(), lr=0.1), second, name="tells")
            laid_out = tells.__dict__["_quorate_worker"].means
            for _ in range(3):
                second(first(torch.ones(1, 2)).detach()).sum().backward()
                tells.step()
                second.requires_grad_(False)
                second(first(torch.ones(1, 2))).sum().backward()
                second.requires_grad_(True)
                makes.step()
            assert tells.__dict__["_quorate_worker"].means is laid_out
            makes.finish()
            tells.finish()
        finally:
            current.forget(thread_only=True)

    VirtualWorld(2).run(task)
