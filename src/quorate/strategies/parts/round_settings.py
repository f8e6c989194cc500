"""The settings of strategies in which a quorum of workers forms rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Strategy):
    """How long a round waits for a worker that does not answer, and that a training goes on without a dead one."""

    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others continue after the death of a worker, or all workers stop."""
    grace: float = 0.05
    """Seconds within which a worker must answer; otherwise it is left out until it answers. Large gradients get extra
    time."""
    patience: float = 10.0
    """Seconds of silence after which a worker no longer counts in the divisor of the mean."""
    sum_threads: int = 0
    """Threads with which each worker adds up large gradients. 0: its usable cores divided by the number of workers on
    its host."""

    @property
    def bounds(self) -> dict[str, Any]:
        """The settings for `Worker.agree_on_rounds`."""
        return {"grace": self.grace, "patience": self.patience, "sum_threads": self.sum_threads}
