"""Layers that freeze and thaw while replicas differ or rounds are under way, also after deaths and joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.scene import Scene, Trainer, pause, virtual
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
    size: int,
    name: str,
    trains: dict[int, bool],
    *,
    steps: int = 24,
    adds: int = -1,
    layer: Callable[[int], int] = lambda rank: 0,
    rests: bool = False,
) -> Scene:
    """A layer freezes and thaws before these steps; where it `rests`, rank 1 makes half of the steps.

    Noted are its weights and the strategy's state after each step.
    """

    def before(trainer: Trainer) -> None:
        if trainer.step in trains:
            trainer.model[layer(trainer.rank)].requires_grad_(trains[trainer.step])
        if trainer.step == adds:
            with torch.no_grad():
                trainer.model[2].weight += trainer.rank  # rank 0's is what all get
            trainer.optimizer.add_param_group({"params": list(trainer.model[2].parameters())})

    def last(trainer: Trainer) -> None:
        if rests:
            trainer.model[layer(trainer.rank)].requires_grad_(trains[max(trains)])
            pause(trainer)

    def after(trainer: Trainer) -> None:
        state = trainer.worker.state
        told = {key: getattr(state, key, None) for key in ("is_local", "period")}
        trainer.seen.append((trainer.model[0].weight.detach().clone(), told))

    model = lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1), torch.nn.Linear(1, 2))  # noqa: E731
    make = lambda ps: torch.optim.SGD([*ps][:4], lr=0.05, momentum=0.5)  # noqa: E731
    loss = lambda t: (t.model(t.draw()) - 1).square().mean()  # noqa: E731
    fields: Any = {"model": model, "make": make, "loss": loss, "pause": lambda rank, _: 0.01 * (1 + rank)}
    fields["steps"] = [steps // 2 if rests and rank == 1 else steps for rank in range(size)]
    hooks: Any = {"before": before, "after": after, "last": last}
    return Scene(name.partition("-overlap")[0], size, settings=LATE[name], **hooks, **fields)


@pytest.mark.parametrize("name", LATE)
def test_it_stands_still_while_frozen_and_moves_again(name: str) -> None:
    """And another layer comes."""
    trainers = trained(3, name, {7: False, 15: True}, adds=19).run()
    end = trainers[0].parameters
    assert all(torch.equal(trainer.parameters, end) for trainer in trainers) and bool(end.isfinite().all())
    for trainer in trainers:
        seen = [weight for weight, _ in trainer.seen]
        assert all(torch.equal(x, seen[7]) for x in seen[7:15])
        assert torch.equal(seen[14], trainers[0].seen[14][0]), "what is frozen is equal on all workers"
        assert not torch.equal(seen[14], seen[23])


@pytest.mark.parametrize("name", IN_EACH_WAY)
def test_groups_may_come(name: str) -> None:
    assert trained(3, name, {}, adds=9).end().isfinite().all()


@pytest.mark.parametrize(("step", "turns"), [(2, 4), (9, 4)])
def test_what_was_synchronous_turns_when_it_would_have_and_what_was_local_stays_so(step: int, turns: int) -> None:
    values = [told["is_local"] for _, told in trained(2, "post-local-sgd", {step: False}).run()[0].seen]
    assert values == [False] * (turns - 1) + [True] * (24 - turns + 1)


def test_what_a_strategy_has_found_it_still_knows() -> None:
    seen = trained(2, "adaptive-local-sgd", {40: False}, steps=60).run()[0].seen
    values = [told["period"] for _, told in seen]
    assert values[0] == 2 and values[39] >= 8 and values[40] >= values[39] / 2


@pytest.mark.parametrize("name", sorted(LATE.keys() - {"all-reduce"}))
def test_one_that_makes_no_step_any_more_takes_part_in_it(name: str) -> None:
    trained(3, name, {18: False}, rests=True).end()


def test_a_layer_that_freezes_on_some_workers_only_is_refused() -> None:
    for outcome in trained(2, "local-sgd", {7: False}, layer=int).outcomes():
        assert isinstance(outcome.error, ConfigurationError)
        assert f"other parameters are trained on rank {outcome.rank} than on rank {1 - outcome.rank}" in str(
            outcome.error
        )


def test_what_is_frozen_for_another_optimizers_pass_only_stays_where_it_lies() -> None:
    """A discriminator freezes so while its generator learns."""

    def task(world: quorate.World) -> None:
        makes, tells = (Scene(model=(2, n), settings={"name": f"{n}"}).trainer(world) for n in (2, 1))
        first, second, laid_out = makes.model, tells.model, tells.worker.means
        for _ in range(3):
            second(first(torch.ones(1, 2)).detach()).sum().backward()
            tells.optimizer.step()
            second.requires_grad_(False)
            second(first(torch.ones(1, 2))).sum().backward()
            second.requires_grad_(True)
            makes.optimizer.step()
        assert tells.worker.means is laid_out
        makes.finish()
        tells.finish()

    virtual(2, task)
