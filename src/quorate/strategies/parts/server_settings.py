"""Settings of a strategy whose parameters lie on servers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.servers import ServerTerms
from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Strategy):
    """Who waits for whom, and what a gradient counts that is late."""

    mode: Literal["sync", "bounded", "async"] = "sync"
    """Whether a step is of the gradients of all workers, or workers run ahead of each other by at most `max_staleness`
    steps, or as far as they come."""
    max_staleness: int = 3
    """Under `bounded`, how many steps a worker may be ahead of the slowest; 0 is `sync`."""
    backup: int = 0
    """Under `sync`, how many gradients a step does without: those that come last."""
    late: Literal["drop", "carry"] = "drop"
    """What becomes of those: they are dropped, or count in the next step."""
    softsync: int | None = None
    """Under `async`, n: a step is of the first P // n gradients that come, which are about n steps old."""
    step_size: Literal["share", "full"] = "share"
    """Whether the learning rate of a step of k gradients is multiplied by k / P (with `backup` by k / (P - backup), if
    that is less than 1), or not (as in the papers)."""
    staleness_scaling: Literal["none", "inverse", "gap"] = "none"
    """What a gradient counts: as any other; 1 / its age in steps, if that is more than 1 (for `step_size="full"`, as in
    the paper: of shares of a step little is left then); or, number by number, 1 / (1 + how far the parameter has moved
    since, in steps of its usual size)."""
    delay_compensation: Literal["none", "constant", "adaptive"] = "none"
    """Whether to a gradient g of older parameters w_old a term g * g * (w - w_old) is added, times `compensation`;
    where adaptive that is divided by the root of the running mean of g * g."""
    compensation: float = 0.04
    """Of the term of `delay_compensation`."""
    compensation_decay: float = 0.95
    """Of the running mean of g * g."""
    pulls: Literal["whole", "coded"] = "whole"
    """Whether parameters travel whole where `compress` writes gradients small, or how far they have gone since the
    worker read them last is written small, too."""
    momentum: Literal["server", "worker"] = "server"
    """Who keeps the momentum of SGD: the servers, or each worker that of its own gradients (DANA-Slim): then what the
    others push in between does not count as momentum."""
    push_every: int = 1
    """After how many steps a worker pushes the mean of its gradients; between pushes it steps on its own copy."""
    pull_every: int = 1
    """After how many steps a worker pulls."""
    overlap: bool = False
    """Whether a pull is waited for one step later, so that nobody waits for it: gradients are one step older."""
    in_order: bool = False
    """Whether gradients count in the order of step and rank: runs are the same to the bit, and all wait for the
    slowest."""
    consistent: bool = True
    """Whether what is read is of one version in all its parts."""

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

    def terms(self, there: tuple[int, ...]) -> ServerTerms:
        """For servers on these ranks."""
        told = {
            field.name: getattr(self, field.name)
            for field in fields(ServerTerms)
            if field.name not in ("servers", "elastic")
        }
        return ServerTerms(servers=there, **told)

    def _only(self, name: str, is_set: bool, *modes: str) -> None:
        if is_set and self.mode not in modes:
            raise ConfigurationError(f"{name} needs mode={' or '.join(modes)}, and the mode is {self.mode}")
