"""The momentum of a worker in one vector: the same bits as parameter by parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.buckets.flat import layout_of
from quorate.core.vectors import Flat, pack
from quorate.replica import worker_momentum
from quorate.replica.worker_momentum import FlatMomentum, OwnMoment, WorkerMomentum

OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1, "maximize": True},
    {"momentum": 0.9, "nesterov": True},
]


def made(options: dict[str, Any]) -> tuple[list[nn.Parameter], WorkerMomentum]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (1,), (7, 2))]
    optimizer = torch.optim.SGD(parameters, lr=0.1, **options)
    return parameters, WorkerMomentum(optimizer, torch.optim.SGD, "sgd", 2)


def gradients_of(step: int, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    return [torch.randn(p.shape, generator=torch.Generator().manual_seed(step + i)) for i, p in enumerate(parameters)]


def stepped(options: dict[str, Any], *, is_flat: bool, weight: float = 1.0, steps: int = 4) -> list[Tensor]:
    """The vectors of some steps, in which the delay grows, and the momenta after them."""
    parameters, momentum = made(options)
    layout = layout_of([(str(i), p) for i, p in enumerate(parameters)], header=3, part_bytes=64)
    flat, vectors = FlatMomentum(momentum, parameters, layout), []
    for step in range(steps):
        gradients, vector = gradients_of(step, parameters), Flat.zeros(layout)
        if is_flat:
            assert flat.takes(gradients)
            pack(gradients, vector)
            flat.step(vector, weight=weight, scale=0.5)
        else:
            pack(momentum.ahead(parameters, gradients, weight)[0], vector, scale=0.5)
        momentum.was_late(0.7)
        vectors += [x.clone() for x in vector.segments()]
    return [*vectors, *(momentum.own[p].m for p in parameters)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_numbers_have_the_same_bits(
    options: dict[str, Any], weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_momentum, "BLOCK", 5)
    each = zip(
        stepped(options, is_flat=True, weight=weight), stepped(options, is_flat=False, weight=weight), strict=True
    )
    assert all(torch.equal(x, y) for x, y in each)


def test_a_momentum_that_was_loaded_is_gone_on_with() -> None:
    parameters, momentum = made({"momentum": 0.9})
    other_parameters, other = made({"momentum": 0.9})
    layout = layout_of([(str(i), p) for i, p in enumerate(parameters)])
    flat, vector, expected = FlatMomentum(momentum, parameters, layout), Flat.zeros(layout), Flat.zeros(layout)
    pack(gradients_of(0, parameters), vector)
    flat.step(vector, weight=1.0, scale=1.0)
    other.ahead(other_parameters, gradients_of(0, parameters))
    for p, q in zip(parameters, other_parameters, strict=True):
        momentum.own[p].m, other.own[q].m = torch.ones_like(p), torch.ones_like(q)
        momentum.own[p] = type(momentum.own[p])(torch.ones_like(p.detach()))
    pack(gradients_of(1, parameters), vector)
    flat.step(vector, weight=1.0, scale=1.0)
    pack(other.ahead(other_parameters, gradients_of(1, parameters))[0], expected)
    assert all(torch.equal(x, y) for x, y in zip(vector.segments(), expected.segments(), strict=True))


def test_it_leaves_alone_what_it_does_not_know() -> None:
    parameters, momentum = made({"momentum": 0.9})
    flat = FlatMomentum(momentum, parameters, layout_of([(str(i), p) for i, p in enumerate(parameters)]))
    first, *others = gradients_of(0, parameters)
    assert first is not None
    assert flat.takes([first, *others])
    for other in (None, first.to_sparse(), first.double()):
        assert not flat.takes([other, *others])
    momentum.own[parameters[0]] = OwnMoment(torch.zeros(3, 4))
    assert not flat.takes([first, *others])
    momentum.own.clear()
    momentum.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "momentum": 0.5})
    assert not flat.takes([first, *others])
