"""Codecs, rules, noise and outer steps in ordinary loops: each computes its own formula, whatever the dtype is."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.aggregation import rules
from quorate.codecs import codecs
from tests.support.ordinary_loops import Cell, ended, small_net

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FOR_SMALL: dict[str, dict[str, Any]] = {
    "dgc": {"density": 0.3, "momentum": 0.5},
    "mask": {"density": 0.5},
    "random-k": {"density": 0.5},
    "threshold": {"at": 1.0},
    "top-k": {"density": 0.3},
}
"""Settings of codecs for tensors of a few numbers."""


def of_every_dtype(cell: Cell, *, alike: bool = False) -> list[list[float]]:
    """Trains the same net in each dtype and returns its losses; with `alike` all workers compute the same batches."""
    losses = []
    for number, dtype in enumerate(DTYPES):
        model = small_net().to(dtype)
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, name=f"{number}")
        own = list[float]()
        for step in range(5):
            generator = torch.Generator().manual_seed(1000 * step + (0 if alike else cell.world.rank))
            x = torch.randn(32, 4, generator=generator)
            optimizer.zero_grad()
            loss = (model(x.to(dtype)).float() - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            cell.step(optimizer)
            own.append(loss.item())
        optimizer.finish()
        losses.append(own)
    return losses


def assert_each_dtype_learns_alike(losses: list[list[float]]) -> None:
    """Fails where a net has learned another amount than that of float32."""
    of_float32 = losses[0]
    for dtype, own in zip(DTYPES, losses, strict=True):
        assert all(map(math.isfinite, own)), (dtype, own)
        assert abs(own[-1] - of_float32[-1]) < 0.2 * of_float32[0], (dtype, own, of_float32)


@pytest.mark.parametrize("name", codecs.names())
def test_a_codec_trains_models_of_every_dtype(name: str) -> None:
    settings = {"compress": name, "dense_below": 0, **FOR_SMALL.get(name, {})}
    for losses in ended(of_every_dtype, "all-reduce", **settings).right():
        assert_each_dtype_learns_alike(losses)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {"compress": "demo", "reduce": "geometric-median:f=0"}),
        ("all-reduce", {"compress": "qsgd", "reduce": "two-phase"}),
        ("eager-majority", {"compress": "top-k", "density": 0.3}),
        ("eager-majority", {"compress": "random-k", "density": 0.5}),
        ("diloco", {"compress": "dgc:momentum=0.0,density=0.3", "sync_every": 2}),
        ("parameter-server", {"compress": "one-bit"}),
        ("choco-sgd", {"compress": "top-k", "density": 0.3}),
    ],
    ids=str,
)
def test_other_ways_to_exchange_codes_train_models_of_every_dtype(strategy: str, settings: dict[str, Any]) -> None:
    for losses in ended(of_every_dtype, strategy, dense_below=0, **settings).right():
        assert_each_dtype_learns_alike(losses)


@pytest.mark.parametrize("name", rules.names())
def test_a_rule_trains_models_of_every_dtype(name: str) -> None:
    loop = partial(of_every_dtype, alike=name == "majority")
    for losses in ended(loop, "all-reduce", 5, reduce=name).right():
        assert_each_dtype_learns_alike(losses)


def on_clients(cell: Cell, *, with_buffers: bool) -> None:
    """A training on clients; the net has statistics of BatchNorm, or no buffers."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), *[torch.nn.BatchNorm1d(4)] * with_buffers, torch.nn.Linear(4, 1))
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model, weigh="equal", sampled=0.9)
    loader = quorate.shard(TensorDataset(torch.randn(48, 4)), 4, partition="iid", clients=4)
    for _ in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            cell.step(optimizer)
    optimizer.finish()


@pytest.mark.parametrize("strategy", ["fed-avg", "fed-prox", "fed-opt"])
@pytest.mark.parametrize("settings", [{"clip": 1.0, "noise": 1.0}, {"secure": True}], ids=["noise", "secure"])
def test_hidden_parameters_do_not_go_with_buffers_that_are_exchanged(strategy: str, settings: dict[str, Any]) -> None:
    sentence = 'protect the parameters, and not the buffers of the model .* set buffers="none"'
    ended(partial(on_clients, with_buffers=True), strategy, **settings).refused(sentence)
    ended(partial(on_clients, with_buffers=True), strategy, buffers="none", **settings).right()
    ended(partial(on_clients, with_buffers=False), strategy, **settings).right()
    ended(partial(on_clients, with_buffers=True), strategy).right()
