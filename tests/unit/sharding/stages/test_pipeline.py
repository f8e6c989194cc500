"""Models in stages: the numbers of one process, in any schedule, for batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.orders import SCHEDULES, refusal
from quorate.wire.virtual.world import VirtualWorld
from tests.support.staged import (
    Tied,
    WithContext,
    cross_entropy,
    far,
    images,
    made,
    pictures,
    piped,
    tokens,
    whole,
)

EXACT = 1e-12


def in_one(model: nn.Module, loss_of: Callable[[nn.Module, int], Tensor], steps: int) -> tuple[list[float], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, whole(model)


def check(
    workers: int,
    build: Callable[[], nn.Module],
    loss_of: Callable[[nn.Module, int], Tensor],
    given_to_step: Callable[[int], tuple[tuple[Any, ...], Callable[[Any, int], Tensor]]] | None,
    steps: int = 2,
    **chosen: Any,
) -> None:
    wanted_losses, wanted = in_one(made(build), loss_of, steps)

    def task(wire: Wire) -> tuple[list[float], dict[str, Tensor]]:
        model = made(build)
        pipeline = piped(model, wire, **chosen)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            if given_to_step is None:
                loss = loss_of(model, step)
                loss.backward()
            else:
                args, value = given_to_step(step)
                loss = pipeline.step(args, {}, value, lambda x: x)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses, whole(model)

    ends = VirtualWorld(workers).run(task)
    for losses, parameters in ends:
        assert losses == pytest.approx(wanted_losses, abs=EXACT)
        assert far(parameters, wanted) < EXACT
    assert set().union(*(parameters for _, parameters in ends)) == set(wanted)


SIZES = (8, 5)
"""Batch sizes; the second one is smaller than two of the schedules are made for."""


def of_tokens(model: nn.Module, step: int) -> Tensor:
    ids = tokens(step, SIZES[step])
    return cross_entropy(model(ids), ids)


def steps_of_tokens(step: int) -> tuple[tuple[Any, ...], Callable[[Any, int], Tensor]]:
    ids = tokens(step, SIZES[step])
    parts = ids.tensor_split(min(8, len(ids)))
    return (ids,), lambda output, number: cross_entropy(output, parts[number])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("is_loop", [False, True])
def test_every_schedule(schedule: str, is_loop: bool) -> None:
    build = lambda: Tied(6)  # noqa: E731
    check(2, build, of_tokens, None if is_loop else steps_of_tokens, schedule=schedule, microbatches=8)


def test_what_passes_by_a_stage() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        loss: Tensor = model(tokens(step, 6), scale=0.5)["loss"]
        return loss

    check(3, WithContext, loss_of, None, microbatches=3)


def test_a_list_of_layers() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        x, labels = pictures(step, 7)
        return cross_entropy(model(x), labels)

    check(3, images, loss_of, None, microbatches=3, cuts=["2", "6"])


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(list(SCHEDULES)), st.integers(2, 3), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.data()
)
def test_any_numbers(schedule: str, workers: int, microbatches: int, size: int, is_loop: bool, data: Any) -> None:
    chunks = SCHEDULES[schedule].chunks or 2
    if refusal(schedule, workers, chunks, microbatches):
        return
    ids = tokens(data.draw(st.integers(0, 99)), size)
    parts = ids.tensor_split(min(microbatches, size))

    def loss_of(model: nn.Module, _: int) -> Tensor:
        return cross_entropy(model(ids), ids)

    def of_step(_: int) -> tuple[tuple[Any, ...], Callable[[Any, int], Tensor]]:
        return (ids,), lambda output, number: cross_entropy(output, parts[number])

    build = lambda: Tied(6)  # noqa: E731
    check(workers, build, loss_of, None if is_loop else of_step, schedule=schedule, microbatches=microbatches)


def test_two_calls_before_one_backward_pass() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        first, second = model(tokens(step, 4)), model(tokens(step + 9, 4))
        return (first * second.tanh()).mean()

    check(2, Tied, loss_of, None, microbatches=2)


def test_several_backward_passes_before_a_step() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        cross_entropy(model(tokens(step + 5, 4)), tokens(step + 5, 4)).backward()
        return cross_entropy(model(tokens(step, 4)), tokens(step, 4))

    check(2, Tied, loss_of, None, microbatches=2)


def test_an_evaluation_between_steps() -> None:
    def loss_of(model: nn.Module, step: int) -> Tensor:
        with torch.no_grad():
            shift = model(tokens(50, 3)).mean()
        return cross_entropy(model(tokens(step, 4)), tokens(step, 4)) * (1.0 + shift)

    check(2, Tied, loss_of, None, microbatches=4)


def test_a_frozen_stage() -> None:
    def build() -> nn.Module:
        model = Tied(4, is_tied=False)
        model.words.requires_grad_(False)
        model.positions.requires_grad_(False)
        model.blocks[0].requires_grad_(False)
        model.blocks[1].requires_grad_(False)
        return model

    check(2, build, of_tokens, None, microbatches=4)


def test_a_gradient_that_is_not_finite_is_so_everywhere() -> None:
    def task(wire: Wire) -> list[bool]:
        model = made(lambda: Tied(4, is_tied=False))
        piped(model, wire, microbatches=2)
        ids = tokens(0, 4)
        loss = cross_entropy(model(ids), ids)
        if wire.rank == 0:
            p = model.get_parameter("positions")
            p.register_hook(lambda gradient: gradient * float("inf"))
        loss.backward()
        return [bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None]

    first, second = VirtualWorld(2).run(task)
    assert not all(first)
    assert not all(second)


class Jumps(nn.Module):
    """A sum of what two stages have made, outside of any module."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](x)
        x = first
        for block in list(self.blocks)[1:]:
            x = block(x)
        output: Tensor = self.last(x + first)
        return output


class Backwards(nn.Module):
    """Whose modules are called in another order than they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return x


def called(model: nn.Module, wire: Wire) -> None:
    piped(model, wire, microbatches=2)
    model(torch.randn(4, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Jumps, "outputs of stages 0 and 1 are combined outside of any module, on their way to last"),
        (Backwards, "blocks.0 is in stage 0 and is called after modules of stage 1; give quorate.parallelize an ex"),
        (lambda: nn.Sequential(nn.Linear(4, 4)), "the model has 1 piece that could be a stage"),
    ],
)
def test_models_that_are_refused(build: Callable[[], nn.Module], words: str) -> None:
    def task(wire: Wire) -> str:
        model = made(build)
        with pytest.raises(ConfigurationError) as refused:
            called(model, wire)
        return str(refused.value)

    assert all(words in said for said in VirtualWorld(2).run(task))


def test_an_example_tells_the_order_of_calls() -> None:
    def task(wire: Wire) -> Tensor:
        model = made(Backwards)
        pipeline = piped(model, wire, microbatches=2, example=torch.randn(2, 4, dtype=torch.float64))
        assert pipeline.units[0].name == "norm"
        output: Tensor = model(torch.ones(4, 4, dtype=torch.float64)).detach()
        return output

    wanted = made(Backwards)(torch.ones(4, 4, dtype=torch.float64))
    assert all(torch.allclose(output, wanted) for output in VirtualWorld(2).run(task))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"schedule": "2f2b"}, 'there is no schedule "2f2b"; known: gpipe, 1f1b,'),
        ({"schedule": "1f1b", "microbatches": 1}, "1f1b needs a micro-batch for each of 2 stages, and there are 1"),
        ({"microbatches": 0}, "microbatches=0 is not a number of micro-batches"),
        ({"microbatches": True}, "microbatches=True is not a number of micro-batches"),
        ({"cuts": "evenly"}, "stages='evenly' is unknown; it must be"),
        ({"cuts": ["blocks.9"]}, 'stages has "blocks.9", which is not a module that a stage could begin with'),
        ({"cuts": ["blocks.1", "blocks.2"]}, "stages lists 2 modules, but 2 stages need 1"),
        ({"cuts": ["words"]}, "in the order of the model"),
    ],
)
def test_choices_that_are_refused(chosen: dict[str, Any], words: str) -> None:
    def task(wire: Wire) -> str:
        with pytest.raises(ConfigurationError) as refused:
            piped(made(Tied), wire, **chosen)
        return str(refused.value)

    assert all(words in said for said in VirtualWorld(2).run(task))


def test_nothing_is_left_of_other_stages() -> None:
    def task(wire: Wire) -> set[str]:
        model = made(lambda: Tied(4, is_tied=False))
        piped(model, wire, cuts=["blocks.2"])
        return set(model.state_dict())

    first, second = VirtualWorld(2).run(task)
    assert not first & second
    assert first | second == set(made(lambda: Tied(4, is_tied=False)).state_dict())
    assert {"positions", "words.weight"} <= first


def test_what_is_called_with_no_batch() -> None:
    def task(wire: Wire) -> str:
        model = made(images)
        piped(model, wire)
        with pytest.raises(ConfigurationError) as refused:
            model(3)
        return str(refused.value)

    assert all("call a model in stages with a batch" in said for said in VirtualWorld(2).run(task))
