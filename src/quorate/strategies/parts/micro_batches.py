"""The settings of strategies whose steps go on after a death: their batch, and their learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class MicroBatches(Strategy):
    """The batches of a worker in a step, where the batch is kept, and the rate of steps where it is not."""

    micro_batches: int = 1
    """With batch="kept": the batches of the loader that each worker of the start computes in a step. `step()` updates
    after the last one of this worker; after a death survivors compute more."""

    shrunk_rate: Literal["kept", "scaled"] = "kept"
    """With batch="shrunk": the learning rate of steps without a dead worker. "scaled" multiplies it by the share of the
    workers that live, or by the root of that share (Adam and the like), until others join."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count: object = self.micro_batches
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"micro_batches is {count!r}; it must be a whole number of at least 1")
        if count > 1 and self.batch != "kept":
            raise ConfigurationError(
                'micro_batches is for batch="kept"; otherwise use optimizer.accumulate() for all batches of a step but '
                "the last"
            )
        if self.shrunk_rate not in ("kept", "scaled"):
            raise unknown("shrunk_rate", str(self.shrunk_rate), ("kept", "scaled"))
        if self.shrunk_rate == "scaled" and (self.batch == "kept" or self.on_death != "continue"):
            raise ConfigurationError(
                'shrunk_rate="scaled" is for steps with fewer workers than at the start; set on_death="continue", and '
                'leave batch="shrunk"'
            )
