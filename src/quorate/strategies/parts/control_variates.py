"""Control variates of clients: the mean gradient of each one's newest round, and the mean of these over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.client_work import ClientWork, FederatedSettings
from quorate.strategies.parts.several_vectors import of_worker, summed


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
