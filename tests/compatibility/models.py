"""The models and optimizers of `make compatibility`: linear layers, with attention, a table or experts where asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import quorate
from quorate.optim import LAMB, LARS, AdaScale
from tests.support.every_strategy import OF_ONE_HOST, optimizer_of

if TYPE_CHECKING:
    from tests.compatibility.training import Training

WIDTH, HIDDEN, OUTPUTS, LENGTH, ROWS, HEADS = 4, 8, 2, 8, 16, 2
"""Examples have LENGTH positions of WIDTH numbers under attention, and WIDTH numbers without; tables have ROWS rows."""
RATE = 0.02


class Attention(nn.Module):
    """Two heads of attention, block-sparse with a pattern."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.pattern = f"{pattern}:block=2" if pattern else None

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in layers)
        y = quorate.sequence_attention(q, k, v, is_causal=True, pattern=self.pattern)
        return y.transpose(1, 2).flatten(-2)


class Mixture(nn.Module):
    """Experts beside the numbers that they get."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = quorate.Experts(_expert, count=2, dim=HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(x)


def _expert() -> nn.Module:
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN))


def has_positions(training: Training) -> bool:
    """Return whether examples are sequences."""
    return bool(training.attention) or training.mesh == "sequence"


def model_of(training: Training) -> nn.Sequential:
    """Return the model of a training, with other numbers on each worker."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if training.optimizer == "sparse gradients":
        layers["table"] = nn.Embedding(ROWS, WIDTH, sparse=True)
    if has_positions(training):
        layers["attention"] = Attention(training.attention)
    layers |= {"first": nn.Linear(WIDTH, HIDDEN), "bend": nn.Tanh()}
    layers |= {"middle": nn.Linear(HIDDEN, HIDDEN), "curve": nn.Tanh()}
    if training.mesh == "experts":
        layers["mixture"] = Mixture()
    return nn.Sequential(OrderedDict(**layers, last=nn.Linear(HIDDEN, OUTPUTS)))


def inner(model: Any) -> Any:
    """Return the model inside of a wrapper."""
    return getattr(model, "module", model)


def loss_of(model: Any, x: Tensor, y: Tensor, training: Training) -> Tensor:
    """Return the mean square of the distances of the outputs from the targets, at all positions."""
    if has_positions(training):
        x = quorate.sequence_piece(x)
        outputs = model(x)
        losses = (outputs - y.unsqueeze(1)).square().mean(-1)
        return quorate.sequence_mean(losses)
    outputs = model(x)
    return (outputs - y).square().mean()


MESHES: Mapping[str, tuple[dict[str, int], dict[str, Any]]] = {
    "zero=1": ({"shards": 2}, {"zero": 1}),
    "zero=2": ({"shards": 2}, {"zero": 2}),
    "zero=3": ({"shards": 2}, {"zero": 3}),
    "offload": ({"shards": 2}, {"zero": 2, "offload": "optimizer"}),
    "tensor": ({"tensor": 2}, {}),
    "stages": ({"stages": 2}, {"microbatches": 2}),
    "sequence": ({"tensor": 2}, {"tensor": "sequence"}),
    "experts": ({"shards": 2}, {}),
}
"""By name the sizes of the axes of a mesh, and the arguments of `quorate.parallelize`."""


def in_mesh(model: nn.Module, training: Training, world: quorate.World) -> Any:
    """Return the model in pieces, of two workers a replica."""
    axes, arguments = MESHES[training.mesh]
    return quorate.parallelize(model, world.mesh(replicas=world.size // 2, **axes), **arguments)


def optimizer_for(training: Training, model: nn.Module) -> Optimizer:
    """Return the plain optimizer of a training."""
    rate = RATE / (2 if training.strategy in OF_ONE_HOST else 1)
    parameters = list(model.parameters())
    if training.optimizer == "Muon":
        return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=rate)
    if training.optimizer in ("SGD", "sparse gradients"):
        if training.optimizer == "SGD":
            return optimizer_of(training.strategy, parameters, lr=rate, momentum=training.momentum)
        return torch.optim.SGD(parameters, lr=rate)
    return OPTIMIZERS[training.optimizer](parameters, lr=rate)


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
    "LARS": LARS,
    "LAMB": LAMB,
    "AdaScale": AdaScale,
    "LBFGS": partial(torch.optim.LBFGS, max_iter=2),
}
