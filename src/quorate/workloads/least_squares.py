"""The smallest workload with an exact answer: y = X·w + noise, fitted by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from quorate.core.errors import ConfigurationError
from quorate.core.workload import Imbalance
from quorate.workloads.points import Points, PointWorkload


@dataclass(frozen=True, kw_only=True)
class LeastSquares(PointWorkload):
    """Linear regression on random points, with a known exact optimum; runs in milliseconds.

    Inputs and true weights are standard normal, so the Hessian XᵀX/n is near the identity and plain gradient descent
    with a step below about 1 reaches the optimum. The test set has a quarter as many points from the same distribution.

    Raises `ConfigurationError` for fewer points than features (the optimum would not be unique), no feature, or
    negative noise.
    """

    name: ClassVar[str] = "least-squares"
    batch_size: ClassVar[int] = 32
    learning_rate: ClassVar[float] = 0.1
    epochs: ClassVar[int] = 10
    headline: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False
    baseline: ClassVar[str] = "12, a prediction of 0"
    cost: ClassVar[str] = "below 1 ms (16 parameters)"
    imbalance: ClassVar[Imbalance] = "injected"

    examples: int = 512
    """Number of training points, n."""
    features: int = 16
    """Number of inputs per point, d."""
    noise: float = 0.1
    """Standard deviation of the noise in the targets."""
    seed: int = 0
    """Seed of the data; the model has its own seed."""

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ConfigurationError(f"least-squares: features must be at least 1, not {self.features}")
        if self.examples < self.features:
            raise ConfigurationError(
                f"least-squares: examples must be at least features ({self.features}), not {self.examples}"
            )
        if self.noise < 0:
            raise ConfigurationError(f"least-squares: noise must not be negative, not {self.noise}")

    @cached_property
    def _points(self) -> Points:
        """Training points, then test points."""
        random = torch.Generator().manual_seed(self.seed)
        number = self.examples + max(1, self.examples // 4)
        weights = torch.randn(self.features, generator=random)
        inputs = torch.randn(number, self.features, generator=random)
        return Points(inputs, inputs @ weights + self.noise * torch.randn(number, generator=random))

    def dataset(self, *, train: bool) -> Dataset[tuple[Tensor, ...]]:
        """Pairs of an input (features,) and a target ()."""
        rows = slice(0, self.examples) if train else slice(self.examples, None)
        return TensorDataset(self._points.inputs[rows], self._points.targets[rows])

    def model(self, seed: int = 0) -> nn.Module:
        """A linear map without bias, its weights standard normal."""
        linear = nn.Linear(self.features, 1, bias=False, device="meta").to_empty(device="cpu")
        nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(seed))
        return linear

    def loss(self, model: nn.Module, batch: Points) -> Tensor:
        """Half the mean squared error, whose gradient is Xᵀ(X·w − y)/n."""
        return self._residuals(model, batch).square().mean() / 2

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Points) -> dict[str, float]:
        """The sum of squared errors ("squared_error")."""
        return {
            "squared_error": float(self._residuals(model, batch).square().sum()),
            "examples": float(len(batch.targets)),
        }

    def optimum(self) -> Tensor:
        """The weights with the least training loss, (features,) in float64: the solution of XᵀX·w = Xᵀy."""
        inputs = self._points.inputs[: self.examples].double()
        targets = self._points.targets[: self.examples].double()
        solution: Tensor = torch.linalg.lstsq(inputs, targets.unsqueeze(1)).solution
        return solution.squeeze(1)

    def describe(self) -> list[str]:
        points = f"{self.examples} training and {len(self._points.targets) - self.examples} test points"
        return [
            f"least-squares: {points} of {self.features} features, noise {self.noise:g}, seed {self.seed}",
            f"least possible training loss {self.least_loss():.6g}",
        ]

    def least_loss(self) -> float:
        """The training loss at `optimum`, in float64."""
        inputs = self._points.inputs[: self.examples].double()
        targets = self._points.targets[: self.examples].double()
        return float((inputs @ self.optimum() - targets).square().mean() / 2)

    @staticmethod
    def _residuals(model: nn.Module, batch: Points) -> Tensor:
        outputs: Tensor = model(batch.inputs)
        return outputs.squeeze(1) - batch.targets
