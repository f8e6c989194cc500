"""Steps corrected for a delay of one step: by the equation, to first order, and where nothing is corrected."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.optim.delay_correction import LAST_STEP, delay_corrected

Make = Callable[[Any], torch.optim.Optimizer]
MAKE: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.05, weight_decay=0.0),
}


def gradients(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, generator=draw, dtype=torch.float64) for _ in range(count)]


def step(optimizer: torch.optim.Optimizer, p: Tensor, gradient: Tensor | None, *, corrects: bool) -> Tensor:
    """Return the parameters after a step."""
    p.grad = gradient
    with delay_corrected(optimizer) if corrects else nullcontext():
        optimizer.step()
    return p.detach().clone()


@pytest.mark.parametrize("kind", MAKE)
def test_parameters_are_one_step_ahead_of_the_sum_of_all_steps(kind: str) -> None:
    """theta[t] = theta[0] - (u[1] + ... + u[t]) - (u[t] - u[1]); these optimizers do not look at theta."""
    plain, corrected = (Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))
    optimizers = [MAKE[kind]([p]) for p in (plain, corrected)]
    points = [plain.detach().clone()]
    for number, gradient in enumerate(gradients(8), 1):
        points.append(step(optimizers[0], plain, gradient, corrects=False))
        theta = step(optimizers[1], corrected, gradient, corrects=True)
        steps = [before - after for before, after in itertools.pairwise(points)]
        assert torch.allclose(theta, points[number] - (steps[-1] - steps[0]), rtol=0, atol=1e-12)
        assert torch.allclose(optimizers[1].state[corrected][LAST_STEP], steps[-1], rtol=0, atol=1e-12)


def test_decoupled_decay_is_a_part_of_the_step() -> None:
    p = Parameter(torch.ones(4, 3, dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=0.05, weight_decay=0.5)
    before, last = p.detach().clone(), None
    for gradient in gradients(5):
        like = Parameter(before.clone())
        other = torch.optim.AdamW([like], lr=0.05, weight_decay=0.5)
        kept = {key: x.clone() for key, x in optimizer.state[p].items() if key != LAST_STEP}
        if kept:
            other.state[like].update(kept)
        u = before - step(other, like, gradient, corrects=False)
        after = step(optimizer, p, gradient, corrects=True)
        wanted = before - u - (u - last) if last is not None else before - u
        assert torch.allclose(after, wanted, rtol=0, atol=1e-12)
        before, last = after, u


def far_from_prompt(rate: float, *, corrects: bool) -> float:
    """How far steps of gradients that are one step old end from prompt ones, on a quadratic, after a fixed time."""
    curvature = torch.tensor([1.0, 0.5, 0.25, 0.1], dtype=torch.float64)
    prompt, late = (Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    optimizers, seen = [torch.optim.SGD([p], lr=rate) for p in (prompt, late)], late.detach().clone()
    for _ in range(round(1 / rate)):
        step(optimizers[0], prompt, curvature * prompt.detach(), corrects=False)
        gradient, seen = curvature * seen, late.detach().clone()
        step(optimizers[1], late, gradient, corrects=corrects)
    return float((prompt - late).detach().norm())


def test_late_steps_equal_prompt_ones_to_first_order_of_the_rate() -> None:
    """Half the rate halves the error of late steps, and quarters that of corrected ones."""
    late = [far_from_prompt(rate, corrects=False) for rate in (0.02, 0.01, 0.005)]
    corrected = [far_from_prompt(rate, corrects=True) for rate in (0.02, 0.01, 0.005)]
    assert all(1.9 < a / b < 2.1 for a, b in itertools.pairwise(late))
    assert all(3.7 < a / b < 4.3 for a, b in itertools.pairwise(corrected))
    assert corrected[0] < 0.1 * late[0]


def test_a_parameter_without_a_gradient_stays_and_keeps_its_last_step() -> None:
    p, q = (Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))
    optimizer = torch.optim.SGD([p, q], lr=0.1)
    for gradient in gradients(2):
        q.grad = gradient
        step(optimizer, p, gradient, corrects=True)
    kept, before, q.grad = optimizer.state[p][LAST_STEP].clone(), q.detach().clone(), gradients(3)[2]
    assert torch.equal(step(optimizer, p, None, corrects=True), before)
    assert torch.equal(optimizer.state[p][LAST_STEP], kept)
    assert not torch.equal(q, before)


def test_a_step_that_a_scaler_leaves_out_is_not_corrected() -> None:
    p = Parameter(torch.ones(4, 3))
    optimizer: Any = torch.optim.SGD([p], lr=0.1, fused=True)
    first, second, third = (x.float() for x in gradients(3))
    for gradient in (first, second):
        step(optimizer, p, gradient, corrects=True)
    before, kept = p.detach().clone(), optimizer.state[p][LAST_STEP].clone()
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
    assert torch.equal(step(optimizer, p, third, corrects=True), before)
    assert torch.equal(optimizer.state[p][LAST_STEP], kept)


def test_steps_of_small_floats_are_those_that_were_made() -> None:
    p = Parameter(torch.ones(4, 3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([p], lr=0.05)
    for gradient in gradients(4):
        before = p.detach().clone()
        step(optimizer, p, gradient.bfloat16(), corrects=True)
        assert optimizer.state[p][LAST_STEP].dtype == torch.bfloat16
        assert not torch.equal(p, before)
