"""The state of a worker between the servers and its own steps: parameters it has read, gradients it has not pushed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat


@dataclass(kw_only=True)
class Pushing:
    """The state of a strategy whose parameters lie on servers."""

    shown: Flat = kept("drop")
    """The parameters as the worker has left them."""
    steps: int = kept("drop", default=0)
    unpushed: int = kept("drop", default=0)
    """Steps since the newest push."""
    gradients: int = kept("drop", default=0)
    """The number of these steps that had a gradient."""
    sum: Flat | None = kept("drop", default=None)
    """The sum of the gradients since then."""
    edit: Flat | None = kept("drop", default=None)
    """The numbers that the script has written into the parameters since then; NaN where it has not."""
    scratch: Flat | None = kept("drop", default=None)
    left_out: Flat | None = kept("sum", default=None)
    """The error of a codec in gradients at the newest pause of all."""
    momenta: Flat | None = kept("average", default=None)
    """This worker's own, then."""
    reads: int = kept("drop", default=0)
    """How many are under way."""

    def take_in(self, worker: Worker) -> None:
        """Take in a step: its gradient, and edits of the parameters by the script."""
        self._take_edits(worker)
        gradient = worker.servers.gradient()
        if gradient is not None:
            self.gradients += 1
            self.sum = gradient if self.sum is None else self.sum.add_(gradient)
        self.steps, self.unpushed = self.steps + 1, self.unpushed + 1

    def push(self, worker: Worker, *, reads: bool) -> None:
        """Give all that was taken in."""
        if self.sum is not None and self.gradients > 1:
            self.sum.mul_(1 / self.gradients)
        worker.servers.push(self.sum, count=self.gradients, reads=reads, edit=self.edit)
        self.unpushed, self.gradients, self.sum, self.edit = 0, 0, None, None
        self.reads += reads

    def ask(self, worker: Worker) -> None:
        """Ask for the parameters; gradients that were taken in wait on."""
        worker.servers.push(None, count=0, edit=self.edit)
        self.edit = None
        self.reads += 1

    def read(self, worker: Worker, *, ahead: int = 0) -> None:
        """Go on from the newest parameters read, once at most `ahead` reads are in flight."""
        while self.reads > ahead:
            self.reads -= 1
            worker.parameters = self.shown = worker.servers.pull().wait().x

    def drain(self, worker: Worker) -> None:
        """Push the remaining gradients, and wait for all reads."""
        self._take_edits(worker)
        if self.unpushed or self.edit is not None:
            self.push(worker, reads=False)
        self.read(worker)

    def _take_edits(self, worker: Worker) -> None:
        self.scratch = self.scratch or worker.parameters
        if not worker.replica.take_edits(self.shown, into=self.scratch):
            return
        now = worker.parameters.bare()
        written = now.map(lambda x, was: torch.where(x == was, torch.nan, x), self.shown.bare())
        if self.edit is not None:
            written = written.map(lambda x, old: torch.where(x.isnan(), old, x), self.edit)
        self.edit, self.shown = written, now
