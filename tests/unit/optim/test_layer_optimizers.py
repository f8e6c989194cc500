"""LARS and LAMB against their published equations, and what they leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import LAMB, LARS

STEPS = 5
SHAPES = [(4, 3), (3,), (2, 3, 2)]


def tensors(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=dtype) for shape in SHAPES]


def after(made: Any, rates: list[float], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Three parameters after steps with random gradients, at these rates."""
    parameters = [nn.Parameter(x) for x in tensors(0, dtype)]
    optimizer = made(parameters)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for p, g in zip(parameters, tensors(1 + step, dtype), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in parameters]


def lars_by_hand(rates: list[float], decay: float, mu: float, trust: float) -> list[Tensor]:
    """The paper's Algorithm 1; the vector takes plain steps with momentum."""
    weights, velocities = tensors(0), [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for step, rate in enumerate(rates):
        for place, g in enumerate(tensors(1 + step)):
            w = weights[place]
            local, d = 1.0, 0.0
            if w.dim() > 1:
                local, d = float(trust * w.norm() / (g.norm() + decay * w.norm())), decay
            velocities[place] = mu * velocities[place] + rate * local * (g + d * w)
            weights[place] = w - velocities[place]
    return weights


def lamb_by_hand(rates: list[float], decay: float, betas: tuple[float, float], eps: float) -> list[Tensor]:
    """The paper's Algorithm 2, phi being the identity; the vector takes Adam's steps."""
    weights = tensors(0)
    m = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    v = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for step, rate in enumerate(rates):
        for place, g in enumerate(tensors(1 + step)):
            w = weights[place]
            m[place] = betas[0] * m[place] + (1 - betas[0]) * g
            v[place] = betas[1] * v[place] + (1 - betas[1]) * g * g
            r = m[place] / (1 - betas[0] ** (step + 1)) / ((v[place] / (1 - betas[1] ** (step + 1))).sqrt() + eps)
            if w.dim() > 1:
                r = r + decay * w
                r = r * float(w.norm() / r.norm())
            weights[place] = w - rate * r
    return weights


def assert_close(values: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(values, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("decay", "mu"), [(0.0, 0.9), (0.1, 0.9), (0.1, 0.0)])
def test_lars_is_the_published_algorithm(decay: float, mu: float) -> None:
    how = {"momentum": mu, "weight_decay": decay, "coefficient": 0.02}
    parameters = after(lambda ps: LARS(ps, lr=0.5, **how), [0.5] * STEPS)
    assert_close(parameters, lars_by_hand([0.5] * STEPS, decay, mu, 0.02))


def test_lars_in_the_papers_form_when_the_rate_changes() -> None:
    rates = [0.1, 0.2, 0.4, 0.4, 0.05]
    how: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "coefficient": 0.02}
    parameters = after(lambda ps: LARS(ps, lr=0.1, momentum_correction=False, **how), rates)
    assert_close(parameters, lars_by_hand(rates, 0.1, 0.9, 0.02))
    corrected = after(lambda ps: LARS(ps, lr=0.1, **how), rates)
    assert not torch.allclose(corrected[0], parameters[0])


def test_momentum_correction_is_the_velocity_times_the_ratio_of_rates() -> None:
    """Goyal et al. 2017, remark 2: v <- momentum v rate / (rate before) + rate g."""
    rates = [0.1, 0.2, 0.4, 0.4, 0.05]
    vector = after(lambda ps: LARS(ps, lr=0.1, momentum=0.9), rates)[1]  # the vector, whose ratio is 1
    w, v, before = tensors(0)[1], torch.zeros(3, dtype=torch.float64), rates[0]
    for step, rate in enumerate(rates):
        v = 0.9 * v * rate / before + rate * tensors(1 + step)[1]
        w, before = w - v, rate
    torch.testing.assert_close(vector, w)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_the_published_algorithm(decay: float) -> None:
    parameters = after(lambda ps: LAMB(ps, lr=0.1, weight_decay=decay), [0.1] * STEPS)
    assert_close(parameters, lamb_by_hand([0.1] * STEPS, decay, (0.9, 0.999), 1e-6))


@pytest.mark.parametrize(("kind", "plain"), [(LARS, torch.optim.SGD), (LAMB, torch.optim.Adam)])
def test_vectors_and_excluded_names_take_plain_steps_without_decay(kind: Any, plain: Any) -> None:
    def trained(make: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2))
        optimizer = make(model)
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        return [p.detach() for p in model.parameters()]

    same = {"momentum": 0.9} if kind is LARS else {"eps": 1e-6}
    parameters = trained(lambda m: kind(m.named_parameters(), lr=0.1, weight_decay=0.3, exclude=["2"], **same))
    wanted = trained(lambda m: plain(m.parameters(), lr=0.1, **same))
    for place, (a, b) in enumerate(zip(parameters, wanted, strict=True)):
        assert torch.allclose(a, b) == (place > 0), place


def test_a_group_may_say_itself_what_adapts() -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.full((3,), 2.0)
    LARS([{"params": [p], "adapts": True}], lr=1.0, coefficient=0.1).step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))  # a tenth of its norm along g


def test_steps_of_small_floats_have_norms_of_float32() -> None:
    p = nn.Parameter(torch.full((100, 100), 4.0, dtype=torch.float16))
    p.grad = torch.full((100, 100), 400.0, dtype=torch.float16)
    LARS([p], lr=1.0, coefficient=0.25, momentum=0.0).step()
    torch.testing.assert_close(p.detach(), torch.full_like(p, 3.0), atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": -1.0}, "lr must be at least 0, not -1.0"),
        ({"lr": float("nan")}, "lr must be at least 0"),
        ({"lr": 1.0, "weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"lr": 1.0, "exclude": ["bias"]}, "exclude needs names; give the optimizer model.named_parameters()"),
        ({"lr": 1.0, "exclude": "bias"}, "a list of patterns"),
    ],
)
def test_what_is_wrong_is_said(kind: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kind([nn.Parameter(torch.ones(2))], **settings)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='no parameter matches exclude "head"'):
        LAMB(nn.Linear(2, 2).named_parameters(), lr=1.0, exclude=["bias", "head"])


def test_other_numbers_of_each_class_are_checked() -> None:
    p = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ConfigurationError, match="momentum must be at least 0 and below 1"):
        LARS(p, lr=1.0, momentum=1.0)
    with pytest.raises(ConfigurationError, match="bounds are two numbers"):
        LAMB(p, lr=1.0, bounds=(10.0, 0.01))


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigurationError, match="LARS takes dense gradients"):
        LARS(table.parameters(), lr=1.0).step()


def test_an_unknown_optimizer_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lars'; it has LAMB, LARS, AdaScale"):
        _ = quorate.optim.Lars


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_its_state_goes_through_a_state_dict(kind: Any) -> None:
    def made() -> tuple[nn.Parameter, Any]:
        p = nn.Parameter(torch.ones(3, 2))
        return p, kind([p], lr=0.1)

    def step(p: nn.Parameter, optimizer: Any, times: int) -> None:
        for _ in range(times):
            p.grad = p.detach() ** 2
            optimizer.step()

    (p, whole), (q, first), (r, second) = made(), made(), made()
    step(p, whole, 4)
    step(q, first, 2)
    with torch.no_grad():
        r.copy_(q)
    second.load_state_dict(first.state_dict())
    step(r, second, 2)
    assert torch.equal(p, r)
