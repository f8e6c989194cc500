"""Early stopping, the best checkpoint and `ReduceLROnPlateau` by an agreed metric, under every family of strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT
from tests.support.joined import joined
from tests.support.ordinary_loops import every_family

RECIPE = blocks(ROOT / "docs/howto/agreed-metrics.md", "python")[0]
LOSSES = [4.0, 3.0, 3.5, 3.6, 3.7, 9.9]
"""Of the epochs on the mean of all workers: the second is the best, and the fifth is the last."""


@every_family()
def test_all_workers_decide_alike(strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_RUN", str(tmp_path))

    def live(world: quorate.World) -> dict[str, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy)
        data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 96).view(24, 4), torch.ones(24, 1))
        loader = quorate.loader(data, batch_size=4, share="static")
        kept: list[list[float]] = []
        rates: list[float] = []

        def loss_of(model: torch.nn.Linear, batch: Any) -> torch.Tensor:
            if torch.is_grad_enabled():
                return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
            kept[loader.epoch // 2 :] = [model.weight.flatten().tolist()]
            rates[loader.epoch // 2 :] = [optimizer.param_groups[0]["lr"]]
            return torch.tensor(LOSSES[loader.epoch // 2] + (world.rank - 1) / 2)

        names: dict[str, Any] = {"torch": torch, "quorate": quorate, "world": world, "model": model}
        names |= {"optimizer": optimizer, "loader": loader, "loss_of": loss_of}
        exec(RECIPE, names)
        outcome = {"rates": rates, "waited": names["waited"], "lowest": names["lowest"], "evaluated": kept}
        return outcome | {"best": names["weights"][0].flatten().tolist()}

    results = VirtualWorld(3).run(joined(live))
    assert all(result == results[0] for result in results)
    first = results[0]
    assert (first["waited"], first["lowest"], len(first["evaluated"])) == (3, 3.0, 5)
    assert first["rates"] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01])
    assert first["best"] == pytest.approx(first["evaluated"][1], rel=1e-6)
    assert first["best"] != pytest.approx(first["evaluated"][2], rel=1e-3)
