"""Of which tensors decoupled DiLoCo takes radial means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.replica.replica import tables_in
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


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

    @joined
    def live(world: quorate.World) -> Tensor:
        own = model()
        plain = torch.optim.SGD(own.parameters(), lr=0.1)
        choice: dict[str, Any] = {"sync_every": 2, "wait_for": "all", "averaging": averaging}
        optimizer: Any = quorate.distribute(plain, own, "decoupled-diloco", **choice)
        for step in range(8):
            optimizer.zero_grad()
            (own(torch.tensor([world.rank, (world.rank + step) % 5])) - world.rank).square().mean().backward()
            world.wire.clock.sleep(0.01)
            optimizer.step()
        optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for p in own.parameters()])

    ends = VirtualWorld(3, seed=0).run(live)
    assert all(torch.equal(end, ends[0]) for end in ends)
    return ends[0]


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
