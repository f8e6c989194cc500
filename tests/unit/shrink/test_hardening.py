"""Real smaller layers: outputs stay, and what cannot be followed is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from quorate.core.errors import ConfigurationError
from quorate.shrink import harden

MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], list[tuple[int, ...]]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
        [(4, 6), (2, 4), (3, 2)],
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3, bias=False)),
        (6,),
        [(4, 6), (3, 4)],
    ),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, padding=1)),
            *(nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 16, 4)),
        ),
        (1, 8, 8),
        [(4, 1, 3, 3), (3, 4, 3, 3), (4, 48)],
    ),
}


def halve(model: nn.Sequential) -> None:
    """Set every second filter of all layers but the last to zero, with its bias, and move norms away from 1."""
    layers = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for layer in layers[:-1]:
            for p in layer.parameters():
                p[::2] = 0
        for norm in (layer for layer in model if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)):
            for x in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                assert x is not None
                x.uniform_(0.5, 1.5)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay(name: str) -> None:
    torch.manual_seed(0)
    make, shape, shapes = MODELS[name]
    model = make()
    halve(model)
    smaller, inputs = harden(model), torch.randn(7, *shape)
    torch.testing.assert_close(smaller(inputs), model.eval()(inputs))
    assert [tuple(p.shape) for p in smaller.parameters() if p.dim() > 1] == shapes


def test_names_and_sizes_of_layers_stay_true() -> None:
    model = MODELS["linear"][0]()
    halve(model)
    smaller = harden(model)
    assert smaller.state_dict().keys() == model.state_dict().keys()
    for layer in smaller:
        if isinstance(layer, nn.Linear):
            assert tuple(layer.weight.shape) == (layer.out_features, layer.in_features)
    assert model[0].out_features == 8


def test_a_constant_before_padding_stays() -> None:
    """Padding is zero, and the constant is not."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 2, 3, padding=1))
    halve(model)
    smaller, inputs = harden(model), torch.randn(2, 1, 6, 6)
    torch.testing.assert_close(smaller(inputs), model(inputs))
    assert smaller[0].out_channels == 4


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 2), "harden takes a Sequential, not a Linear"),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), "layer 1 is a LayerNorm"),
        (nn.Sequential(nn.Conv2d(2, 2, 1, groups=2)), "with groups"),
    ],
)
def test_what_cannot_be_followed_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        harden(model)  # type: ignore[arg-type]
