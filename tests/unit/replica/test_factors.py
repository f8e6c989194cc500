"""Layers in two factors, and optimizers that step on them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import CheckpointError
from quorate.replica.derived import carried
from quorate.replica.factors import (
    assigned,
    carried_to_factors,
    factor,
    factored,
    full_rank,
    product,
    stable_rank,
    step_on_factors,
    weights_of,
)
from quorate.replica.forms import forms_in, give_forms

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 5), (3, 8)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="circular"), (2, 4, 8, 8)),
    "convolution of one dimension": (lambda: nn.Conv1d(3, 6, 5, dilation=2), (2, 3, 12)),
    "lstm": (lambda: nn.LSTM(5, 7, 2, bidirectional=True), (6, 3, 5)),
    "gru": (lambda: nn.GRU(5, 7), (6, 3, 5)),
}


def outputs(layer: nn.Module, x: Tensor) -> Tensor:
    """Return its outputs, of a recurrent layer those of all steps."""
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


def replaced(layer: nn.Module, optimizer: torch.optim.Optimizer, rank: int | None = None) -> None:
    """Replace all weights of a layer, at full rank if none is given."""
    for key in weights_of(layer):
        weight: Any = layer._parameters[key]
        assert step_on_factors(optimizer, *factor(layer, key, factored(weight, rank or full_rank(weight))))


@pytest.mark.parametrize("name", LAYERS)
def test_at_full_rank_the_outputs_stay(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    before = outputs(layer, x).detach()
    optimizer = torch.optim.AdamW(layer.parameters())
    replaced(layer, optimizer)
    assert (outputs(layer, x) - before).abs().max() < 1e-5
    outputs(layer, x).sum().backward()
    optimizer.step()
    changed = outputs(layer, x)
    assert not torch.equal(changed, before) and torch.equal(outputs(copy.deepcopy(layer), x), changed)
    fresh = make()
    assert set(give_forms(fresh, forms_in(layer.state_dict()))) == set(weights_of(layer))
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(outputs(fresh, x), changed)


def test_the_weight_is_the_product_and_the_rank_is_the_one_asked_for() -> None:
    layer = nn.Conv2d(4, 6, 3)
    best = torch.linalg.svd(layer.weight.detach().flatten(1))
    replaced(layer, torch.optim.SGD(layer.parameters()), rank=2)
    assert layer.weight_a.shape == (2, 4, 3, 3) and layer.weight_b.shape == (6, 2, 1, 1)
    assert torch.equal(layer.weight, product(layer.weight_a, layer.weight_b))
    nearest = (best.U[:, :2] * best.S[:2]) @ best.Vh[:2]
    assert torch.allclose(layer.weight.flatten(1), nearest, atol=1e-5)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_momentum_is_carried_over_by_the_chain_rule(make: Any) -> None:
    """The mean of the factors' gradients, had there been factors all along, is the one that is carried over."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=False)
    pair = factored(layer.weight, 4)
    gradients = [torch.randn(4, 6) for _ in range(3)]
    options: Any = {"lr": 0.0, **({"momentum": 0.9} if make is torch.optim.SGD else {"weight_decay": 0.0})}
    optimizer = make(layer.parameters(), **options)
    a, b = (nn.Parameter(x.clone()) for x in pair)
    others = make([a, b], **options)
    for g in gradients:
        layer.weight.grad, a.grad, b.grad = g.clone(), pair[1].t() @ g, g @ pair[0].t()
        optimizer.step()
        others.step()
    key = "momentum_buffer" if make is torch.optim.SGD else "exp_avg"
    state_a, state_b = carried(optimizer.state[layer.weight], layer.weight, partial(carried_to_factors, pair), 2) or (
        {},
        {},
    )
    assert torch.allclose(state_a[key], others.state[a][key], atol=1e-6)
    assert torch.allclose(state_b[key], others.state[b][key], atol=1e-6)
    if make is torch.optim.AdamW:
        assert state_a["step"] == others.state[a]["step"] and state_a["exp_avg_sq"].shape == a.shape
        assert bool((state_a["exp_avg_sq"] > 0).all())


def test_mean_squares_are_those_of_uncorrelated_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=False)
    pair, scale = factored(layer.weight, 2), torch.rand(4, 6)
    drawn = torch.randn(20_000, 4, 6) * scale
    state = {"exp_avg_sq": scale.square()}
    state_a, state_b = carried(state, layer.weight, partial(carried_to_factors, pair), 2) or ({}, {})
    assert torch.allclose(state_a["exp_avg_sq"], (pair[1].t() @ drawn).square().mean(0), rtol=0.1)
    assert torch.allclose(state_b["exp_avg_sq"], (drawn @ pair[0].t()).square().mean(0), rtol=0.1)


def test_state_of_an_unknown_kind_begins_again() -> None:
    layer = nn.Linear(6, 4)
    optimizer = torch.optim.Adamax(layer.parameters())
    layer(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    weight, a, b = factor(layer, "weight", factored(layer.weight, 2))
    assert not step_on_factors(optimizer, weight, a, b)
    assert weight not in optimizer.state and a not in optimizer.state and layer.bias in optimizer.state


def test_groups_keep_their_options_and_names() -> None:
    first, second = nn.Linear(6, 4), nn.Linear(4, 2)
    groups = [{"params": list(first.named_parameters()), "lr": 0.1}, {"params": list(second.named_parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    replaced(first, optimizer, rank=2)
    assert [[p.shape[0] for p in group["params"]] for group in optimizer.param_groups] == [[2, 4, 4], [2, 2]]
    assert optimizer.param_groups[0]["param_names"] == ["weight_a", "weight_b", "bias"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]


def test_a_layer_that_cannot_have_the_ranks_of_a_file_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(CheckpointError, match=r"0.weight is in two factors of rank 2 in the file"):
        give_forms(model, {"0.weight": {"rank": 2}})
    assert give_forms(model, {"1.weight": {"rank": 2}}) == []


def test_stable_rank_and_shares() -> None:
    assert stable_rank(torch.eye(5)) == pytest.approx(5.0)
    assert stable_rank(torch.ones(4, 3)) == pytest.approx(1.0)
    assert stable_rank(torch.zeros(4, 3)) == 0.0
    assert assigned({"a": 4.0, "b": 2.0, "c": 2.0, "d": 1.0}, [3, 5]) == {"a": 3, "b": 5, "c": 5, "d": 3}
