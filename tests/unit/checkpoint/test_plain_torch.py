"""Model and optimizer of a checkpoint load in plain torch, with what the how-to shows and nothing of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import quorate
from quorate.checkpoint.folder import complete_ones
from quorate.launch.worker.world import World
from tests.support.kept_trainings import in_world


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.norm = torch.nn.BatchNorm1d(4)
        self.last = torch.nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.norm(self.first(x)))


def optimizer_state(path: Path) -> Any:
    """The reader of docs/howto/checkpoints.md."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        text = file.metadata()["quorate"]

    def plain(marked: dict[str, Any]) -> Any:
        ((mark, value),) = marked.items()
        if mark == "tensor":
            return tensors[value]
        return dict(value) if mark == "dict" else tuple(value)

    return json.loads(text, object_hook=plain)


def test_they_load_without_us(tmp_path: Path) -> None:
    def task(world: World) -> tuple[dict[str, torch.Tensor], Any]:
        torch.manual_seed(1)
        model = Tied().to(torch.bfloat16) if world.size == 3 else Tied()
        optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)), model)
        for _ in range(3):
            model(torch.randn(8, 4, dtype=model.first.weight.dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        quorate.save()
        return model.state_dict(), optimizer.state_dict()

    for size in (1, 2, 3):
        root = tmp_path / str(size)
        model_state, state = in_world(size, root, task)[0]
        (folder,) = complete_ones(root)
        model = Tied().to(model_state["first.weight"].dtype)
        model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        assert model.last.weight is model.first.weight
        assert torch.equal(model.first.weight, model_state["first.weight"])
        saved = optimizer_state(folder / "optimizer.safetensors")
        assert saved["param_groups"][0]["betas"] == state["param_groups"][0]["betas"]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        optimizer.load_state_dict(saved)
        for loaded, original in zip(optimizer.state_dict()["state"].values(), state["state"].values(), strict=True):
            assert all(torch.equal(loaded[key], value) for key, value in original.items())
        assert float(optimizer.param_groups[0]["lr"]) == float(state["param_groups"][0]["lr"])
