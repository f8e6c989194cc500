"""Strategies whose parameters lie on servers: settings, and the state of a worker between servers and its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.servers import ReplicatedParts, ServerRules, ServerTerms
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerRules, Strategy):
    """The rules of servers, and how often a worker pushes and pulls."""

    push_every: int = 1
    """Number of steps after which a worker pushes the mean of its gradients; between pushes it updates its own copy."""
    pull_every: int = 1
    """Number of steps after which a worker pulls the parameters."""
    overlap: bool = False
    """Whether a worker uses a pull one step later, so that it does not wait for it; gradients are one step older."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"max_staleness": 0, "backup": 0, "push_every": 1, "pull_every": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}; it must be a whole number (at least {number})"
                )
        if self.softsync is not None and self.softsync < 1:
            raise ConfigurationError(f"softsync is {self.softsync!r}; it must be a whole number (at least 1), or None")
        self._only("backup", self.backup > 0, "sync")
        self._only("softsync", self.softsync is not None, "async")
        self._only("push_every and pull_every", max(self.push_every, self.pull_every) > 1, "async")
        self._only("overlap", self.overlap, "async", "bounded")

    def terms(self, there: tuple[int, ...], replication: int) -> ServerTerms:
        """Return the terms for servers on these ranks."""
        rules = {field.name: getattr(self, field.name) for field in fields(ServerRules)}
        return ServerTerms(servers=there, replication=replication, **rules)

    def _only(self, name: str, is_set: bool, *modes: str) -> None:
        if is_set and self.mode not in modes:
            raise ConfigurationError(f"{name} needs mode={' or '.join(modes)}, and the mode is {self.mode}")


@dataclass(frozen=True, kw_only=True)
class PlacedOnServers(ReplicatedParts, Strategy):
    """On which servers, and on how many of them each part lies."""

    may_be_own: ClassVar[bool] = False
    """Whether servers may be ranks that train nothing."""

    servers: int | Literal["all", "own"] = "all"
    """On how many workers it lies, from rank 0 on; each trains as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known: tuple[str, ...] = ("all", "own") if self.may_be_own else ("all",)
        if self.servers not in known and not (isinstance(self.servers, int) and self.servers >= 1):
            words = "".join(f'"{name}", ' for name in known)
            raise ConfigurationError(f"servers is {self.servers!r}; it must be {words}or a whole number (at least 1)")
        if self.replication < 1:
            raise ConfigurationError(f"replication is {self.replication!r}; it must be a whole number (at least 1)")
        if self.replication > 1 and self.on_death != "continue":
            raise ConfigurationError(
                f"replication={self.replication} is for trainings that go on when a server dies; give "
                'on_death="continue"'
            )

    def placed(self, workers: int, own: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of the servers; the ranks `own` are servers only.

        Raises `ConfigurationError` where there are not as many as wanted.
        """
        if self.servers == "own" and not own:
            raise ConfigurationError('servers="own" needs servers that are no workers; give quorate run --servers')
        if own and self.servers != "own":
            raise ConfigurationError(
                f'servers of their own were started, and servers is {self.servers!r}; it must be "own" where there '
                "are such"
            )
        count = workers if self.servers == "all" else self.servers
        if isinstance(count, int) and count > workers:
            raise ConfigurationError(f"servers={count} needs as many workers, and there are {workers}")
        ranks = tuple(own) if isinstance(count, str) else tuple(range(count))
        if self.replication > len(ranks):
            raise ConfigurationError(
                f"replication={self.replication} needs as many servers, and there {'is' if len(ranks) == 1 else 'are'} "
                f"{len(ranks)}"
            )
        return ranks


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
    """The sum of the gradients since then, by their weights."""
    weight: float = kept("drop", default=0.0)
    """The sum of these weights."""
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
        gradient = worker.servers.gradient(worker.weight) if worker.weight else None
        if gradient is not None:
            self.gradients, self.weight = self.gradients + 1, self.weight + worker.weight
            self.sum = gradient if self.sum is None else self.sum.add_(gradient)
        self.steps, self.unpushed = self.steps + 1, self.unpushed + 1

    def push(self, worker: Worker, *, reads: bool) -> None:
        """Give all that was taken in."""
        if self.sum is not None and self.weight != 1.0:
            self.sum.mul_(1 / self.weight)
        mean_weight = self.weight / max(1, self.gradients)
        worker.servers.push(self.sum, count=self.gradients, weight=mean_weight, reads=reads, edit=self.edit)
        self.unpushed, self.gradients, self.weight, self.sum, self.edit = 0, 0, 0.0, None, None
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
