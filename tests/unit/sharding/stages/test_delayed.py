"""Stages whose gradients are one batch old: the parameters of one process that applies each gradient a step later."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.clock import bubble_by_formula
from quorate.sharding.stages.delayed import GRADIENT, DelayedPipeline, passes, without_gradients
from quorate.sharding.stages.orders import BACKWARD, DELAYED, FORWARD
from quorate.wire.virtual.world import VirtualWorld
from tests.support.staged import Tied, WithContext, cross_entropy, far, images, made, pictures, piped, tokens, whole
from tests.support.staged_trainings import Recomputed

EXACT = 1e-12
SIZES = (8, 5, 8, 3)
"""Of batches; not all have equal micro-batches, or as many."""
Batch = tuple[Tensor, Tensor]
Build = Callable[[], nn.Module]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def of_tokens(step: int) -> Batch:
    ids = tokens(step, SIZES[step])
    return ids, ids


def of_pictures(step: int) -> Batch:
    return pictures(step, SIZES[step])


def in_one(build: Build, batch: Callable[[int], Batch], optimizer_of: Any) -> tuple[list[float], dict[str, Tensor]]:
    """The losses, and the parameters at the end, of one process whose steps have the gradient of the batch before."""
    model = made(build)
    optimizer, losses = optimizer_of(model), list[float]()
    before: list[Tensor | None] = [None] * len(list(model.parameters()))
    for step in range(len(SIZES)):
        x, y = batch(step)
        loss = cross_entropy(model(x), y)
        new = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        for p, gradient in zip((p for p in model.parameters() if p.requires_grad), before, strict=False):
            p.grad = gradient
        if step:
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        before = list(new)
        losses.append(float(loss.detach()))
    return losses, whole(model)


def staged(
    build: Build,
    batch: Callable[[int], Batch],
    optimizer_of: Any,
    wire: Wire,
    saves: Collection[int] = (),
    prepare: Callable[[nn.Module], None] = lambda model: None,
) -> tuple[list[float], dict[str, Tensor]]:
    model = made(build)
    pipeline = piped(model, wire, schedule=DELAYED, microbatches=4)
    assert isinstance(pipeline, DelayedPipeline)
    prepare(model)
    optimizer, losses = optimizer_of(model), list[float]()
    for step in range(len(SIZES)):
        x, y = batch(step)
        parts = y.tensor_split(min(4, len(x)))
        optimizer.zero_grad()
        loss = pipeline.step(
            (x,), {}, lambda output, number, parts=parts: cross_entropy(output, parts[number]), lambda v: v
        )  # type: ignore[misc]
        assert all((p.grad is None) == (step == 0) for p in model.parameters() if p.requires_grad)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        losses.append(float(loss))
        with pipeline.gradients_in(optimizer) if step in saves else nullcontext():
            kept = [state for state in optimizer.state.values() if GRADIENT in state]
            assert len(kept) == (step in saves) * len(list(model.parameters()))
        with torch.no_grad():
            model(x)
    return losses, whole(model)


@pytest.mark.parametrize("saves", [(), (1,), range(4)])
@pytest.mark.parametrize(
    ("build", "batch", "workers"),
    [
        (lambda: Tied(6), of_tokens, 2),
        (lambda: Tied(4), of_tokens, 3),
        (images, of_pictures, 3),
        (Recomputed, of_tokens, 2),
    ],
)
@pytest.mark.parametrize("optimizer_of", [sgd, adam])
def test_a_step_has_the_gradient_of_the_batch_before(
    build: Build, batch: Callable[[int], Batch], workers: int, optimizer_of: Any, saves: Collection[int]
) -> None:
    losses, parameters = in_one(build, batch, optimizer_of)
    ends = VirtualWorld(workers).run(lambda wire: staged(build, batch, optimizer_of, wire, saves))
    for losses_of_worker, parameters_of_worker in ends:
        assert losses_of_worker == pytest.approx(losses, abs=EXACT)
        assert far(parameters_of_worker, parameters) < EXACT
    assert set().union(*(found for _, found in ends)) == set(parameters)


class Recurrent(nn.Module):
    """Whose second stage keeps a list of its own of its parameters, and a table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 11)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layers[0](self.words(ids))
        x = self.layers[1](x)[0]
        found: Tensor = self.layers[2](x)
        return found


def test_a_recurrent_layer_and_a_frozen_one() -> None:
    def build() -> nn.Module:
        model = Recurrent()
        model.layers[0].requires_grad_(False)
        return model

    losses, parameters = in_one(build, of_tokens, sgd)
    for found, parameters_of_worker in VirtualWorld(2).run(lambda wire: staged(build, of_tokens, sgd, wire)):
        assert found == pytest.approx(losses, abs=EXACT)
        assert far(parameters_of_worker, parameters) < EXACT


def test_hooks_of_a_gradient_run_once_a_batch() -> None:
    seen: list[str] = []

    def prepare(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            p.register_hook(lambda gradient, name=name: (seen.append(name), 2 * gradient)[1])  # type: ignore[misc]
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(f"after {name}"))  # type: ignore[misc]

    def run(wire: Wire) -> dict[str, Tensor]:
        return staged(images, of_pictures, sgd, wire, prepare=prepare)[1]

    VirtualWorld(2).run(run)
    names = [name for name, _ in images().named_parameters()]
    assert sorted(seen) == sorted(3 * [*names, *(f"after {name}" for name in names)])


def test_what_passes_by_a_stage() -> None:
    losses = []

    def task(wire: Wire) -> list[float]:
        model = made(WithContext)
        pipeline = piped(model, wire, schedule=DELAYED, microbatches=3)
        optimizer = sgd(model)
        found = []
        for step in range(3):
            loss = pipeline.step((tokens(step, 6),), {"scale": 0.5}, lambda output, _: output["loss"], lambda x: x)
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss))
        return found

    model, before = made(WithContext), None
    optimizer = sgd(model)
    for step in range(3):
        loss = model(tokens(step, 6), scale=0.5)["loss"]
        new = torch.autograd.grad(loss, list(model.parameters()))
        for p, gradient in zip(model.parameters(), before or [None] * len(new), strict=True):
            p.grad = gradient
        optimizer.step()
        before = new
        losses.append(float(loss.detach()))
    assert VirtualWorld(3).run(task) == [pytest.approx(losses, abs=EXACT)] * 3


def seconds_of(workers: int, microbatches: int) -> float:
    """The seconds of a step, if a forward pass takes one and a backward pass two."""
    order = passes(workers, microbatches, microbatches)
    ends: dict[tuple[str, int, int], float] = {}
    free, places = [0.0] * workers, [0] * workers
    while any(place < len(order[worker]) for worker, place in enumerate(places)):
        moved = False
        for worker, place in enumerate(places):
            if place == len(order[worker]):
                continue
            kind, number = order[worker][place]
            before = worker + (1 if kind == BACKWARD else -1)
            if 0 <= before < workers and (kind, before, number) not in ends:
                continue
            begin = max(free[worker], ends.get((kind, before, number), 0.0))
            free[worker] = ends[kind, worker, number] = begin + (2.0 if kind == BACKWARD else 1.0)
            places[worker], moved = place + 1, True
        assert moved, "workers wait for each other for ever"
    return max(free)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_workers_idle_a_third_as_long_as_under_1f1b(workers: int) -> None:
    for microbatches in (1, 3, workers, 4 * workers):
        order = passes(workers, microbatches, microbatches)
        for of_worker in order:
            assert sorted(of_worker) == [(kind, n) for kind in sorted((BACKWARD, FORWARD)) for n in range(microbatches)]
    for microbatches in (2 * workers, 4 * workers):
        busy, seconds = 3.0 * microbatches, seconds_of(workers, microbatches)
        assert 1 - busy / seconds == pytest.approx(bubble_by_formula(DELAYED, workers, 1, microbatches))


def test_a_call_in_training_is_refused_and_other_calls_are_not() -> None:
    def task(wire: Wire) -> None:
        model = made(images)
        piped(model, wire, schedule=DELAYED, microbatches=2)
        x, _ = pictures(0, 4)
        with pytest.raises(ConfigurationError, match="trains by quorate.forward_backward"):
            model(x)
        with torch.no_grad():
            model(x)
        model.eval()
        model(x)

    VirtualWorld(2).run(task)


def test_state_of_a_checkpoint_is_that_of_steps() -> None:
    x = torch.ones(2)
    state, gradients = without_gradients({0: {GRADIENT: x}, 1: {GRADIENT: x, "step": 1}, 2: {}, 3: {"step": 2}})
    assert (state, list(gradients)) == ({1: {"step": 1}, 2: {}, 3: {"step": 2}}, [0, 1])
