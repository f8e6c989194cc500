"""FedOpt: federated averaging in which a server-side adaptive optimizer uses the mean update as its gradient.

Idea: Clients train as in `fed-avg`. Adagrad, Yogi or Adam (`server`) takes their mean update as a gradient, and every
worker runs this optimizer identically. Numbers that change little, such as those of rare words, move as far as others.

Cost: As `fed-avg`, and two more copies of the parameters for the optimizer's moments.

When it loses: Where all coordinates have a similar scale, as in convolutions: plain averaging is as good and has
nothing to tune. The server's learning rate does not scale with the size of the updates, and has to be tuned. If it is
far above the usual size of an update, the first rounds overshoot.

Honesty:
- worker death: goes on; the clients it simulated are lost, and the mean is over the others
- pause: goes on; all wait at the end of the round until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it at the end of every round
- corrupt gradient: untested; it corrupts one client's update, the round, and the optimizer's moments
- resize: goes on; from the global model with the optimizer's moments, and the round begins again
- resume: goes on; in the middle of a round, each client where it was

Paper: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive federated optimization", ICLR 2021,
Algorithm 2 (beta1 0.9, beta2 0.99, tau 0.001, no bias correction; v begins at tau squared).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.client_sums import handed_in, masked_mean_delta, mean_delta
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings, make_step
from quorate.strategies.parts.edits import WithPoint


@dataclass(kw_only=True)
class Served(ClientWork, WithPoint):
    """The work of clients, and the moments of the server's optimizer."""

    m: Flat = kept("same")
    v: Flat = kept("same")

    def forget_steps(self) -> None:
        self.running = {}


@register("fed-opt")
@dataclass(frozen=True, kw_only=True)
class FedOpt(FederatedSettings):
    """Federated averaging whose mean update is the gradient for Adagrad, Yogi or Adam."""

    server: Literal["adagrad", "adam", "yogi"] = "yogi"
    """Optimizer of the global model."""
    server_rate: float = 0.03
    """eta: learning rate of the global optimizer."""
    beta1: float = 0.9
    """Momentum of the global optimizer."""
    beta2: float = 0.99
    """Decay of the second moments of Yogi and Adam."""
    tau: float = 1e-3
    """Degree of adaptivity: a coordinate whose updates are far below tau moves less than others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.server_rate > 0 and self.tau > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            settings = f"server_rate={self.server_rate}, beta1={self.beta1}, beta2={self.beta2}, tau={self.tau}"
            raise ConfigurationError(
                f"{settings}: server_rate and tau must be above 0, and the betas at least 0 and below 1"
            )

    def start(self, worker: Worker) -> Served:
        x = worker.parameters
        return Served(point=x, m=x * 0.0, v=x.map(lambda part: torch.full_like(part, self.tau**2)))

    def step(self, worker: Worker) -> None:
        worker.state.begin(worker)
        make_step(worker, self)

    def contribution(self, worker: Worker) -> tuple[Flat, float] | None:
        return handed_in(worker, self)

    def apply(self, worker: Worker, result: Mean) -> None:
        if (delta := mean_delta(worker, self, result)) is not None:
            self._go(worker, delta)

    def pause(self, worker: Worker) -> None:
        if self.secure and (delta := masked_mean_delta(worker, self)) is not None:
            self._go(worker, delta)

    def _go(self, worker: Worker, delta: Flat) -> None:
        work: Served = worker.state

        def second(v: Tensor, d: Tensor) -> Tensor:
            return moved_moments(self.server, v, d, self.beta2)

        work.m = work.m * self.beta1 + delta * (1 - self.beta1)
        work.v = work.v.map(second, delta)
        update = work.m.map(lambda m, v: self.server_rate * m / (v.sqrt() + self.tau), work.v)
        work.go_on_at(worker, work.point + update)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)


def moved_moments(kind: str, v: Tensor, delta: Tensor, beta2: float) -> Tensor:
    """v after the mean delta (Reddi et al. 2021, Algorithm 2), element by element; a new tensor.

    adagrad  v + delta^2
    yogi     v - (1 - beta2) delta^2 sign(v - delta^2)
    adam     beta2 v + (1 - beta2) delta^2
    """
    square = delta.abs().square() if delta.is_complex() else delta.square()
    if kind == "adagrad":
        return v + square
    if kind == "yogi":
        return v - (1 - beta2) * square * (v - square).sgn()
    return beta2 * v + (1 - beta2) * square
