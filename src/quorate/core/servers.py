"""Parameters that lie on servers, as a strategy and a worker see them, and the ranks that are servers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat


@dataclass(frozen=True, kw_only=True)
class ServerRules:
    """Who waits for whom, and what a gradient counts that is late: settings of `strategies.parameter_server`."""

    mode: Literal["sync", "bounded", "async"] = "sync"
    """Whether a step uses the gradients of all workers ("sync"), or workers run ahead of each other by at most
    `max_staleness` steps ("bounded"), or without a limit ("async")."""
    max_staleness: int = 3
    """With `mode="bounded"`: maximum number of steps by which a worker may be ahead of the slowest; 0 is "sync"."""
    backup: int = 0
    """With `mode="sync"`: number of gradients that a step does not wait for."""
    late: Literal["drop", "carry"] = "drop"
    """Whether gradients that a step did not wait for are dropped, or count in the next step."""
    softsync: int | None = None
    """With `mode="async"`, n: a step uses the first P // n gradients that arrive, which are about n steps old."""
    step_size: Literal["share", "full"] = "share"
    """Whether the learning rate of a step with k gradients is multiplied by k / P, or not, as in the papers. With
    `backup` the factor is k / (P - backup), if that is less than 1.
    """
    staleness_scaling: Literal["none", "inverse", "gap"] = "none"
    """Weight of a stale gradient. "none": 1. "inverse": 1 / its age in steps if that is more than 1 (for
    `step_size="full"` as in the paper, because shares of a step would become too small). "gap": for each number 1 / (1
    + the distance that the parameter has moved since, in steps of its usual size).
    """
    delay_compensation: Literal["none", "constant", "adaptive"] = "none"
    """Whether a term is added to a gradient g of older parameters w_old: `compensation` * g * g * (w - w_old).
    "adaptive" divides the term by the root of the running mean of g * g.
    """
    compensation: float = 0.04
    """Factor of the term of `delay_compensation`."""
    compensation_decay: float = 0.95
    """Decay of the running mean of g * g."""
    pulls: Literal["whole", "coded"] = "whole"
    """With `compress`: whether servers send full parameters ("whole"), or the compressed change since the worker last
    read them ("coded")."""
    momentum: Literal["server", "worker"] = "server"
    """Whether the servers keep the momentum of SGD, or each worker keeps that of its own gradients (DANA-Slim), so that
    the gradients of others do not count in it."""
    in_order: bool = False
    """Whether gradients are applied in the order of step and rank: runs are bitwise reproducible, and all workers wait
    for the slowest."""
    consistent: bool = True
    """Whether all parts of the parameters that a worker reads have the same version."""


@dataclass(frozen=True, kw_only=True)
class ReplicatedParts:
    """How many copies servers keep: a setting of `strategies.parts.servers`."""

    replication: int = 1
    """Number of servers that hold each part of the parameters: as long as one of them lives, the death of a server
    loses nothing. Each push goes to all of them, and each makes the step."""


@dataclass(frozen=True, kw_only=True)
class ServerTerms(ServerRules, ReplicatedParts):
    """The rules of the servers of one optimizer, and where they are."""

    servers: tuple[int, ...]
    """The ranks that keep a part of the parameters each: workers, or servers of their own, whose ranks are above those
    of all workers. The first decides on the order."""
    elastic: float | None = None
    """If a centre lies on the servers, and not the parameters: how much of its way to a worker's parameters it goes
    when these come, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.replication > 1 and not self.consistent:
            raise ConfigurationError(
                f"replication={self.replication} needs consistent=True: each copy of a part makes the same steps"
            )


@dataclass(frozen=True)
class Pulled:
    """Parameters as a worker has read them."""

    x: Flat
    version: int
    """The number of steps that the servers had made."""


class Servers(Protocol):
    """The servers of one optimizer, as one of its workers sees them; begun by `Worker.agree_on_servers`."""

    left_out: Flat | None
    """The error of a codec in gradients, to be added to the next ones; None: nothing."""
    momenta: Flat | None
    """The momenta that this worker keeps of its own gradients; None: none."""
    centre: Flat
    """The centre at the newest pause of all, if one lies on the servers; the servers go on from it."""

    def gradient(self, weight: float = 1.0) -> Flat | None:
        """Return `weight` times this worker's gradient, unscaled, in memory from which it is pushed without being
        copied.

        Rows of sparse gradients are taken in beside it, and go with the next push. None if there is no gradient, or it
        is left out because it is not finite.
        """

    def push(
        self,
        gradient: Flat | None,
        *,
        count: int = 1,
        weight: float = 1.0,
        reads: bool = True,
        edit: Flat | None = None,
    ) -> None:
        """Push the mean of `count` gradients; do not write to the vectors any more.

        Args:
            gradient: The mean; None, with a `count` of 0: no gradient, and others need not wait for it.
            weight: The mean weight of these gradients; 1 is that of a full batch.
            reads: Whether parameters are read behind it, which `pull` returns.
            edit: The numbers that the script has written into the parameters since they were read; NaN elsewhere.
        """

    def exchange(self) -> Flat:
        """Move the centre by `elastic` of its way to this worker's parameters; `pull` returns where it was before.

        Returns a copy of the parameters; do not write to it.
        """

    def pull(self) -> Work[Pulled]:
        """Return the parameters (or the centre) of the oldest read that has not been returned.

        Its `wait` raises `PeerFailed` if a server has died.
        """

    def set_out(self) -> None:
        """Let the servers go on from the parameters (or the centre) of this worker. All call it, with equal ones."""


@dataclass
class OwnServers:
    """The separate servers of a run, as one worker or server knows them; each place has one."""

    ranks: Sequence[int] = ()
    """Ranks above those of the workers. They hold parameters, and train nothing."""
    has_served: bool = False
    """Whether this rank, a server, has served a training."""

    def has(self, rank: int) -> bool:
        """Return whether `rank` is a server, and no worker."""
        return rank in self.ranks
