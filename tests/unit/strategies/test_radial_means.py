"""Of which tensors decoupled DiLoCo takes radial means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.replica.replica import tables_in
from tests.support.scene import Scene, Trainer


class Reads(nn.Module):
    """A table, and behind it a layer, which may be the table once more."""

    def __init__(self, *, has_layer: bool = False, is_tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 5, bias=False) if has_layer or is_tied else nn.Identity()
        if is_tied:
            self.layer.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.table(x))
        return found


def trained(model: Callable[[], nn.Module], averaging: str) -> Tensor:
    """Of three learners, each of which reads words of its own."""

    def loss(trainer: Trainer) -> Tensor:
        words = torch.tensor([trainer.rank, (trainer.rank + trainer.step) % 5])
        return (trainer.model(words) - trainer.rank).square().mean()

    choice: dict[str, Any] = {"sync_every": 2, "wait_for": "all", "averaging": averaging}
    return Scene("decoupled-diloco", model=model, rate=0.1, loss=loss, steps=8, pause=0.01, **choice).end()


@pytest.mark.parametrize(
    ("model", "is_plain"),
    [(Reads, True), (lambda: Reads(is_tied=True), True), (lambda: Reads(has_layer=True), False)],
    ids=["table", "tied", "layer"],
)
def test_embeddings_are_averaged_plainly(model: Callable[[], nn.Module], is_plain: bool) -> None:
    assert torch.equal(trained(model, "radial"), trained(model, "mean")) == is_plain


def test_tables_are_told_by_their_modules() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.EmbeddingBag(3, 2), nn.Embedding(4, 2)])
    assert tables_in(model, list(model.parameters())) == {2, 3}
    model[2].requires_grad_(False)
    assert tables_in(model, [p for p in model.parameters() if p.requires_grad]) == {2}
