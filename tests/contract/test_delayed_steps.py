"""Rounds that overlap with the next step: gradients one step old, and steps corrected for it. By hand, resumed, joined
and refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim.delay_correction import LAST_STEP, delay_corrected
from quorate.strategies.presets.backup_workers import BackupWorkers
from quorate.strategies.presets.eager_solo import EagerSolo
from quorate.strategies.quorum import Quorum
from quorate.wire.virtual.world import VirtualWorld
from tests.contract.test_ordinary_optimizers_kept import joined_late, of_matrices_and_the_rest
from tests.support.joined import joined
from tests.support.ordinary_loops import loss_of, small_net
from tests.support.scene import Scene, Trainer, flat

STEPS, SIZE = 9, 2
LATE: dict[str, Any] = {"wait_for": "all", "overlap": True}
CORRECTED: dict[str, Any] = {**LATE, "correct": "delay"}
Make = Callable[[nn.Module], list[torch.optim.Optimizer]]
MAKE: dict[str, Make] = {
    "SGD": lambda model: [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)],
    "AdamW": lambda model: [torch.optim.AdamW(model.parameters(), lr=0.02)],
    "Muon and AdamW": of_matrices_and_the_rest,
}


def in_rounds(make: Make, settings: dict[str, Any], world: quorate.World) -> Tensor:
    model = small_net()
    optimizers: list[Any] = [quorate.distribute(plain, model, "quorum", **settings) for plain in make(model)]
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, world.rank, step).backward()
        world.wire.clock.sleep(0.01)
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.finish()
    return flat(model).clone()


def by_hand(make: Make, *, corrects: bool) -> Tensor:
    """One process that applies each mean gradient after it has computed the next one."""
    model, late = small_net(), list[Tensor]()
    optimizers = make(model)
    for step in range(STEPS + 1):
        new = list[Tensor]()
        for rank in range(SIZE if step < STEPS else 0):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            grads = [p.grad / SIZE for p in model.parameters() if p.grad is not None]
            new = [x + y for x, y in zip(new, grads, strict=True)] if new else grads
        for optimizer in optimizers if late else ():
            for p, gradient in zip(model.parameters(), late, strict=True):
                p.grad = gradient
            with delay_corrected(optimizer) if corrects else nullcontext():
                optimizer.step()
        late = new
    return flat(model).clone()


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("kind", MAKE)
def test_each_gradient_is_applied_exactly_one_step_late(kind: str, corrects: bool) -> None:
    settings = {**(CORRECTED if corrects else LATE), "momentum": "auto" if corrects else "common"}
    ends = VirtualWorld(SIZE).run(joined(partial(in_rounds, MAKE[kind], settings)))
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], by_hand(MAKE[kind], corrects=corrects), rtol=0, atol=1e-6)
    assert not torch.allclose(ends[0], by_hand(MAKE[kind], corrects=not corrects), rtol=0, atol=1e-4)


@pytest.mark.parametrize("wait_for", ["all", "majority", 1])
def test_every_step_of_equal_workers_has_a_round(wait_for: Any) -> None:
    """A step that found the round before it still running would ride with the next one: half as many updates."""
    trainer: Trainer = Scene("quorum", 3, steps=STEPS, pause=0.01, overlap=True, wait_for=wait_for).run()[0]
    first, *others = [round for round in trainer.rounds if round.contributors]
    assert [first.contributors, len(others)] == [{0: [(0, 1)], 1: [(0, 1)], 2: [(0, 1)]}, STEPS - 1]
    assert all(round.contributors == {0: [(1, 1)], 1: [(1, 1)], 2: [(1, 1)]} for round in others)


def last_steps(trainer: Trainer) -> Tensor:
    """The parameters, and the last uncorrected step of each."""
    state = trainer.optimizer.state
    return torch.cat([trainer.parameters, *(state[p][LAST_STEP].reshape(-1) for p in trainer.model.parameters())])


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_corrected_training_is_resumed_to_the_bit(kind: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"make": lambda p: MAKE[kind](_Of(list(p)))[0], "steps": STEPS, "pause": 0.01, **CORRECTED}
    whole, again = Scene("quorum", SIZE, **fields).resumed(tmp_path, 4, 8, last_steps)
    assert all(map(torch.equal, whole, again))


class _Of:
    """A model by its parameters alone."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = parameters

    def parameters(self) -> list[Any]:
        return self._parameters


@pytest.mark.parametrize("settings", [CORRECTED, {**LATE, "momentum": "common"}, {**CORRECTED, "wait_for": 1}])
def test_one_that_joins_goes_on_with_the_last_step_of_the_others(settings: dict[str, Any]) -> None:
    world = VirtualWorld(2, joiners=1, seed=3, timeout=60.0)
    first, second, third = world.run(lambda wire: joined_late("two", "quorum", wire, **settings))
    assert first[0] == second[0] == third[0]
    assert third[2] > 0


def test_a_worker_that_missed_rounds_gets_the_last_step_with_the_copy() -> None:
    """It sleeps through more rounds than are kept."""
    pause = lambda rank, step: 3.0 if (rank, step) == (2, 4) else 0.01  # noqa: E731
    settings = {**CORRECTED, "wait_for": 1, "max_staleness": 400}
    ends = Scene("quorum", 3, steps=[300, 300, 40], pause=pause, **settings).run(last_steps)
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_real_workers_end_equal() -> None:
    ends = Scene("quorum", 3, steps=20, heavy=0.9, **{**CORRECTED, "wait_for": 2}).run(last_steps, real=True)
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert bool(ends[0].isfinite().all())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"correct": "delay"}, "set overlap=True as well"),
        ({"correct": "delay", "overlap": True, "momentum": "worker"}, "both correct the delay of gradients"),
        ({"overlap": True, "late": "drop"}, 'at least one round stale, and late="drop" drops it'),
        ({"correct": "delays", "overlap": True}, "should be 'delay'"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    assert sentence in Scene("quorum", 2, **settings).refusal()


def test_presets_refuse_the_same() -> None:
    for call in (
        lambda: BackupWorkers(overlap=True),
        lambda: EagerSolo(correct="delay"),
        lambda: Quorum(correct="late", overlap=True),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            call()
    assert EagerSolo(overlap=True, correct="delay").correct == "delay"
