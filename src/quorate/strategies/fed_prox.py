"""FedProx: federated averaging that holds clients near the global model, and accepts partial work.

Idea: As `fed-avg`, but each client minimizes its own loss plus `mu` / 2 times the squared distance from the global
model. So clients with different data do not drift apart, however much each of them computes. A client that ends early
sends its update so far.

Cost: As `fed-avg`, and two passes over the parameters in every local step.

When it loses: Where clients' data is alike, or they take few steps: the penalty holds back progress. `mu` has to be
tuned (published: 0.001, 0.01, 0.1 or 1, depending on the data set); if it is too large, it slows everything down.

Honesty:
- worker death: goes on; the clients it simulated are lost, and the mean is over the others
- pause: goes on; all wait at the end of the round until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it at the end of every round
- corrupt gradient: untested; it corrupts one client's update, and through it the round
- resize: goes on; from the global model, and the round begins again
- resume: goes on; in the middle of a round, each client where it was

Paper: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Algorithm 2. Clients are drawn uniformly and weighted by the work they did, as in its experiments.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.client_sums import handed_in, masked_mean_delta, mean_delta
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings, make_step


@register("fed-prox")
@dataclass(frozen=True, kw_only=True)
class FedProx(FederatedSettings):
    """Federated averaging that keeps clients close to the global model."""

    _sparse_gradients = "refused"  # something dense is added to each gradient

    mu: float = 0.01
    """Strength of the proximal term, which keeps a client near the global model; 0 is `fed-avg`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mu >= 0:
            raise ConfigurationError(f"mu is {self.mu}; it must be a number (at least 0)")

    def start(self, worker: Worker) -> ClientWork:
        return ClientWork(point=worker.parameters)

    def step(self, worker: Worker) -> None:
        work: ClientWork = worker.state
        work.begin(worker)
        gradient = worker.gradient
        gradient.add_(worker.parameters - work.point, alpha=self.mu)  # of h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2
        make_step(worker, self, gradient)

    def contribution(self, worker: Worker) -> tuple[Flat, float] | None:
        return handed_in(worker, self)

    def apply(self, worker: Worker, result: Mean) -> None:
        if (delta := mean_delta(worker, self, result)) is not None:
            self._go(worker, delta)

    def pause(self, worker: Worker) -> None:
        if self.secure and (delta := masked_mean_delta(worker, self)) is not None:
            self._go(worker, delta)

    def _go(self, worker: Worker, delta: Flat) -> None:
        work: ClientWork = worker.state
        work.go_on_at(worker, work.point + delta)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)
