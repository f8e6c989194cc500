"""The settings of strategies in which a quorum of workers forms rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Strategy):
    """How long a round waits for a worker that does not answer, and that a training goes on without a dead one."""

    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others continue without a dead worker, or stop together."""
    grace: float = 0.05
    """Seconds in which a worker must answer, or it is left out until it does; large gradients get extra time."""
    patience: float = 10.0
    """Seconds of silence after which the divisor no longer counts a worker."""
    sum_threads: int = 0
    """Threads of each worker that add up large gradients; 0: the cores it may use over the workers of its host."""

    @property
    def bounds(self) -> dict[str, Any]:
        """The settings for `Worker.agree_on_rounds`."""
        return {"grace": self.grace, "patience": self.patience, "sum_threads": self.sum_threads}
