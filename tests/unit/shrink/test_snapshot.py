"""What a snapshot puts back: training goes on as if nothing had been made smaller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.masks import Mask
from quorate.replica.factors import factor, factored, step_on_factors
from quorate.replica.masks import masks_of
from quorate.shrink.snapshot import Snapshot


class Net(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(x)[0])
        return y


def low_rank(model: Net, optimizer: Any) -> None:
    for module, name in ((model.lstm, "weight_hh_l0"), (model.head, "weight")):
        weight: Any = module._parameters[name]
        step_on_factors(optimizer, *factor(module, name, factored(weight, 2)))


def shared_values(model: Net, optimizer: Any) -> None:
    quorate.shrink.cluster(model.head, 4)
    optimizer.param_groups[0]["params"][-2] = model.head.weight_values


def pruned(model: Net, optimizer: Any) -> None:
    weight = model.head.weight
    masks_of(optimizer).replace({weight: Mask(weight.abs() > weight.abs().median())})


@pytest.mark.parametrize("change", [low_rank, shared_values, pruned])
@pytest.mark.parametrize(
    "make", [partial(torch.optim.SGD, lr=0.05, momentum=0.9), partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)]
)
def test_training_goes_on_as_if_nothing_had_changed(change: Callable[[Net, Any], None], make: Any) -> None:
    def step(model: Net, optimizer: Any, seed: int) -> None:
        x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    torch.manual_seed(0)
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    optimizer, other = make(model.parameters()), make(twin.parameters())
    for seed in range(3):
        step(model, optimizer, seed)
        step(twin, other, seed)
    snapshot = Snapshot(model, optimizer, None)
    change(model, optimizer)
    for seed in range(10, 13):
        step(model, optimizer, seed)
    assert not torch.equal(model.head.weight, twin.head.weight)
    snapshot.restore()
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(twin, other, seed)
    assert [(name, type(p)) for name, p in model.named_parameters()] == [
        (name, type(p)) for name, p in twin.named_parameters()
    ]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert type(model.lstm) is nn.LSTM and type(model.head) is nn.Linear
