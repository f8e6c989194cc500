"""Federated strategies in Flower's simulation: the numbers of their algorithms, written out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.launch.virtual.run import run_script
from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT

PYTHON = ROOT / ".venv" / "flower" / "bin" / "python"
"""Of an environment with Flower, which `make test-launchers` makes."""
SCRIPT = ROOT / "tests" / "support" / "flower_training.py"
CLIENTS, ROUNDS, RATE = 3, 4, 0.05

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs Flower in .venv/flower: make test-launchers installs it"),
]


def gradient(w: Tensor, client: int) -> Tensor:
    """Of the loss on a client's data, at a linear model's weights and bias."""
    draw = torch.Generator().manual_seed(10 + client)
    x = torch.randn(8 + 4 * client, 4, generator=draw)
    residual = x @ w[:4] + w[4] - x.sum(1) - client
    return torch.cat([2 * x.T @ residual / len(x), 2 * residual.mean().reshape(1)])


def expected(name: str) -> Tensor:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 1)
    x = torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])
    m, v, c = torch.zeros(5), torch.full((5,), 1e-6), torch.zeros(5)
    own = [torch.zeros(5) for _ in range(CLIENTS)]
    for _ in range(ROUNDS):
        ways, changes = [], []
        for client in range(CLIENTS):
            y, seen = x.clone(), torch.zeros(5)
            for _ in range(3):
                g = gradient(y, client)
                seen += g / 3
                y = y - RATE * (g + (0.3 * (y - x) if name == "fed-prox" else 0) + c - own[client])
            ways.append(y - x)
            changes.append(seen - own[client] if name == "scaffold" else torch.zeros(5))
            own[client] = own[client] + changes[-1]
        sizes = [1.0 if name == "scaffold" else 8.0 + 4 * client for client in range(CLIENTS)]
        delta = sum(way * size for way, size in zip(ways, sizes, strict=True)) / sum(sizes)
        c = c + sum(changes) / CLIENTS
        if name == "fed-opt":
            m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
            delta = 0.1 * m / (v.sqrt() + 1e-3)
        x = x + delta
    return x


@pytest.mark.timeout(280)
@pytest.mark.parametrize("name", ["fed-prox", "fed-opt", "scaffold"])
def test_strategies_make_their_rounds_of_what_nodes_send_back(name: str, tmp_path: Path) -> None:
    environment: dict[str, Any] = {"PYTHONPATH": f"{ROOT / 'src'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["FLWR_TELEMETRY_ENABLED"] = "0"
    words = [str(PYTHON), str(SCRIPT), name]
    ended = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=260,
        env=environment,
    )
    told = [line for line in ended.stdout.splitlines() if line.startswith("result ")]
    assert told, ended.stderr[-4000:]
    model = json.loads(told[0].removeprefix("result "))
    found = torch.tensor([*model["weight"][0], *model["bias"]])
    torch.testing.assert_close(found, expected(name), rtol=1e-4, atol=1e-5)


CLIENTS_OF_PAGE = 6
COMMON = """
import torch
class Net(torch.nn.Linear):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(4, 1)
def partition(number, count):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + number)
def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
"""
"""Each client has one batch, so that the order of its examples does not matter."""


@pytest.mark.timeout(500)
def test_the_scripts_before_and_after_of_the_migration_page_train_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "howto" / "migrate-flower.md"
    (before,), (after,) = blocks(page, "py"), blocks(page, "python")
    begin = "from flwr.simulation import run_simulation\n"
    end = f"\nrun_simulation(server, client, num_supernodes={CLIENTS_OF_PAGE})\n"
    all_drawn = before.replace("fraction_train=0.5", "fraction_train=1.0")
    (tmp_path / "before.py").write_text(begin + COMMON + all_drawn + end)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    ended = subprocess.run(
        [str(PYTHON), "before.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, env=environment
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert (ended.stdout + ended.stderr).count("aggregate_train: Received 6 results and 0 failures") == 10
    theirs = torch.load(tmp_path / "model.pt", weights_only=True)
    (tmp_path / "model.pt").unlink()

    parts = f"[partition(number, {CLIENTS_OF_PAGE}) for number in range({CLIENTS_OF_PAGE})]"
    dataset = f"dataset = torch.utils.data.ConcatDataset({parts})\n"
    changes = {"sampled=0.5": "sampled=1.0"}
    changes['partition="iid"'] = f'partition="group", labels=[i // 8 for i in range({8 * CLIENTS_OF_PAGE})]'
    for old, new in changes.items():
        assert after.count(old) == 1
        after = after.replace(old, new)
    (tmp_path / "after.py").write_text(COMMON + dataset + after)
    monkeypatch.chdir(tmp_path)
    assert run_script(tmp_path / "after.py", size=CLIENTS_OF_PAGE, run_dir=tmp_path / "logs") == 0
    ours = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(ours) == list(theirs)
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name], x, rtol=1e-5, atol=1e-5)
