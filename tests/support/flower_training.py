"""A training on Flower's simulation: `python flower_training.py STRATEGY` prints the model at the end, as JSON."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "flower" / "federated_strategy.py"))
NAME = sys.argv[1] if len(sys.argv) > 1 else "fed-avg"
CLIENTS, ROUNDS, RATE = 3, 4, 0.05
SETTINGS: dict[str, Any] = {"sampled": 1.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(10 + client)
    x = torch.randn(8 + 4 * client, 4, generator=draw)
    return x, x.sum(1, keepdim=True) + client


def trained(model: nn.Module, client: int, mu: float, correction: dict[str, torch.Tensor] | None) -> dict[str, Any]:
    """Three steps on all of a client's data; under scaffold also the mean gradient."""
    x, y = data(client)
    begun = [p.detach().clone() for p in model.parameters()]
    seen = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(3):
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        with torch.no_grad():
            for (name, p), there in zip(model.named_parameters(), begun, strict=True):
                assert p.grad is not None
                seen[name] += p.grad / 3
                p -= RATE * (p.grad + mu * (p - there) + (0 if correction is None else correction[name]))
    return seen


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = message.content["config"]
    correction, kept = None, None
    if "control" in message.content:
        common = message.content["control"].to_torch_state_dict()
        kept = (
            context.state["own"].to_torch_state_dict()
            if "own" in context.state
            else {name: torch.zeros_like(x) for name, x in common.items()}
        )
        correction = {name: x - kept[name] for name, x in common.items()}
    seen = trained(model, client, float(config.get("proximal-mu", 0.0)), correction)
    metrics = MetricRecord({"num-examples": len(data(client)[0]), "epochs": float(config["local-epochs"])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    if kept is not None:
        content["control-change"] = ArrayRecord({name: x - kept[name] for name, x in seen.items()})
        context.state["own"] = ArrayRecord(seen)
    return Message(content=content, reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    more = {"fed-prox": {"mu": 0.3}, "fed-opt": {"server": "adam", "server_rate": 0.1}}.get(NAME, {})
    strategy = EXAMPLE["strategy"](NAME, fraction_evaluate=0.0, **SETTINGS, **more)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()), num_rounds=ROUNDS)
    found = {name: x.tolist() for name, x in result.arrays.to_torch_state_dict().items()}
    print("result", json.dumps(found), flush=True)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
