"""Parameters that lie on servers, as a strategy and a worker see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat


@dataclass(frozen=True, kw_only=True)
class ServerTerms:
    """How servers go about it: settings of `strategies.parameter_server`, where they are explained."""

    servers: tuple[int, ...]
    """The ranks that keep a part of the parameters each: workers, or servers of their own, whose ranks are above those
    of all workers. The first decides on the order."""
    mode: Literal["sync", "bounded", "async"] = "sync"
    max_staleness: int = 0
    backup: int = 0
    late: Literal["drop", "carry"] = "drop"
    softsync: int | None = None
    step_size: Literal["share", "full"] = "share"
    staleness_scaling: Literal["none", "inverse", "gap"] = "none"
    delay_compensation: Literal["none", "constant", "adaptive"] = "none"
    compensation: float = 0.04
    compensation_decay: float = 0.95
    in_order: bool = False
    consistent: bool = True
    replication: int = 1
    """On how many servers each part lies."""
    momentum: Literal["server", "worker"] = "server"
    pulls: Literal["whole", "coded"] = "whole"
    elastic: float | None = None
    """Where a centre lies on the servers, and not the parameters: how much of its way to a worker's parameters it goes
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
    """How many steps the servers had made."""


class Servers(Protocol):
    """Those of one optimizer, as one of its workers sees them; begun by `Worker.agree_on_servers`."""

    left_out: Flat | None
    """What a codec has left out of gradients, to be added to the next ones; None: nothing."""
    momenta: Flat | None
    """Those that this worker keeps of its own gradients; None: none."""
    centre: Flat
    """Where a centre lies on the servers: that, as it was when all rested last; the servers set out from it."""

    def gradient(self) -> Flat | None:
        """This worker's gradient as it stands, unscaled, in memory from which it is pushed without being copied.

        None where there is none, or where it is left out because it is not finite.
        """

    def push(self, gradient: Flat | None, *, count: int = 1, reads: bool = True, edit: Flat | None = None) -> None:
        """Give the mean of `count` gradients (None, and 0: of none, and others need not wait for it), and what was
        written into the parameters since they were read (NaN where nothing was).

        With `reads` the parameters are read behind it: `pull` returns them. Neither vector is written to any more.
        """

    def exchange(self) -> Flat:
        """Let the centre go a part `elastic` of the way to this worker's parameters, which are returned (a copy that is
        not written to any more); `pull` returns where it was before."""

    def pull(self) -> Work[Pulled]:
        """The parameters (or the centre), one call for each time that they were asked for, in that order.

        Raises `PeerFailed` where a server has died.
        """

    def set_out(self) -> None:
        """The parameters (or the centre) are others, the same on all workers, which call this: servers go on from
        there."""
