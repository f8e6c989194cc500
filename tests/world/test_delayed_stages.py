"""Stages whose gradients are one batch old, on real workers: corrected or not, between replicas, and resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.staged import cross_entropy, far, made, tokens, whole
from tests.support.staged_trainings import six_tied

EXACT = 1e-10
STEPS = 6
DELAYED: dict[str, Any] = {"schedule": "pipedream-2bw", "microbatches": 4}


@dataclass(frozen=True)
class Case:
    """One training, of so many batches in all as there are replicas."""

    mesh: dict[str, int]
    optimizer: str = "AdamW"
    corrects: bool = False
    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int, replica: int) -> Tensor:
    return tokens(100 * step + replica, 8)


def in_one(case: Case, steps: int = STEPS) -> dict[str, Tensor]:
    """The parameters of one process which applies each gradient a step later, with the correction by its formula."""
    model = made(six_tied)
    optimizer = optimizer_of(case.optimizer, model)
    before: Any = None
    last: list[Tensor] | None = None
    for step in range(steps):
        losses = [cross_entropy(model(x), x) for x in (batch(step, n) for n in range(case.mesh.get("replicas", 1)))]
        new = torch.autograd.grad(torch.stack(losses).mean(), list(model.parameters()))
        if before is not None:
            start = [p.detach().clone() for p in model.parameters()]
            for p, gradient in zip(model.parameters(), before, strict=True):
                p.grad = gradient
            optimizer.step()
            moved = [p.detach() - x for p, x in zip(model.parameters(), start, strict=True)]
            if case.corrects and last is not None:
                with torch.no_grad():
                    for p, change, earlier in zip(model.parameters(), moved, last, strict=True):
                        p.add_(change - earlier)
            last = [change.clone() for change in moved]
        before = new
    return whole(model)


def train(cases: list[Case], world: Any) -> list[dict[str, Tensor]]:
    torch.set_num_threads(1)
    ends = []
    for case in cases:
        correct: Any = "delay" if case.corrects else None
        model = quorate.parallelize(made(six_tied, 3 + world.rank), world.mesh(**case.mesh), correct=correct, **DELAYED)
        optimizer = quorate.distribute(optimizer_of(case.optimizer, model), model, case.strategy, **case.settings)
        replica = world.rank // case.mesh["stages"]
        for step in range(STEPS):
            x = batch(step, replica)
            optimizer.zero_grad()
            quorate.forward_backward(model, x, x, cross_entropy)
            optimizer.step()
            if step == 2:
                with world.evaluate(at="replica"), torch.no_grad():
                    model(x)
        optimizer.finish()
        ends.append(whole(model))
    return ends


def check(workers: int, cases: list[Case]) -> None:
    every = run_real_world(workers, partial(train, cases), 120.0)
    for place, case in enumerate(cases):
        wanted = in_one(case)
        for ends in every:
            assert far(ends[place], wanted) < EXACT, case


def test_two_stages(few: Few) -> None:
    mesh = {"stages": 2}
    check(2, few([Case(mesh, name, corrects) for corrects in (True, False) for name in ("AdamW", "SGD")]))


def test_replicas_of_stages(few: Few) -> None:
    mesh = {"replicas": 2, "stages": 2}
    cases = [
        Case(mesh, corrects=True),
        Case(mesh),
        Case(mesh, "SGD", strategy="local-sgd", settings={"sync_every": 1}),
    ]
    check(4, few(cases))


def saved(root: Path, chosen: dict[str, Any], begins: int, until: int, world: Any) -> dict[str, Tensor]:
    """The parameters at batch `until` of a training that goes on from the newest checkpoint, and saves one then."""
    torch.set_num_threads(1)
    current.here().context(CheckpointContext).root = root
    current.here().context(CheckpointContext).listeners = [lambda words: None]
    model = quorate.parallelize(made(six_tied, 3 + world.rank), world.mesh(stages=world.size), **chosen)
    optimizer = quorate.distribute(optimizer_of("AdamW", model), model)
    step = quorate.load() or 0
    assert step == begins
    while step < until:
        x = batch(step, 0)
        optimizer.zero_grad()
        quorate.forward_backward(model, x, x, cross_entropy)
        optimizer.step()
        step += 1
    quorate.save()
    with world.evaluate(at="replica"):
        return whole(model)


@pytest.mark.parametrize("corrects", [True, False])
def test_a_resumed_training_goes_on_with_the_gradient_that_was_left(tmp_path: Path, corrects: bool) -> None:
    chosen = {**DELAYED, "correct": "delay" if corrects else None}
    for begins, until, workers in ((0, 1, 2), (1, 3, 2), (3, STEPS, 3)):
        ends = run_real_world(workers, partial(saved, tmp_path, chosen, begins, until), 120.0)
        for parameters in ends:
            assert far(parameters, in_one(Case({"stages": 2}, corrects=corrects), until)) < EXACT, (begins, until)


def test_another_schedule_goes_on_without_that_gradient(tmp_path: Path) -> None:
    run_real_world(2, partial(saved, tmp_path, DELAYED, 0, 1), 120.0)
    ends = run_real_world(2, partial(saved, tmp_path, {"microbatches": 4}, 1, 2), 120.0)
    model = made(six_tied)
    optimizer = optimizer_of("AdamW", model)
    cross_entropy(model(batch(1, 0)), batch(1, 0)).backward()
    optimizer.step()
    for parameters in ends:
        assert far(parameters, whole(model)) < EXACT


REFUSED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({"stages": 2}, {"offload": "optimizer"}, {}, "cannot be combined with offload="),
    ({"stages": 2}, {"precision": "bfloat16"}, {}, "cannot be combined with precision="),
    ({"shards": 2}, {}, {}, "cannot be combined with one stage"),
    ({"stages": 2}, {"correct": "yes"}, {}, "correct='yes' is not known"),
    ({"stages": 2}, {}, {"strategy": "quorum"}, "would be two steps old"),
]


def refusals(world: Any) -> list[str]:
    words = []
    for mesh, chosen, of_optimizer, _ in REFUSED:
        try:
            model = quorate.parallelize(made(six_tied), world.mesh(**mesh), **DELAYED, **chosen)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            quorate.distribute(optimizer, model, of_optimizer.get("strategy", "all-reduce"))
            words.append("")
        except ConfigurationError as error:
            words.append(str(error))
    return words


def refused_in_steps(world: Any) -> list[str]:
    model = quorate.parallelize(made(six_tied), world.mesh(stages=2), **DELAYED)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    words, x = [], batch(0, 0)
    scaler = torch.amp.GradScaler("cpu")
    try:
        quorate.forward_backward(model, x, x, cross_entropy, scaler=scaler)
    except ConfigurationError as error:
        words.append(str(error))
    try:
        with optimizer.accumulate():
            quorate.forward_backward(model, x, x, cross_entropy)
    except ConfigurationError as error:
        words.append(str(error))
    return words


def test_what_does_not_go_with_it_is_refused_in_a_sentence() -> None:
    for words in run_real_world(2, refusals):
        for found, (*_, wanted) in zip(words, REFUSED, strict=True):
            assert wanted in found
    for scaler, accumulation in run_real_world(2, refused_in_steps):
        assert "a GradScaler cannot be combined" in scaler
        assert "optimizer.accumulate() cannot be combined" in accumulation
