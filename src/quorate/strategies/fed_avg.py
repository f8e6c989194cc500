"""Federated averaging: clients train on their own data, and the global model moves by the mean of their updates.

Idea: In each round a share of all clients (`sampled`) is drawn. Each starts from the global model, trains for
`local_epochs` passes over its own examples with the user's optimizer, whose state starts empty, and sends its update.
The global model moves by the mean of these updates, weighted by the number of examples each client processed, so that a
client which ended early counts less. A worker simulates any number of clients one after the other.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every round, whatever the number of clients, not
overlapped; three copies of the parameters in memory. A round lasts as long as the worker with the most to compute.

When it loses: If clients' data differ much and they take many steps. Each client moves towards its own minimum, and the
mean of these updates does not lead to the common one (`fed-prox`, `scaffold`). Per example processed it is behind
synchronous steps; it saves communication rounds. BatchNorm's statistics are mixed over clients, which hurts in the same
case.

Honesty:
- worker death: goes on; the clients it simulated are lost, and the mean is over the others
- pause: goes on; all wait at the end of the round until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it at the end of every round
- corrupt gradient: untested; it corrupts one client's update, and through it the round
- resize: goes on; from the global model, and the round begins again
- resume: goes on; in the middle of a round, each client where it was

Paper: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1 (C = 0.1, E = 1 to 20, B = 10 to all).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.client_sums import handed_in, masked_mean_delta, mean_delta
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings, make_step


@register("fed-avg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(FederatedSettings):
    """Clients train on their own data, and the model becomes the mean of their models."""

    def start(self, worker: Worker) -> ClientWork:
        return ClientWork(point=worker.parameters)

    def step(self, worker: Worker) -> None:
        worker.state.begin(worker)
        make_step(worker, self)  # ClientUpdate(k, w): w <- w - eta grad

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
        work.go_on_at(worker, work.point + delta)  # w <- sum of n_k / n w_k, over the clients of the round

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)
