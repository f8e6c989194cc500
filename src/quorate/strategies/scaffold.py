"""SCAFFOLD: federated averaging that corrects each client's gradients for how its data differ from all data.

Idea: Each client keeps the mean gradient of its newest round (its control variate), and all workers keep the mean of
the control variates of all clients. In every local step a client adds the common control variate to its gradient and
subtracts its own. So it moves in the direction of the mean of all clients. Clients have equal weights, as their control
variates do.

Cost: Twice the traffic of `fed-avg`: the change of the control variates is sent with the updates. On the worker that
simulates it, one vector as long as the parameters for each client that was ever drawn; four more besides the model.

When it loses: Where few of many clients are drawn in a round: a control variate is as stale as the client's newest
round. Where batches are small and gradients noisy: it is the mean of a few noisy gradients. Where clients' data is
alike: it is `fed-avg` at twice the traffic.

Honesty:
- worker death: goes on; the clients it simulated are lost, and the common control variate keeps what they had sent
- pause: goes on; all wait at the end of the round until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it at the end of every round
- corrupt gradient: untested; it corrupts one client's update, the round, and the control variates
- resize: goes on; each client's control variate moves with it to the worker that simulates it, and the round begins
  again
- resume: goes on; in the middle of a round, each client where it was

Paper: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated
learning", ICML 2020, Algorithm 1. Control variates are those of option II: for SGD (x - y) / (K eta) - c + c_i is the
mean of the client's gradients. That mean is stored here, so it holds for any optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.client_sums import apart, of_worker, summed, together
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings, make_step


@dataclass(kw_only=True)
class Controlled(ClientWork):
    """The work of clients, and their control variates."""

    common: Flat = kept("same")
    """c: the mean of all clients' control variates, 0 of those that were never drawn."""
    clients: float = kept("same")
    """N."""
    own: dict[int, Flat] = kept("clients", default_factory=dict)
    """c_i, by client, of those that this worker has played."""
    seen: Flat | None = kept("sum", default=None)
    """The sum of the gradients that the running client has seen."""
    changed: Flat | None = kept("sum", default=None)
    """The sum of c_i+ - c_i over the clients that have ended in this round."""

    def corrected(self, gradient: Flat) -> Flat:
        """g - c_i + c, of the client whose step this is."""
        if self.turn is not None:
            self.clients = float(self.turn.clients)
        self.seen = gradient.clone() if self.seen is None else self.seen.add_(gradient)
        (client,) = self.running
        corrected = gradient.add_(self.common)
        return corrected.add_(self.own[client], alpha=-1.0) if client in self.own else corrected

    def end_turn(self, worker: Worker, strategy: FederatedSettings, *, is_early: bool = False) -> bool:
        """End a turn as `ClientWork`; the client's control variate becomes the mean of its gradients."""
        running, steps, seen = list(self.running), self.steps, self.seen
        self.seen = None
        counts = super().end_turn(worker, strategy, is_early=is_early)
        if counts and seen is not None:
            (client,) = running
            new = seen / steps
            change = new - self.own[client] if client in self.own else new
            self.own[client] = new
            self.changed = change.clone() if self.changed is None else self.changed.add_(change)
        return counts

    @property
    def change(self) -> Flat:
        """The delta as it travels; zeros if no client has ended."""
        return self.common * 0.0 if self.changed is None else self.changed

    def numbers_for(self, worker: Worker, count: float) -> list[float]:
        """Return the numbers that travel with a contribution of `count` clients, whose weight that is."""
        return [self.clients, *of_worker(worker, count)]

    def heard(self, numbers: Sequence[float]) -> tuple[float, float]:
        """Return N, and |S|, the number of clients that have contributed."""
        self.clients, *shares = numbers
        return self.clients, summed(shares)

    def go_on_at(self, worker: Worker, point: Flat) -> None:
        """Go on as `ClientWork`; control variates stay."""
        super().go_on_at(worker, point)
        self.seen = self.changed = None


@register("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(FederatedSettings):
    """Federated averaging that corrects each client's gradients for how its data differ from the rest."""

    _sparse_gradients = "refused"  # something dense is added to each gradient

    weigh: Literal["examples", "equal"] = "equal"
    """Weight of a client, as in `fed-avg`; only "equal" is supported."""
    server_rate: float = 1.0
    """eta_g: factor of the mean update of the global model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weigh != "equal":
            raise ConfigurationError('weigh is "examples"; scaffold needs "equal", as control variates count equally')
        if self.noise > 0 or self.secure:
            raise ConfigurationError("noise and secure hide deltas only, and scaffold sends control variates as well")
        if not self.server_rate > 0:
            raise ConfigurationError(f"server_rate is {self.server_rate}; it must be a number above 0")

    def start(self, worker: Worker) -> Controlled:
        x = worker.parameters
        return Controlled(point=x, common=x * 0.0, clients=float(worker.size))

    def step(self, worker: Worker) -> None:
        work: Controlled = worker.state
        work.begin(worker)
        make_step(worker, self, work.corrected(worker.gradient))  # line 10: y <- y - eta_l (g - c_i + c)

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        work: Controlled = worker.state
        work.end_turn(worker, self)
        delta, count = work.mean_delta() or (work.common, 0.0)
        return together([delta, work.change / max(1.0, count)], work.numbers_for(worker, count)), count

    def apply(self, worker: Worker, result: Mean) -> None:
        work: Controlled = worker.state
        (delta, change), numbers = apart(result.mean, worker.parameters.layout, 2)
        clients, handed_in = work.heard(numbers)
        work.common = work.common + change * (handed_in / clients)  # line 17: c <- c + |S| / N mean(c_i+ - c_i)
        work.go_on_at(worker, work.point + delta * self.server_rate)  # line 16: x <- x + eta_g mean(y_i - x)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)
