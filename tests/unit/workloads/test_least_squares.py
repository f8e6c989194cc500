"""The smallest workload: its optimum is exact, and gradient descent finds it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.least_squares import LeastSquares
from quorate.workloads.points import Points


def everything(workload: LeastSquares) -> Points:
    data = workload.dataset(train=True)
    assert isinstance(data, TensorDataset)
    return workload.collate([data[index] for index in range(len(data))])


def test_gradient_descent_reaches_the_optimum() -> None:
    workload = LeastSquares(examples=2000, features=8, noise=0.3)
    model, batch = workload.model(), everything(workload)
    optimizer = workload.optimizer(model, learning_rate=0.5)
    for _ in range(200):
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    (weights,) = model.parameters()
    torch.testing.assert_close(weights.detach().squeeze(0).double(), workload.optimum(), atol=1e-5, rtol=1e-5)
    assert workload.loss(model, batch).item() == pytest.approx(workload.least_loss(), rel=1e-5)
    assert workload.least_loss() == pytest.approx(0.3**2 / 2, rel=0.1)


def test_the_gradient_vanishes_at_the_optimum_only() -> None:
    workload = LeastSquares(examples=40, features=3, noise=1.0, seed=5)
    model, batch = workload.model().double(), everything(workload)
    batch = Points(batch.inputs.double(), batch.targets.double())
    (weights,) = model.parameters()
    with torch.no_grad():
        weights.copy_(workload.optimum().unsqueeze(0))
    (gradient,) = torch.autograd.grad(workload.loss(model, batch), weights)
    assert gradient.abs().max() < 1e-12
    at_optimum = workload.loss(model, batch).item()
    with torch.no_grad():
        weights[0, 0] += 0.1
    assert workload.loss(model, batch).item() > at_optimum


def test_quality_is_summed_over_the_batch() -> None:
    workload = LeastSquares(examples=30, features=2)
    model, batch = workload.model(), everything(workload)
    whole = workload.quality(model, batch)
    assert whole["examples"] == 30
    assert whole["squared_error"] == pytest.approx(2 * 30 * workload.loss(model, batch).item(), rel=1e-5)


def test_test_points_are_others() -> None:
    workload = LeastSquares(examples=100, features=2)
    test = workload.dataset(train=False)
    assert isinstance(test, TensorDataset)
    assert len(test) == 25
    distances = torch.cdist(test.tensors[0], everything(workload).inputs)
    assert distances.min() > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": 0}, "features must be at least 1"),
        ({"examples": 3}, "at least features"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LeastSquares(**settings)
