"""Usual recipes for large batches work with `distribute`: workers make the steps of one process."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE, BATCH, STEPS = 4, 6, 5
smooth = nn.CrossEntropyLoss(label_smoothing=0.1)


class Net(nn.Module):
    """Two layers, of which the first may be calculated a second time."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.recomputes = nn.Linear(5, 8), nn.Linear(8, 3), recomputes

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(self.first, x, use_reentrant=False) if self.recomputes else self.first(x)
        scores: Tensor = self.last(torch.tanh(inner))
        return scores


def data(step: int, rank: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, 5, generator=draw), torch.randint(0, 3, (BATCH,), generator=draw)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(model(x), y)
    return loss


def smoothed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = smooth(model(x), y)
    return loss


def in_bfloat16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return plain(model, x, y)


TRICKS: dict[str, tuple[Callable[[nn.Module, Tensor, Tensor], Tensor], dict[str, Any], float]] = {
    "label smoothing": (smoothed, {}, 1e-6),
    "bfloat16": (in_bfloat16, {}, 1e-2),
    "activation checkpointing": (plain, {"recomputes": True}, 1e-6),
    "clipping": (plain, {"clip": 0.05}, 1e-6),
    "accumulation": (plain, {"parts": 3}, 1e-6),
    "all together": (smoothed, {"recomputes": True, "clip": 0.05, "parts": 2}, 1e-6),
}


def train(
    optimizer: Any, model: Net, ranks: list[int], loss_of: Any, clip: float | None = None, parts: int = 1
) -> list[Tensor]:
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (torch.cat(some) for some in zip(*(data(step, rank) for rank in ranks), strict=True))
        for part, (inputs, targets) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
            loss = loss_of(model, inputs, targets) / parts
            if part < parts - 1 and hasattr(optimizer, "accumulate"):
                with optimizer.accumulate():
                    loss.backward()
            else:
                loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", TRICKS)
def test_workers_make_the_steps_of_one_process(name: str) -> None:
    loss_of, how, far = TRICKS[name]
    recomputes, rest = how.get("recomputes", False), {key: x for key, x in how.items() if key != "recomputes"}

    def live(world: quorate.World) -> list[Tensor]:
        model = Net(recomputes=recomputes)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), model)
        return train(optimizer, model, [world.rank], loss_of, **rest)

    ends = VirtualWorld(SIZE).run(joined(live))
    model = Net(recomputes=False)
    alone = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    wanted = train(alone, model, list(range(SIZE)), loss_of, **{**rest, "parts": 1})
    begun = [p.detach() for p in Net(recomputes=False).parameters()]
    assert max(float((a - b).abs().max()) for a, b in zip(wanted, begun, strict=True)) > 3e-2, "it has moved"
    for end in ends:
        assert all(torch.allclose(a, b, rtol=0, atol=far) for a, b in zip(end, wanted, strict=True))


@pytest.mark.parametrize(
    ("reader", "is_scaled"), [("torch.amp.grad_scaler", True), ("lightning.fabric.plugins.precision.amp", False)]
)
def test_lightning_unscales_before_it_clips_and_a_scaler_lets_all_workers_step(reader: str, is_scaled: bool) -> None:
    def read(world: quorate.World) -> bool:
        model = nn.Linear(2, 1)
        optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), fused=True), model)
        read_there = FunctionType((lambda x: x._step_supports_amp_scaling).__code__, {"__name__": reader})
        supports: bool = read_there(optimizer)
        return supports

    assert VirtualWorld(2).run(joined(read)) == [is_scaled] * 2
