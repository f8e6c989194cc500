"""Tables whose gradients are sparse: each strategy trains them as one worker would on the joined batch, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.scene import Scene, Trainer, flat
from tests.support.tables import WIDTH, Bags, Words, drawn, loss_of, of_rank

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad

STEPS = 6
SIZES = (1, 2, 3)


def with_momentum(parameters: list[Any]) -> torch.optim.Optimizer:
    *tables, weight, bias = parameters
    return torch.optim.SGD([{"params": tables}, {"params": [weight, bias], "momentum": 0.9}], lr=0.05)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum of the rest": lambda parameters: with_momentum(list(parameters)),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}


def alone(make: Callable[[Any], torch.optim.Optimizer], size: int, seed: int = 0) -> Tensor:
    """Return the parameters of one worker that trains on the batches of all."""
    torch.manual_seed(seed)
    model = Bags()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss: Any = sum(loss_of(model, step, rank) for rank in range(size)) / size
        loss.backward()
        optimizer.step()
    return flat(model)


SYNCHRONOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "all-reduce": ("all-reduce", {}),
    "quorum of all": ("quorum", {"wait_for": "all"}),
    "quorum of all that arrived": (
        "quorum",
        {"wait_for": "all", "divide_by": "arrived"},
    ),
    "bounded staleness of none": ("bounded-staleness", {"wait_for": "all"}),
    "replicas": ("local-sgd", {"sync_every": 1}),
    "before local steps": ("post-local-sgd", {"after": 100}),
    "servers": ("parameter-server", {}),
    "one server": ("parameter-server", {"mode": "bounded", "max_staleness": 0, "servers": 1}),
}
"""Strategies under which each step is that of the joined batch."""


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_sparse_tables_are_trained_as_by_one_worker_on_the_joined_batch(name: str, size: int, kind: str) -> None:
    strategy, settings = SYNCHRONOUS[name]
    if name == "replicas" and kind != "sgd":
        return  # there each worker has a state of its own
    end = Scene(strategy, size, model=Bags, make=OPTIMIZERS[kind], steps=STEPS, loss=of_rank, settings=settings).end()
    torch.testing.assert_close(end, alone(OPTIMIZERS[kind], size), rtol=0, atol=1e-9)


def counted(trainer: Trainer) -> Tensor:
    """A loss whose gradient does not depend on the parameters: each row counts how often it was drawn."""
    return trainer.model.words(drawn(trainer.step, trainer.rank)).sum() / 8


LATE: dict[str, tuple[str, dict[str, Any]]] = {
    "quorum of one": ("quorum", {"wait_for": 1}),
    "majority": ("eager-majority", {}),
    "solo": ("eager-solo", {}),
    "overlapped": ("quorum", {"wait_for": 1, "overlap": True}),
    "bounded staleness": ("bounded-staleness", {}),
    "servers": ("parameter-server", {"mode": "async"}),
    "servers, own steps": ("downpour", {"push_every": 3, "pull_every": 2}),
}
"""Strategies under which gradients are late, and none is lost."""


@pytest.mark.parametrize("rests", [(), (2, 5)], ids=["", "with pauses"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LATE)
def test_late_rows_are_added_and_none_is_lost(name: str, size: int, rests: tuple[int, ...]) -> None:
    strategy, settings = LATE[name]
    pause = lambda rank, step: 0.02 * (1 + 3 * rank * (step % 3))  # noqa: E731
    fields: dict[str, Any] = {"model": Words, "make": OPTIMIZERS["sgd"], "steps": 8, "loss": counted, "pause": pause}
    end = Scene(strategy, size, rests=rests, settings=settings, **fields).end()
    torch.manual_seed(0)
    model = Words()
    for step in range(8):
        for rank in range(size):
            with torch.no_grad():
                rows = drawn(step, rank).reshape(-1)
                change = torch.full((len(rows), WIDTH), -0.05 / 8 / size, dtype=torch.float64)
                model.words.weight.index_add_(0, rows, change)
    torch.testing.assert_close(end, flat(model), rtol=0, atol=1e-6)
