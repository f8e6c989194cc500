"""peft as it is: adapters of a small transformer are trained, sent, saved and merged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from tests.support.scene import Scene, Trainer, net

peft: Any = pytest.importorskip("peft", reason="peft is not installed; make test-interop installs it")


def model() -> nn.Module:
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["0", "2"])
    adapted: nn.Module = peft.get_peft_model(net(6, 8, 3, seed=0), config)
    return adapted


def loss(trainer: Trainer) -> torch.Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * trainer.step + trainer.rank))
    return (trainer.model(x) - x[:, :3]).square().mean()


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "fed-avg"])
def test_adapters_train_and_merge(name: str, tmp_path: Any) -> None:
    def last(trainer: Trainer) -> None:
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
        with trainer.world.evaluate(), torch.no_grad():
            before = trainer.model(x)
        quorate.save(tmp_path / "adapters.safetensors", trained_only=True) if name == "all-reduce" else None
        trainer.optimizer.finish()
        with torch.no_grad():
            trainer.seen.append((before - trainer.model.merge_and_unload()(x)).abs().max())

    settings = {"sync_every": 4} if name == "diloco" else {}
    make = lambda ps: torch.optim.Adam([p for p in ps if p.requires_grad], lr=0.01)  # noqa: E731
    trainers = Scene(name, 2, model=model, make=make, loss=loss, steps=8, last=last, settings=settings).run()
    assert torch.equal(trainers[0].parameters, trainers[1].parameters)
    assert float(trainers[0].seen[0]) < 1e-5
