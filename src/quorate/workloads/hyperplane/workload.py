"""The published regression of eager-SGD: one linear layer, every step the same work, so that imbalance is injected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.workloads.hyperplane import kept
from quorate.workloads.hyperplane.plane import Plane
from quorate.workloads.points import Points, PointWorkload

HELD_OUT_SHARE = 8
"""One held-out point for so many training points, and at least one."""


class PointDataset(Dataset[tuple[Tensor, Tensor]]):
    """Some rows of a plane, out of the mapped file (`points`) or drawn when they are asked for (None)."""

    def __init__(self, plane: Plane, rows: range, points: Points | None) -> None:
        self._plane = plane
        self._rows = rows
        self._points = points

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The input (features,) and the target () of one point."""
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> Points:
        """The whole batch in one copy; torch's DataLoader asks so."""
        rows = [self._rows[index] for index in indices]
        if self._points is None:
            inputs, targets = self._plane.rows(rows)
            return Points(torch.from_numpy(inputs), torch.from_numpy(targets))
        wanted = torch.tensor(rows)
        return Points(self._points.inputs.index_select(0, wanted), self._points.targets.index_select(0, wanted))


@dataclass(frozen=True, kw_only=True)
class Hyperplane(PointWorkload):
    """Linear regression with 8,193 parameters on 32,768 points; every batch is the same work.

    Model, number of points, the global batch of 2,048 (256 on each of 8 workers) and the 48 epochs are those of
    eager-SGD (Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective Operations",
    PPoPP 2020). How the points are distributed, and the noise, is our choice: the plane that fits the training points
    best has an expected squared error of noise² / (1 − features/points) on others, which is 4.66; the published final
    loss is about 4.7.

    The first use writes 1.2 GB to the user's cache folder, which all workers of the machine then map; `data` "counter"
    needs no file and gives the same numbers, at about ten times the cost of a batch.

    With a global batch of B from many more points plain SGD is stable below a learning rate of about
    1 / (1 + features/B): 0.03 for 256, 0.2 for 2,048.

    Raises `ConfigurationError` for settings out of range, and, when the data are asked for, where the file cannot be
    kept.
    """

    name: ClassVar[str] = "hyperplane"
    batch_size: ClassVar[int] = 256
    learning_rate: ClassVar[float] = 0.0125
    epochs: ClassVar[int] = 48
    headline: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    points: int = 32_768
    """Training points; an eighth as many more are held out."""
    features: int = 8192
    """Inputs per point."""
    noise: float = 1.87
    """Standard deviation of what is added to the targets."""
    seed: int = 0
    """Of the data; the model has its own."""
    data: Literal["file", "counter"] = "file"
    """Whether points come from a file that is made once, or are drawn anew whenever they are asked for."""

    def __post_init__(self) -> None:
        for setting, least in {"points": 1, "features": 1, "noise": 0, "seed": 0}.items():
            if not getattr(self, setting) >= least:
                raise ConfigurationError(
                    f"hyperplane: {setting} must be at least {least}, not {getattr(self, setting)}"
                )
        if self.seed >= 2**64:
            raise ConfigurationError(f"hyperplane: seed must be below 2**64, not {self.seed}")
        if self.data not in ("file", "counter"):
            raise ConfigurationError(f'hyperplane: data must be "file" or "counter", not "{self.data}"')

    @property
    def _rows(self) -> int:
        """Training points first, then those held out."""
        return self.points + max(1, self.points // HELD_OUT_SHARE)

    @cached_property
    def _plane(self) -> Plane:
        return Plane(features=self.features, noise=self.noise, seed=self.seed)

    @cached_property
    def _points(self) -> Points | None:
        if self.data == "counter":
            return None
        inputs, targets = kept.opened(self._plane, self._rows)
        return Points(torch.from_numpy(inputs), torch.from_numpy(targets))

    def dataset(self, *, train: bool) -> PointDataset:
        """Pairs of an input (features,) and a target ()."""
        rows = range(self.points) if train else range(self.points, self._rows)
        return PointDataset(self._plane, rows, self._points)

    def model(self, seed: int = 0) -> nn.Module:
        """A linear map with a bias, all uniform between ±1/√features."""
        linear = nn.Linear(self.features, 1, device="meta").to_empty(device="cpu")
        random = torch.Generator().manual_seed(seed)
        bound = self.features**-0.5
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=random)
        return linear

    def loss(self, model: nn.Module, batch: Points) -> Tensor:
        """The mean squared error."""
        return mse_loss(model(batch.inputs).squeeze(1), batch.targets)

    @torch.no_grad()
    def quality(self, model: nn.Module, batch: Points) -> dict[str, float]:
        """The sum of squared errors ("squared_error")."""
        errors = mse_loss(model(batch.inputs).squeeze(1), batch.targets, reduction="sum")
        return {"squared_error": float(errors), "examples": float(len(batch.targets))}

    def describe(self) -> list[str]:
        return [
            f"hyperplane: {self.points} training and {self._rows - self.points} held-out points of {self.features} "
            f"features, noise {self.noise:g}, seed {self.seed}, from {self.data}",
            f"{self.features + 1} parameters; least possible expected squared error {self.noise**2:.3g}",
        ]
