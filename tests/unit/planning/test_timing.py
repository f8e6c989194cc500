"""How a script's blocks are timed, on a clock that only they move."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.planning import timing
from quorate.planning.timing import Timer, Timers, cuts, fixed_shares


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return the time, like `time.perf_counter`."""
        return self.now


class Spends(torch.autograd.Function):
    """Moves the clock in both passes: by `fixed`, and by one second, or two backward, for each example."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, fixed: float) -> Tensor:
        ctx.clock, ctx.fixed = clock, fixed
        clock.now += fixed + len(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.clock.now += ctx.fixed + 2 * len(grads[0])
        return grads[0], None, None


class Block(nn.Module):
    """A layer that takes its time."""

    def __init__(self, clock: Clock, fixed: float) -> None:
        super().__init__()
        self.up, self.down, self.clock, self.fixed = nn.Linear(4, 8), nn.Linear(8, 4), clock, fixed

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        output: Tensor = Spends.apply(self.down(torch.relu(self.up(x))), self.clock, self.fixed)
        return output


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(timing, "time", fake)
    return fake


def test_what_a_step_takes(clock: Clock) -> None:
    model = nn.Sequential(nn.Linear(3, 4), Block(clock, 1.0), Block(clock, 1.0))
    blocks = {"1": model[1], "2": model[2]}
    timer = Timer(model, blocks, clock.perf_counter)
    for _ in range(3):
        clock.now += 0.5  # reads a batch
        loss = model(torch.ones(6, 3)).sum()
        clock.now += 0.25  # the loss
        loss.backward()
        timer.steps_now()
        clock.now += 2.0
        timer.stepped()
    report = timer.report(blocks)
    assert report["blocks"] == {"1": [7.0, 13.0], "2": [7.0, 13.0]}
    assert report["rest"] == [0.0, 0.25]
    assert (report["examples"], report["update"], report["outside"], report["steps"]) == (6, 2.0, 0.5, 2)
    assert report["outputs"] == {"1": 6 * 4 * 4, "2": 6 * 4 * 4}
    assert report["fixed"] == pytest.approx((1 / 7, 1 / 13))


def test_how_long_steps_are_timed(clock: Clock) -> None:
    """For five seconds behind the first, but for no fewer than four steps, and no more than 500."""
    for seconds, steps in ((3.0, 5), (0.9, 7), (1e-3, 501)):
        timer = Timer(None, {}, clock.perf_counter)
        while not timer.is_enough:
            clock.now += seconds
            timer.steps_now()
            timer.stepped()
        assert timer.seconds == pytest.approx([seconds] * (steps - 1)) and len(timer.steps) == steps


def test_what_the_processor_did_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of it, but for half a second that it waits behind the loss: of 4.5 s 3 - 1 / 3."""
    seconds = Clock()
    model, waited = nn.Linear(3, 4), 0.0
    monkeypatch.setattr(time, "process_time", lambda: seconds.now * 2 / 3 - waited)
    timer = Timers(model, {}, seconds.perf_counter)
    for _ in range(3):
        seconds.now += 0.5
        loss = model(torch.ones(6, 3)).sum()
        seconds.now += 2.0
        waited += 1 / 3
        loss.backward()
        timer.steps_now()
        seconds.now += 2.0
        timer.stepped()
    assert timer.parts == pytest.approx({"outside": 0.5, "model": 0.0, "backward": 2.0, "update": 2.0})
    assert timer.processor.parts == pytest.approx({"outside": 1 / 3, "model": 0.0, "backward": 1.0, "update": 4 / 3})
    assert timer.report({})["processor"] == pytest.approx((3 - 1 / 3) / 4.5)


def test_what_does_not_grow_with_examples(clock: Clock) -> None:
    block = Block(clock, 3.0)
    inputs = {"0": ((torch.ones(5, 4, requires_grad=True),), {})}
    assert fixed_shares({"0": block}, inputs, 5) == pytest.approx((3 / 8, 3 / 13))
    assert fixed_shares({"0": Block(clock, 0.0)}, inputs, 5) == (0.0, 0.0)
    assert fixed_shares({"0": block}, {"0": (("no tensor",), {})}, 5) == (0.0, 0.0)
    assert fixed_shares({}, {}, 5) == (0.0, 0.0)


def test_which_numbers_can_be_cut() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.LayerNorm(4))
    counts = cuts(model, {"0": model[0]})
    assert counts["2"] == {"": 0, "0": 4 * 8 + 8 + 8 * 4 + 4}
    assert isinstance(counts["3"], str) or counts["3"] == {"": 0, "0": 0}
