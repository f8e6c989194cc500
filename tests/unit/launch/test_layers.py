"""What each layer takes of both passes: by a clock that only the layers advance, and by counted operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from quorate.launch.warm.costing import Layers, counter_of_operations

BATCH, WIDTH = 6, 8
PRODUCT = 2 * BATCH * WIDTH * WIDTH
"""Operations of a linear layer in one pass; the backward pass has two."""


class Clock:
    """A clock that stands still but for the operations that advance it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(torch.autograd.Function):
    """The identity, which takes 2 forward and 5 backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock) -> Tensor:
        ctx.clock = clock
        clock.now += 2
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.clock.now += 5
        return gradients[0], None


class Block(nn.Module):
    """A linear layer, and twice `Slow` around it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.linear, self.relu = clock, nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Slow.apply(self.relu(self.linear(Slow.apply(x, self.clock))), self.clock)
        return y


def test_a_layer_has_what_it_computes_itself() -> None:
    """Operations before and after an inner layer, and none of another layer's, or of the loss."""
    clock = Clock()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(clock), Block(clock))
    layers = Layers(model)
    layers.begin(clock)
    loss = Slow.apply(model(torch.ones(BATCH, WIDTH)), clock).sum()
    loss.backward()
    assert layers.taken["1"] == layers.taken["2"] == [4, 10]
    assert all(layers.taken[name] == [0, 0] for name in ("", "0", "1.linear", "2.linear"))


def test_operations_of_layers_are_all_of_a_step() -> None:
    clock = Clock()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(clock), Block(clock))
    layers = Layers(model)
    with FlopCounterMode(display=False) as counter:
        layers.begin(counter.get_total_flops)
        model(torch.ones(BATCH, WIDTH)).sum().backward()
    assert layers.taken["0"] == [PRODUCT, PRODUCT], "no gradient of the batch"
    assert layers.taken["1.linear"] == layers.taken["2.linear"] == [PRODUCT, 2 * PRODUCT]
    assert sum(map(sum, layers.taken.values())) == counter.get_total_flops() == 8 * PRODUCT


def test_layers_that_are_computed_again() -> None:
    """The second forward pass, inside of the backward pass, is the layer's forward pass as well."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    layers = Layers(model)
    with FlopCounterMode(display=False) as counter:
        layers.begin(counter.get_total_flops)
        x = torch.ones(BATCH, WIDTH, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert layers.taken["0"][0] == 2 * PRODUCT and sum(map(sum, layers.taken.values())) == counter.get_total_flops()


def test_nothing_is_measured_without_a_meter() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    layers = Layers(model)
    model(torch.ones(BATCH, WIDTH)).sum().backward()
    assert not layers.taken
    clock = Clock()
    layers.begin(clock)
    output = model(torch.ones(BATCH, WIDTH)).sum()
    layers.begin(None)
    output.backward()
    assert not layers.taken and layers.moved[""] == 4 * BATCH * 2 * WIDTH


@pytest.mark.parametrize("is_bidirectional", [False, True])
def test_operations_of_recurrent_layers(*, is_bidirectional: bool) -> None:
    """Three products of each weight with each token."""
    layer = nn.LSTM(8, 16, num_layers=2, bidirectional=is_bidirectional)
    with counter_of_operations() as counter:
        layer(torch.ones(5, 4, 8, requires_grad=True))[0].sum().backward()
    weights = sum(p.numel() for p in layer.parameters() if p.dim() == 2)
    assert counter.get_total_flops() == 3 * 2 * 5 * 4 * weights
