"""Real smaller layers in place of those whose filters are pruned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter

from quorate.core.errors import ConfigurationError

_BY_ELEMENT = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Identity),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def harden(model: nn.Sequential) -> nn.Sequential:
    """Return a copy of a model for evaluation whose pruned filters are removed, with the same outputs.

    A filter (a row of a `Linear`, an output channel of a convolution) is removed if its weights are all zero. Its
    output is a constant then, which is followed through norms and activations and added to the bias of the next layer.

    Args:
        model: A `Sequential` of `Linear`, convolutions without groups, batch norms, activations by element, dropout,
            max and adaptive average pooling, and `Flatten`. The filters of its last layer stay.

    Returns:
        The smaller model, in evaluation mode; its layers have the names of the old ones.

    Raises:
        ConfigurationError: The model has another layer, which is named.

    Cost: a copy of the model. Outputs differ by rounding only. Before a convolution with padding a filter stays unless
    its constant is zero, because padding is zero at the edges.

    Example:
        >>> layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
        >>> with torch.no_grad():
        ...     _ = layers[0].weight[:3].zero_()
        >>> quorate.shrink.harden(torch.nn.Sequential(*layers))[0].out_features
        5
    """
    if not isinstance(model, nn.Sequential):
        raise ConfigurationError(f"harden takes a Sequential, not a {type(model).__name__}; pass its Sequential part")
    smaller = copy.deepcopy(model).eval()
    layers = list(smaller)
    for name, layer in smaller.named_children():
        if not isinstance(layer, (nn.Linear, nn.Flatten, *_BY_ELEMENT, *_NORMS, *_POOLS, *_CONVOLUTIONS)):
            raise ConfigurationError(f"layer {name} is a {type(layer).__name__}, and harden cannot follow it")
        if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
            raise ConfigurationError(f"layer {name} is a convolution with groups, and harden cannot follow it")
    with torch.no_grad():
        places = [place for place, layer in enumerate(layers) if isinstance(layer, (nn.Linear, *_CONVOLUTIONS))]
        for place, following in pairwise(places):
            _shrink(layers[place : following + 1])
    return smaller


def _shrink(layers: Sequence[Module]) -> None:
    """Remove the zero filters of the first of `layers`, with their inputs of the last; the others lie between."""
    first, *between, last = layers
    weight, inputs = _weight(first), _weight(last)
    is_zero = ~weight.flatten(1).any(1)
    bias = getattr(first, "bias", None)
    constant = torch.zeros_like(weight[:, 0].flatten(1)[:, 0]) if bias is None else bias.detach().clone()
    for layer in between:
        if isinstance(layer, (*_NORMS, *_BY_ELEMENT)):
            shape = (1, -1, *[1] * _dims(layer))
            constant = layer(constant.view(shape)).flatten()
    padding = getattr(last, "padding", 0)
    is_padded = padding == "same" or (not isinstance(padding, str) and any(_as_tuple(padding)))
    removed = is_zero & ((constant == 0) | torch.tensor(not is_padded, device=constant.device))
    if removed.all():
        removed[0] = False
    if not removed.any():
        return
    each = inputs.shape[1] // len(constant)  # several inputs of a `Linear` for each channel, behind a `Flatten`
    spread = removed.repeat_interleave(each)
    to_bias = inputs[:, spread].flatten(2).sum(2) if inputs.dim() > 2 else inputs[:, spread]
    _add_to_bias(last, to_bias @ constant.repeat_interleave(each)[spread])
    for layer in (first, *(layer for layer in between if isinstance(layer, _NORMS))):
        _keep(layer, ~removed)
    _set(last, "weight", inputs[:, ~spread])
    setattr(last, "in_features" if isinstance(last, nn.Linear) else "in_channels", int((~spread).sum()))


def _weight(layer: Module) -> Tensor:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.detach()


def _dims(layer: Module) -> int:
    return next((dims for kind, dims in ((nn.BatchNorm2d, 2), (nn.BatchNorm3d, 3)) if isinstance(layer, kind)), 0)


def _as_tuple(padding: int | tuple[int, ...]) -> tuple[int, ...]:
    return padding if isinstance(padding, tuple) else (padding,)


def _add_to_bias(layer: Module, x: Tensor) -> None:
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    if bias is not None:
        bias.add_(x)
    elif x.any():
        layer.bias = Parameter(x.clone())


def _keep(layer: Module, kept: Tensor) -> None:
    """Keep these outputs of a layer, or channels of a norm."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        x = getattr(layer, name, None)
        if x is not None:
            _set(layer, name, x.detach()[kept])
    name = next(name for name in ("out_features", "out_channels", "num_features") if hasattr(layer, name))
    setattr(layer, name, int(kept.sum()))


def _set(layer: Module, name: str, x: Tensor) -> None:
    before = getattr(layer, name)
    setattr(layer, name, Parameter(x.clone(), before.requires_grad) if isinstance(before, Parameter) else x.clone())
