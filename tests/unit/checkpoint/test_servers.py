"""Parameters on servers in checkpoints: numbers and states whole, whoever kept them, for any number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.scene import Scene, Trainer, net, squares

MODES: list[dict[str, Any]] = [
    {},
    {"mode": "bounded", "in_order": True},
    {"mode": "async", "in_order": True},
    {"compress": "top-k", "density": 0.3, "dense_below": 0},
    {"momentum": "worker", "mode": "async", "in_order": True},
]


def numbers(trainer: Trainer) -> list[Tensor]:
    """Parameters, and what the optimizer keeps."""
    kept = [x for p in trainer.model.parameters() for x in trainer.optimizer.state[p].values() if x is not None]
    return [x.detach().clone() for x in (*trainer.model.parameters(), *kept)]


def scene(size: int = 3, **settings: Any) -> Scene:
    make: Any = partial(torch.optim.AdamW, lr=0.05)
    if settings.get("momentum") == "worker":
        make = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    pause = lambda rank, step: 0.01 * (1 + rank)  # noqa: E731
    chosen: dict[str, Any] = {"make": make, "steps": 9, "loss": squares, "pause": pause, "settings": settings}
    return Scene("parameter-server", size, model=lambda: net(3, 4, 1).double(), **chosen)


@pytest.mark.parametrize("settings", MODES)
def test_what_was_cut_off_goes_on_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole, again = scene(**settings).resumed(
        tmp_path, 5, 7, lambda trainer: (trainer.began, numbers(trainer)), alike=True
    )
    for (_, uninterrupted), (began, resumed) in zip(whole, again, strict=True):
        assert began == 5
        assert all(torch.equal(x, y) for x, y in zip(uninterrupted, resumed, strict=True))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_another_number_of_workers_has_what_the_servers_had(tmp_path: Path, size: int) -> None:
    kept, *_ = scene().but(root=tmp_path, steps=5, saves=[5]).run(numbers)
    for trainer in scene(size).but(root=tmp_path, steps=5, loads=True).run():
        assert trainer.began == 5
        for x, y in zip(numbers(trainer), kept, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-14, atol=0.0)
