"""Tables whose gradients are sparse: each strategy trains them as one worker would on the joined batch, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.strategies import strategies
from tests.support.every_strategy import NAMES
from tests.support.scene import Scene, flat
from tests.support.tables import Bags, loss_of, of_rank

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad

STEPS = 6
BY_ROWS = [name for name in NAMES if strategies.get(name)().sparse_gradients == "rows"]
SIZES = (1, 2, 3)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
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


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BY_ROWS)
def test_sparse_tables_are_trained_as_by_one_worker_on_the_joined_batch(name: str, size: int, kind: str) -> None:
    end = Scene(name, size, model=Bags, make=OPTIMIZERS[kind], steps=STEPS, loss=of_rank).end()
    torch.testing.assert_close(end, alone(OPTIMIZERS[kind], size), rtol=0, atol=1e-6)
