"""Groups with weight decay and without, and residual blocks that begin as their shortcut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import LARS
from quorate.workloads.residual import ResidualNetwork


def names(groups: list[dict[str, Any]]) -> list[tuple[float, list[str]]]:
    return [(group["weight_decay"], [name for name, _ in group["params"]]) for group in groups]


def test_norms_and_biases_have_no_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Embedding(4, 3))
    groups = quorate.parameter_groups(model, 0.1)
    assert names(groups) == [(0.1, ["0.weight", "2.weight"]), (0.0, ["0.bias", "1.weight", "1.bias"])]
    assert names(quorate.parameter_groups(model, 0.1, no_decay=["2.*"]))[0] == (0.1, ["0.weight"])
    model[0].weight.requires_grad_(False)
    assert names(quorate.parameter_groups(model, 0.1, no_decay=["2.*"])) == [
        (0.0, ["0.bias", "1.weight", "1.bias", "2.weight"])
    ]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, LARS])
def test_optimizers_take_them(kind: Any) -> None:
    model = nn.Linear(2, 3)
    optimizer = kind(quorate.parameter_groups(model, 0.1), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert optimizer.param_groups[1]["param_names"] == ["bias"]


def test_blocks_whose_last_gamma_is_zero_are_their_shortcuts() -> None:
    model = ResidualNetwork(1, (4, 4), 2, 3)
    quorate.parameter_groups(model, 0.0, zero_gammas=["blocks.*.second_norm"])
    x = torch.rand(2, 4, 6, 6)
    block = model.blocks[1]
    assert torch.equal(block(x), x), "what is not negative goes through an activation as it is"
    assert not any(block.second_norm.weight.any() for block in model.blocks)
    assert model.stem_norm.weight.all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"weight_decay": 0.1, "no_decay": ["norm"]}, 'no trained parameter matches no_decay "norm"'),
        ({"weight_decay": 0.1, "zero_gammas": ["bn3"]}, 'no module matches zero_gammas "bn3"'),
        ({"weight_decay": 0.1, "zero_gammas": ["0"]}, r'"0" \(Linear\) has no weight of one dimension'),
        ({}, "weight_decay"),
    ],
)
def test_what_is_wrong_is_said(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        quorate.parameter_groups(nn.Sequential(nn.Linear(2, 2)), **how)
