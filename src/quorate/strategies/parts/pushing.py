"""What a worker keeps between the servers and its own steps: what it has read, and what it has not pushed."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat


@dataclass(kw_only=True)
class Pushing:
    """The state of a strategy whose parameters lie on servers. Nothing of it outlives a rest."""

    shown: Flat = kept("drop")
    """The parameters as the worker has left them."""
    steps: int = kept("drop", default=0)
    unpushed: int = kept("drop", default=0)
    """Steps since the newest push."""
    sum: Flat | None = kept("drop", default=None)
    """Of the gradients since then."""
    edit: Flat | None = kept("drop", default=None)
    """What the script has written into the parameters since then."""
    reads: int = kept("drop", default=0)
    """How many are under way."""

    def take_in(self, worker: Worker) -> None:
        """A step: its gradient, and what was written into the parameters."""
        self._take_edits(worker)
        gradient = worker.servers.gradient()
        if gradient is not None:
            self.sum = gradient if self.sum is None else self.sum.add_(gradient)
        self.steps, self.unpushed = self.steps + 1, self.unpushed + 1

    def push(self, worker: Worker, *, reads: bool) -> None:
        """Give all that was taken in."""
        if self.sum is not None and self.unpushed > 1:
            self.sum.mul_(1 / self.unpushed)
        worker.servers.push(self.sum, count=self.unpushed, reads=reads, edit=self.edit)
        self.unpushed, self.sum, self.edit = 0, None, None
        self.reads += reads

    def ask(self, worker: Worker) -> None:
        """Ask for the parameters, without pushing."""
        worker.servers.ask()
        self.reads += 1

    def read(self, worker: Worker, *, ahead: int = 0) -> None:
        """Go on from the newest parameters that are there when no more than so many reads are under way."""
        while self.reads > ahead:
            self.reads -= 1
            worker.parameters = self.shown = worker.servers.pull().wait().x

    def drain(self, worker: Worker) -> None:
        """Push what is left, and leave nothing under way."""
        self._take_edits(worker)
        if self.unpushed or self.edit is not None:
            self.unpushed = max(1, self.unpushed)
            self.push(worker, reads=False)
        self.read(worker)

    def _take_edits(self, worker: Worker) -> None:
        into = worker.parameters.mul_(0.0) if self.edit is None else self.edit
        if worker.replica.take_edits(self.shown, into=into):
            self.edit, self.shown = into, worker.parameters
