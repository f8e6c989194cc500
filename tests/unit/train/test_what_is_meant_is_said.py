"""The subject of a mean or an update follows from the call, not from the object that was passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy, Worker
from tests.support.scene import Scene, squares


@dataclass(frozen=True, kw_only=True)
class Early(Strategy):
    """Agrees in the backward pass, by the call that overlaps."""

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of_gradient().wait()

    def step(self, worker: Worker) -> None:
        worker.update()


@dataclass(frozen=True, kw_only=True)
class Wrong(Early):
    """Asks there for the mean of a copy."""

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of(worker.gradient * 1.0).wait()


@dataclass(frozen=True, kw_only=True)
class Late(Strategy):
    """Agrees in the step, on a copy."""

    def step(self, worker: Worker) -> None:
        mean = worker.means.of(worker.gradient * 1.0, weight=worker.weight).wait()
        worker.update(mean)


def scene(strategy: Strategy) -> Scene:
    """Of parts of several sizes."""
    fields: Any = {"model": (700, 700, 700), "rate": 0.1, "heavy": 0.9, "steps": 3, "loss": squares}
    return Scene(strategy, 2, settings={"with_one_worker": "bypass"}, **fields)


def test_a_copy_of_the_gradient_has_the_same_mean() -> None:
    torch.testing.assert_close(scene(Early()).end(), scene(Late()).end(), rtol=0, atol=1e-7)


def test_another_mean_while_the_gradient_is_on_its_way_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"calls worker.means.of_gradient\(\) in it, before it forms other"):
        scene(Wrong()).run()
