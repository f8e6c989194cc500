"""The residual network: as large as published, with a projection at the start of every stage."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import conv2d

from quorate.workloads.drawing import drawn
from quorate.workloads.residual import BasicBlock, ResidualNetwork


def test_resnet_32_has_the_published_size() -> None:
    model = drawn(lambda: ResidualNetwork(3, (16, 32, 64), 5, 10), seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 467_194
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len([module for module in convolutions if module.kernel_size == (3, 3)]) == 31  # and the linear layer
    assert len([module for module in convolutions if module.kernel_size == (1, 1)]) == 3
    assert all(module.bias is None for module in convolutions)


def test_every_later_stage_halves_the_sides() -> None:
    model = drawn(lambda: ResidualNetwork(1, (4, 6, 8), 2, 5), seed=0)
    sides: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: sides.append(tuple(output.shape[1:])))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    assert sides == [(4, 8, 8), (4, 8, 8), (6, 4, 4), (6, 4, 4), (8, 2, 2), (8, 2, 2)]
    assert [isinstance(block.shortcut, nn.Identity) for block in model.blocks] == [False, True] * 3


def test_a_block_is_its_formula() -> None:
    block = BasicBlock(3, 5, 2, projects=True).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    scale = (1 + 1e-5) ** -0.5  # a new batch norm in evaluation mode
    inner = torch.relu(conv2d(images, block.first.weight, stride=2, padding=1) * scale)
    inner = conv2d(inner, block.second.weight, padding=1) * scale
    shortcut = conv2d(images, block.shortcut[0].weight, stride=2) * scale
    torch.testing.assert_close(block(images), torch.relu(inner + shortcut))
