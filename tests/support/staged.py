"""Models that are cut into stages, and a worker of a pipeline without a mesh of real processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quorate.core.contracts import Wire
from quorate.sharding.mesh import coordinates_in
from quorate.sharding.stages.by_stages import by_stages, stages_for
from quorate.sharding.stages.choice import StageChoice
from quorate.sharding.stages.pipeline import Pipeline

WIDTH, TOKENS, LENGTH = 8, 11, 6


class Block(nn.Module):
    """Of a transformer without attention; a mask and a context that it may be given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None = None, *, context: Tensor | None = None) -> Tensor:
        found: Tensor = x + self.inner(self.norm(x))
        if mask is not None:
            found = found * mask.mean()
        return found if context is None else found + 0.1 * context


class Tied(nn.Module):
    """A language model: positions outside of any module, a mask made of the input, and a tied head."""

    def __init__(self, blocks: int = 4, *, is_tied: bool = True) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions
        mask = torch.ones(LENGTH, LENGTH, dtype=x.dtype, device=x.device).tril()
        for block in self.blocks:
            x = block(x, mask)
        found: Tensor = self.head(self.norm(x))
        return found


class WithContext(nn.Module):
    """What the first module makes is given to every block, by name; the last output is a dictionary with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        context = self.words(ids)
        x = context * scale
        for block in self.blocks:
            x = block(x, context=context)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), ids.flatten()), "logits": logits}


def images() -> nn.Module:
    """A plain list of layers, some without parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.Tanh(),
        nn.Linear(8, TOKENS),
    )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions."""
    return F.cross_entropy(logits.reshape(-1, TOKENS), targets.reshape(-1))


def tokens(step: int, size: int) -> Tensor:
    return torch.randint(0, TOKENS, (size, LENGTH), generator=torch.Generator().manual_seed(step))


def pictures(step: int, size: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    labels = torch.randint(0, TOKENS, (size,), generator=draw)
    return torch.randn(size, 1, 4, 4, generator=draw, dtype=torch.float64), labels


@dataclass
class Mesh:
    """What is asked of torch's."""

    mesh: Tensor
    mesh_dim_names: tuple[str, ...]

    def __getitem__(self, axis: str) -> str:
        return axis


def made(build: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    """With numbers of its own, whoever else draws meanwhile."""
    model = build().double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=draw, dtype=torch.float64))
    return model


def piped(model: nn.Module, wire: Wire, **chosen: Any) -> Pipeline:
    """`model` in stages over all workers of `wire`."""
    coordinates = coordinates_in(Mesh(torch.arange(wire.size).view(wire.size, 1), ("stages", "shards")), wire)  # type: ignore[arg-type]
    choice = StageChoice(**chosen)
    return by_stages(model, stages_for(model, wire.size, wire, choice, shards=1, zero=3), coordinates, "stages")


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Every name of every parameter."""
    return {name: p.detach().clone() for name, p in model.named_parameters(remove_duplicate=False)}


def far(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The greatest difference; everything in `found` is to be wanted."""
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())
